"""A request's life: received → accepted → removed → recomputed → completed → purged; or rejected, or cancelled."""

from __future__ import annotations

import calendar
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.ids import Id, canonical_id
from fedforget.algorithm.ports import Newcomer
from fedforget.algorithm.seeds import Seed
from fedforget.disk.column_checks import check, is_blob, is_digest, is_id, is_name, is_one_of, is_text, is_whole
from fedforget.disk.parsing import parse_object
from fedforget.errors import InvalidInput, quoted, shown


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


AnyBasis = Basis | Literal["exogenous", "model-informed", "unknown"]


def require_basis(basis: str) -> None:
    if basis not in list(Basis):
        raise InvalidInput(f"unknown basis {quoted(basis)}", hint=f"use one of: {', '.join(Basis)}")


GUARANTEE_LAW = "law-and-path"
GUARANTEE_PATH = "path"


_MAC_BYTES = 16
_NAME = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)

SCHEMA = f"""
CREATE TABLE requests (
    id TEXT PRIMARY KEY {check(is_name("id"))},
    batch_id TEXT {check(is_name("batch_id"), optional="batch_id")},
    place INTEGER NOT NULL {check(is_whole("place"))},
    level TEXT NOT NULL {check(is_one_of("level", "sample", "client"))},
    basis TEXT NOT NULL {check(is_one_of("basis", *Basis))},
    state TEXT NOT NULL {check(is_one_of("state", *Stage))},
    received TEXT NOT NULL {check(is_name("received"))},
    deadline TEXT {check(is_name("deadline"), optional="deadline")},
    reason TEXT {check(is_text("reason"), optional="reason")},
    first_changed_step INTEGER {check(is_whole("first_changed_step", 1), optional="first_changed_step")},
    recomputed_steps INTEGER {check(is_whole("recomputed_steps"), optional="recomputed_steps")},
    steps_alone INTEGER {check(is_whole("steps_alone"), optional="steps_alone")},
    guarantee TEXT {check(is_one_of("guarantee", GUARANTEE_LAW, GUARANTEE_PATH), optional="guarantee")},
    model_round INTEGER {check(is_whole("model_round"), optional="model_round")},
    model_digest TEXT {check(is_digest("model_digest"), optional="model_digest")},
    model_mac BLOB {check(is_blob("model_mac", _MAC_BYTES), optional="model_mac")},
    state_digest TEXT {check(is_digest("state_digest"), optional="state_digest")}
) WITHOUT ROWID;
CREATE TABLE waiting (
    request TEXT PRIMARY KEY {check(is_name("request"))},
    client NOT NULL {check(is_id("client"))},
    sample {check(is_id("sample"), optional="sample")}
) WITHOUT ROWID;
CREATE TABLE intents (
    batch_id TEXT PRIMARY KEY {check(is_name("batch_id"))},
    stage TEXT NOT NULL {check(is_one_of("stage", *Stage))},
    body TEXT NOT NULL {check(is_text("body"))}
) WITHOUT ROWID;
CREATE TABLE erased (
    pseudonym BLOB NOT NULL {check(is_blob("pseudonym", _MAC_BYTES))},
    sequence INTEGER NOT NULL {check(is_whole("sequence"))},
    request TEXT NOT NULL {check(is_name("request"))},
    returned INTEGER NOT NULL {check(is_whole("returned", 0, 1))},
    PRIMARY KEY (pseudonym, sequence)
) WITHOUT ROWID;
CREATE TABLE keys (
    mac BLOB PRIMARY KEY {check(is_blob("mac", _MAC_BYTES))},
    body BLOB NOT NULL {check(is_blob("body", _MAC_BYTES))},
    requests TEXT NOT NULL {check(is_text("requests"))}
) WITHOUT ROWID;
CREATE TABLE aliases (
    id TEXT PRIMARY KEY {check(is_name("id"))},
    request TEXT NOT NULL {check(is_name("request"))}
) WITHOUT ROWID;
"""


