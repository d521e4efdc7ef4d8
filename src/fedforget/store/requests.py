"""A request's life: received → accepted → removed → recomputed → completed → purged; or rejected, or cancelled."""

from __future__ import annotations

import calendar
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.seeds import Seed
from fedforget.errors import InvalidInput

SCHEMA = """
CREATE TABLE requests (
    id TEXT PRIMARY KEY, batch_id TEXT, place INTEGER NOT NULL, level TEXT NOT NULL, basis TEXT NOT NULL,
    state TEXT NOT NULL, received TEXT NOT NULL, deadline TEXT, reason TEXT, first_changed_step INTEGER,
    recomputed_steps INTEGER, steps_alone INTEGER, guarantee TEXT, model_round INTEGER, model_digest TEXT,
    model_mac BLOB, state_digest TEXT
) WITHOUT ROWID;
CREATE TABLE waiting (request TEXT PRIMARY KEY, client NOT NULL, sample) WITHOUT ROWID;
CREATE TABLE intents (batch_id TEXT PRIMARY KEY, stage TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE erased (
    pseudonym BLOB NOT NULL, sequence INTEGER NOT NULL, request TEXT NOT NULL, returned INTEGER NOT NULL,
    PRIMARY KEY (pseudonym, sequence)
) WITHOUT ROWID;
CREATE TABLE keys (mac BLOB PRIMARY KEY, body BLOB NOT NULL, requests TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE aliases (id TEXT PRIMARY KEY, request TEXT NOT NULL) WITHOUT ROWID;
"""


class Stage(StrEnum):
    """How far a request has come; never backwards."""

    RECEIVED = "received"
    ACCEPTED = "accepted"
    REMOVED = "removed"
    RECOMPUTED = "recomputed"
    COMPLETED = "completed"
    PURGED = "purged"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class Basis(StrEnum):
    """What a request was based on. Only one that looked at nothing keeps equality in law."""

    EXOGENOUS = "exogenous"
    MODEL_INFORMED = "model-informed"
    UNKNOWN = "unknown"


GUARANTEE_LAW = "law-and-path"
GUARANTEE_PATH = "path"


def guarantee_of(seed_origin: str, tainted: bool, basis: str, new_seed: bool) -> str:
    """Equality in law needs seeds nobody chose and requests that looked at nothing; path by path it always holds."""
    if new_seed:
        return GUARANTEE_LAW
    clean = seed_origin == "system" and not tainted and basis == Basis.EXOGENOUS
    return GUARANTEE_LAW if clean else GUARANTEE_PATH


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a request. ``client`` and ``sample`` come from the asker; the record keeps no ids."""

    id: str
    batch_id: str | None
    level: str
    client: int | str | None
    sample: int | str | None
    basis: str
    state: str
    received: str
    deadline: str | None
    reason: str | None = None
    first_changed_step: int | None = None
    recomputed_steps: int | None = None
    steps_alone: int | None = None  # what meeting it by itself would have recomputed
    model_digest: str | None = None
    guarantee: str | None = None
    times: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.state not in (Stage.PURGED, Stage.REJECTED, Stage.CANCELLED)

    def days_left(self, now: datetime | None = None) -> float | None:
        """Until its deadline; below zero if that has passed, None if the request is closed."""
        if not self.is_open or self.deadline is None:
            return None
        return (datetime.fromisoformat(self.deadline) - (now or datetime.now(UTC))) / timedelta(days=1)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "days_left": self.days_left()}


@dataclass(frozen=True, slots=True)
class Submission:
    """Requests that were handed in together."""

    requests: tuple[Request, ...]
    basis: str
    received: str
    deadline: str
    ids: tuple[str, ...]
    key: str | None = None  # the asker's, so that asking again is not asking twice
    urgent: bool = False  # the deadline is the asker's own
    new_seed: bool = False

    @classmethod
    def of(
        cls,
        requests: tuple[Request, ...],
        basis: str,
        *,
        deadline: str | None = None,
        key: str | None = None,
        new_seed: bool = False,
    ) -> Submission:
        now = datetime.now(UTC)
        due = one_month_after(now) if deadline is None else _moment(deadline)
        if due <= now:
            raise InvalidInput(f"the deadline {deadline} has passed", hint="give a day or a time to come")
        if key is not None and not _is_text(key):
            raise InvalidInput("the idempotency key is empty", hint="give any text that is yours alone, or none")
        ids = tuple(_new_id() for _ in requests)
        return cls(requests, basis, _text(now), _text(due), ids, key, deadline is not None, new_seed)

    def taken_in(self) -> Submission:
        """As it is entered now: nothing is accepted before it was received, though the clock was set back since."""
        return replace(self, received=min(self.received, _text(datetime.now(UTC))))

    def receipts(self) -> list[Receipt]:
        """What can be told of requests that nobody has taken in yet."""
        return [
            Receipt(
                id=identifier,
                batch_id=None,
                level=request.level,
                client=request.client,
                sample=request.sample,
                basis=self.basis,
                state=Stage.RECEIVED,
                received=self.received,
                deadline=self.deadline,
                times={Stage.RECEIVED: self.received},
            )
            for identifier, request in zip(self.ids, self.requests, strict=True)
        ]

    def body(self) -> bytes:
        """What was asked for, whenever it was asked: the same key must come with the same of it."""
        asked = [*([r.client, r.sample] for r in self.requests), self.basis]
        return json.dumps([*asked, "new seeds"] if self.new_seed else asked).encode()

    def encode(self) -> bytes:
        return json.dumps({**asdict(self), "requests": [[r.client, r.sample] for r in self.requests]}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Submission:
        raw = json.loads(data)
        return cls(
            tuple(Request(client, sample) for client, sample in raw["requests"]),
            str(raw["basis"]), str(raw["received"]), str(raw["deadline"]), tuple(map(str, raw["ids"])), raw["key"],
            bool(raw.get("urgent")),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Samples that join, with the digests of their content; the seed is None for a client that is there already."""

    client: Id
    seed: Seed | None
    samples: tuple[tuple[Id, bytes], ...]


