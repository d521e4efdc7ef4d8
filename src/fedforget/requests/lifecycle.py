"""The stages of a request: received, accepted, removed, recomputed, completed, purged; or rejected, or cancelled."""

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

from fedforget.algorithm.forget import Request
from fedforget.disk.parsing import parse_object
from fedforget.errors import InvalidInput, quoted, shown


class Stage(StrEnum):
    """The stage of a request. Stages only move forwards."""

    RECEIVED = "received"
    ACCEPTED = "accepted"
    REMOVED = "removed"
    RECOMPUTED = "recomputed"
    COMPLETED = "completed"
    PURGED = "purged"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class Basis(StrEnum):
    """What the decision to request an erasure depends on. Only ``exogenous`` keeps equality in law."""

    EXOGENOUS = "exogenous"
    MODEL_INFORMED = "model-informed"
    UNKNOWN = "unknown"


AnyBasis = Basis | Literal["exogenous", "model-informed", "unknown"]


def require_basis(basis: str) -> None:
    if basis not in list(Basis):
        raise InvalidInput(f"unknown basis {quoted(basis)}", hint=f"use one of: {', '.join(Basis)}")


def basis_of(text: str) -> Basis:
    """Return the basis of this name. Raise InvalidInput if there is none."""
    require_basis(text)
    return Basis(text)


GUARANTEE_LAW = "law-and-path"
GUARANTEE_PATH = "path"


_NAME = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)


def guarantee_of(seed_origin: str, tainted: bool, basis: str, new_seed: bool) -> str:
    """Return the guarantee: equality in law needs system seeds and exogenous requests, otherwise it is path by path."""
    if new_seed:
        return GUARANTEE_LAW
    clean = seed_origin == "system" and not tainted and basis == Basis.EXOGENOUS
    return GUARANTEE_LAW if clean else GUARANTEE_PATH


def covered_by_guarantee(mixed_environments: bool | None) -> str | None:
    """Return what a guarantee makes equal: every byte, or only the draws if several environments computed the rounds.

    None: the record does not say in which environments they were computed.
    """
    return None if mixed_environments is None else "draws" if mixed_environments else "bytes"


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
    steps_alone: int | None = None  # steps that carrying it out individually would have recomputed
    model_digest: str | None = None
    guarantee: str | None = None
    guarantee_covers: str | None = None  # see ``covered_by_guarantee``
    times: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether the request is neither carried out, rejected nor cancelled."""
        return self.state not in (Stage.PURGED, Stage.REJECTED, Stage.CANCELLED)

    def require_closed(self, hint: str) -> None:
        """Raise InvalidInput if the request is open: it has no receipt yet."""
        if self.is_open:
            raise InvalidInput(f"request {shown(self.id)} is {self.state}: it has no receipt yet", hint=hint)

    def days_left(self, now: datetime | None = None) -> float | None:
        """Return the days until the deadline: negative if it has passed, None if the request is closed."""
        if not self.is_open or self.deadline is None:
            return None
        return (datetime.fromisoformat(self.deadline) - (now or datetime.now(UTC))) / timedelta(days=1)

    def is_overdue(self, now: datetime | None = None) -> bool:
        """Return whether the request is open and its deadline has passed."""
        left = self.days_left(now)
        return left is not None and left < 0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**asdict(self), "days_left": self.days_left(), "overdue": self.is_overdue()}


@dataclass(frozen=True, slots=True)
class Submission:
    """Requests that were submitted together."""

    requests: tuple[Request, ...]
    basis: str
    received: str
    deadline: str
    ids: tuple[str, ...]
    key: str | None = None  # idempotency key of the caller
    urgent: bool = False  # the caller set the deadline
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
            raise InvalidInput(f"the deadline {shown(deadline)} has passed", hint="give a future date or time")
        if key is not None and not _is_text(key):
            raise InvalidInput(
                "the idempotency key must be text, and not empty", hint="give a text of your own choice, or none"
            )
        ids = tuple(_new_id() for _ in requests)
        return cls(requests, basis, _text(now), _text(due), ids, key, deadline is not None, new_seed)

    def with_acceptance_time(self) -> Submission:
        """Cap ``received`` at now: the submitter's clock may have been ahead."""
        return replace(self, received=min(self.received, _text(datetime.now(UTC))))

    def receipts(self) -> list[Receipt]:
        """Return receipts for requests that are still in the inbox."""
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
        """Return the canonical content, compared when an idempotency key is reused."""
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
    """Return a time that is written as the record writes it. Raise ValueError for any other text."""
    try:
        if isinstance(text, str) and _text(datetime.fromisoformat(text).astimezone(UTC)) == text:
            return text
    except OverflowError:  # in UTC it is before the year 1, or after 9999
        pass
    raise ValueError(f"{text!r:.40} is not a time")


def _names(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of a submission, one for each request."""
    ids = tuple(raw["ids"])
    sound = all(isinstance(each, str) and _NAME.fullmatch(each) for each in ids) and len(set(ids)) == len(ids)
    if not sound or not 0 < len(ids) == len(raw["requests"]) or not (raw["key"] is None or _is_text(raw["key"])):
        raise ValueError("its ids or its key are invalid")
    return ids


def one_month_after(moment: datetime) -> datetime:
    """Return the same day of the next month, or its last day if it is shorter, as the law counts a month."""
    year, month = moment.year + moment.month // 12, moment.month % 12 + 1
    return moment.replace(year=year, month=month, day=min(moment.day, calendar.monthrange(year, month)[1]))


def _moment(text: str) -> datetime:
    """Parse a date (meaning its end) or a time, in UTC unless it has a time zone."""
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


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= each <= "\udfff" for each in value)


def _new_id() -> str:
    return "r-" + secrets.token_hex(8)