def guarantee_of(seed_origin: str, tainted: bool, basis: str, new_seed: bool) -> str:
    """Equality in law needs seeds that no person chose and requests that looked at nothing; else it is path by path."""
    if new_seed:
        return GUARANTEE_LAW
    clean = seed_origin == "system" and not tainted and basis == Basis.EXOGENOUS
    return GUARANTEE_LAW if clean else GUARANTEE_PATH


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a request. ``client`` and ``sample`` come from the caller; the record keeps no ids."""

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
        """Whether the request is neither carried out, rejected nor cancelled."""
        return self.state not in (Stage.PURGED, Stage.REJECTED, Stage.CANCELLED)

    def days_left(self, now: datetime | None = None) -> float | None:
        """Until its deadline; below zero if that has passed, None if the request is closed."""
        if not self.is_open or self.deadline is None:
            return None
        return (datetime.fromisoformat(self.deadline) - (now or datetime.now(UTC))) / timedelta(days=1)

    def is_overdue(self, now: datetime | None = None) -> bool:
        """Whether it is open, and its deadline has passed."""
        left = self.days_left(now)
        return left is not None and left < 0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**asdict(self), "days_left": self.days_left(), "overdue": self.is_overdue()}


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
        require_basis(basis)
        now = datetime.now(UTC)
        due = one_month_after(now) if deadline is None else _moment(deadline)
        if due <= now:
            raise InvalidInput(f"the deadline {shown(deadline)} has passed", hint="give a day or a time to come")
        if key is not None and not _is_text(key):
            raise InvalidInput(
                "the idempotency key must be text, and not empty", hint="give any text that is yours alone, or none"
            )
        ids = tuple(_new_id() for _ in requests)
        return cls(requests, basis, _text(now), _text(due), ids, key, deadline is not None, new_seed)

    def taken_in(self) -> Submission:
        """As it is entered now: nothing is accepted before it was received, though the clock was set back since."""
        return replace(self, received=min(self.received, _text(datetime.now(UTC))))

    def receipts(self) -> list[Receipt]:
        """What can be told of requests that are still in the inbox."""
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
        raw = parse_object(data)
        return cls(
            tuple(Request(client, sample) for client, sample in raw["requests"]),
            Basis(raw["basis"]), as_written(raw["received"]), as_written(raw["deadline"]), _names(raw), raw["key"],
            bool(raw.get("urgent")),
        )  # fmt: skip


def as_written(text: Any) -> str:
    """A time in the one spelling that the record has; anything else is a ValueError."""
    if not isinstance(text, str) or _text(datetime.fromisoformat(text).astimezone(UTC)) != text:
        raise ValueError(f"{text!r:.40} is not a time")
    return text


def _names(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of a submission, one for each request."""
    ids = tuple(raw["ids"])
    sound = all(isinstance(each, str) and _NAME.fullmatch(each) for each in ids) and len(set(ids)) == len(ids)
    if not sound or not 0 < len(ids) == len(raw["requests"]) or not (raw["key"] is None or _is_text(raw["key"])):
        raise ValueError("its ids or its key cannot be right")
    return ids


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What a receipt will say about a batch, known when the batch is begun."""

    guarantee: str = ""
    recomputed_steps: int = 0
    steps_alone: tuple[int, ...] = ()  # what carrying each request out by itself would have recomputed
    state_before: str = ""  # the digest of the state before the batch
    added: Mapping[str, Any] = field(default_factory=dict)  # for the events: how many clients and samples join


@dataclass(frozen=True, slots=True)
class Outcome:
    """What stands after a batch: everything that a receipt says about it."""

    rounds_done: int
    model_digest: str | None
    state_digest: str
    plan_digest: str
    commitments: str  # a digest of all of them
    version: str
    mixed_environments: bool


@dataclass(frozen=True, slots=True)
class Pledge:
    """A keyed digest of a few steps of the learner that began a batch (``session.pledge``)."""

    client: Id
    environment: str
    mac: bytes

    @classmethod
    def decode(cls, raw: Any) -> Pledge | None:
        if raw is None:
            return None
        client, environment, mac = raw
        return cls(canonical_id(client), str(environment), bytes.fromhex(mac))


@dataclass(frozen=True, slots=True)
class Intent:
    """A batch of requests that are carried out together: everything that finishing it after a crash needs."""

    ids: tuple[str, ...]
    decision: Decision
    pledge: Pledge | None = None  # where carrying it out leaves no witness

    @property
    def batch_id(self) -> str:
        return self.decision.batch_id

    @property
    def only_recomputes(self) -> bool:
        """Whether nothing is removed or joins: all rounds are only computed again."""
        return not self.ids and not self.decision.joining and self.decision.new_seeds is None

    def encode(self) -> str:
        decision, pledge = self.decision, self.pledge
        return json.dumps(
            {
                "ids": self.ids,
                "requests": [[request.client, request.sample] for request in decision.requests],
                "first_changed_steps": decision.first_changed_steps,
                "leaving": decision.leaving,
                "goal": decision.goal,
                "rewind_to": decision.rewind_to,
                "reseed": None if decision.new_seeds is None else decision.new_seeds.hex(),
                "joining": [
                    [
                        new.client,
                        None if new.seed is None else [new.seed.value.hex(), new.seed.nonce.hex()],
                        [[sample, content.hex()] for sample, content in new.samples],
                    ]
                    for new in decision.joining
                ],
                "pledge": None if pledge is None else [pledge.client, pledge.environment, pledge.mac.hex()],
            }
        )

    @classmethod
    def decode(cls, batch_id: str, body: str) -> Intent:
        raw = parse_object(body)
        joining = tuple(
            Newcomer(
                canonical_id(client),
                None if seed is None else Seed(*map(bytes.fromhex, seed)),
                tuple((canonical_id(sample), bytes.fromhex(content)) for sample, content in samples),
            )
            for client, seed, samples in raw.get("joining", ())
        )
        decision = Decision(
            requests=tuple(Request(client, sample) for client, sample in raw["requests"]),
            first_changed_steps=tuple(None if step is None else _count(step) for step in raw["first_changed_steps"]),
            leaving=tuple(map(canonical_id, raw["leaving"])),
            goal=_count(raw["goal"]),
            rewind_to=_count(raw["rewind_to"]),
            joining=joining,
            new_seeds=None if raw["reseed"] is None else bytes.fromhex(raw["reseed"]),
            batch_id=batch_id,
        )
        if not len(decision.first_changed_steps) == len(decision.requests) in (0, len(raw["ids"])):
            raise ValueError("its requests, steps and ids are not as many")
        return cls(tuple(map(str, raw["ids"])), decision, Pledge.decode(raw.get("pledge")))


def new_batch_id() -> str:
    return "b-" + secrets.token_hex(8)


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
            f"{quoted(text)} is neither a day nor a time", hint="write 2027-01-31 or 2027-01-31T12:00+01:00"
        ) from error


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r:.40} is not a whole number from 0")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= each <= "\udfff" for each in value)


def _new_id() -> str:
    return "r-" + secrets.token_hex(8)