@dataclass(frozen=True, slots=True)
class Intent:
    """Everything that finishing a batch after a crash needs."""

    batch_id: str
    ids: tuple[str, ...]
    decision: Decision
    reseed: str | None = None  # the root of the new seeds, in hexadecimal
    joining: tuple[Newcomer, ...] = ()

    @classmethod
    def new(
        cls,
        ids: tuple[str, ...],
        decision: Decision,
        *,
        reseed: str | None = None,
        joining: tuple[Newcomer, ...] = (),
    ) -> Intent:
        return cls("b-" + secrets.token_hex(8), ids, decision, reseed, joining)

    def encode(self) -> str:
        decision = self.decision
        return json.dumps(
            {
                "ids": self.ids,
                "requests": [[request.client, request.sample] for request in decision.requests],
                "first_changed_steps": decision.first_changed_steps,
                "leaving": decision.leaving,
                "goal": decision.goal,
                "rewind_to": decision.rewind_to,
                "reseed": self.reseed,
                "joining": [
                    [
                        new.client,
                        None if new.seed is None else [new.seed.value.hex(), new.seed.nonce.hex()],
                        [[sample, content.hex()] for sample, content in new.samples],
                    ]
                    for new in self.joining
                ],
            }
        )

    @classmethod
    def decode(cls, batch_id: str, body: str) -> Intent:
        raw = json.loads(body)
        decision = Decision(
            requests=tuple(Request(client, sample) for client, sample in raw["requests"]),
            first_changed_steps=tuple(raw["first_changed_steps"]),
            leaving=tuple(raw["leaving"]),
            goal=raw["goal"],
            rewind_to=raw["rewind_to"],
        )
        joining = tuple(
            Newcomer(
                client,
                None if seed is None else Seed(*map(bytes.fromhex, seed)),
                tuple((sample, bytes.fromhex(content)) for sample, content in samples),
            )
            for client, seed, samples in raw.get("joining", ())
        )
        return cls(batch_id, tuple(raw["ids"]), decision, raw["reseed"], joining)


def one_month_after(moment: datetime) -> datetime:
    """The same day of the next month, or its last day where there is none: how the law counts a month."""
    year, month = moment.year + moment.month // 12, moment.month % 12 + 1
    return moment.replace(year=year, month=month, day=min(moment.day, calendar.monthrange(year, month)[1]))


def _moment(text: str) -> datetime:
    """A day (its end) or a time, in UTC unless it says otherwise."""
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        if len(text) <= len("2027-01-31"):
            found += timedelta(days=1, milliseconds=-1)
        return found.astimezone(UTC)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(
            f"{text!r} is neither a day nor a time", hint="write 2027-01-31 or 2027-01-31T12:00+01:00"
        ) from error


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= each <= "\udfff" for each in value)


def _new_id() -> str:
    return "r-" + secrets.token_hex(8)
