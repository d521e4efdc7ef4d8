"""When requests are carried out: each at once, or collected into a batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fedforget.errors import InvalidInput, quoted
from fedforget.requests.lifecycle import Receipt

IMMEDIATE, BATCH = "immediate", "batch"
_MARGIN = timedelta(days=1)  # before the earliest deadline
_LONGEST = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Policy:
    """``batch`` collects until the window since the first request ends, or the earliest deadline is near."""

    name: str = IMMEDIATE
    window: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        if self.name not in (IMMEDIATE, BATCH):
            raise InvalidInput(f"unknown policy {quoted(self.name)}", hint=f"use {IMMEDIATE} or {BATCH}")
        if not isinstance(self.window, timedelta):
            raise InvalidInput(
                f"a window is a timedelta, not {quoted(self.window)}", hint="give days with Policy.of_days(name, days)"
            )
        if self.name == BATCH and not timedelta(0) < self.window <= _LONGEST:
            raise InvalidInput("a batch needs a window", hint="give the days to collect: --window 7")
        if self.name == IMMEDIATE and self.window:
            raise InvalidInput("only the policy batch has a window", hint="leave it out")

    @classmethod
    def of_days(cls, name: str, days: float | None) -> Policy:
        """Make a policy from a window in days."""
        longest = _LONGEST / timedelta(days=1)
        if days is not None and not 0 < days <= longest:
            raise InvalidInput(f"a window cannot have {days:g} days", hint=f"give more than 0 and at most {longest:g}")
        return cls(name, timedelta(days=days or 0))

    @property
    def collects(self) -> bool:
        """Whether requests stay pending until they are due."""
        return self.name == BATCH

    def due(self, waiting: Iterable[Receipt]) -> datetime | None:
        """Return when the pending requests are due; None if there are none."""
        moments = []
        for receipt in waiting:
            moments.append(_shifted(receipt.received, self.window))
            if receipt.deadline is not None:
                moments.append(_shifted(receipt.deadline, -_MARGIN))
        return min(moments, default=None)

    def is_due(self, waiting: Iterable[Receipt], now: datetime | None = None) -> bool:
        """Return whether the pending requests are due now."""
        due = self.due(waiting)
        return due is not None and due <= (now or datetime.now(UTC))

    def encode(self) -> str:
        """Write the policy as text, for the record."""
        return f"{self.name} {self.window.total_seconds()}"

    @classmethod
    def decode(cls, text: str) -> Policy:
        """Read a policy that ``encode`` wrote."""
        name, seconds = text.split()
        return cls(name, timedelta(seconds=float(seconds)))


def _shifted(text: str, by: timedelta) -> datetime:
    """Return a time some days later or earlier; the time itself where the calendar ends before that."""
    moment = datetime.fromisoformat(text)
    try:
        return moment + by
    except OverflowError:
        return moment
