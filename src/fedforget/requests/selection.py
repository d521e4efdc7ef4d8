"""Which requests to list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fedforget.errors import InvalidInput, quoted, shown
from fedforget.requests.lifecycle import Stage

_AT_WORK = (Stage.REMOVED, Stage.RECOMPUTED, Stage.COMPLETED)
_MOST = 2**63 - 1  # rows: the largest number of a database
OPEN = "open"
OPEN_STATES = (Stage.ACCEPTED, *_AT_WORK)
STATES = (OPEN, *(stage for stage in Stage if stage != Stage.RECEIVED))


@dataclass(frozen=True, slots=True)
class Selection:
    """Requests in one of some states, received since a time; the last ones if there are more than ``limit``.

    ``open`` stands for every state of a request that is not closed. ``by_deadline``: the next deadlines instead of the
    last ones.
    """

    states: tuple[str, ...] = ()
    since: str | None = None
    limit: int | None = None
    by_deadline: bool = False

    @classmethod
    def of(cls, states: Sequence[str] = (), since: str | None = None, limit: int | None = None) -> Selection:
        """Check what a caller asks for. ``since``: a day or a time, in UTC unless it has a time zone."""
        for state in states:
            if state not in STATES:
                raise InvalidInput(f"unknown state {quoted(state)}", hint=f"use one of: {', '.join(STATES)}")
        if limit is not None and limit < 1:
            raise InvalidInput(f"{shown(limit)} requests cannot be listed", hint="give a limit from 1, or none")
        return cls(tuple(states), None if since is None else _moment(since), limit)

    def condition(self, state: str) -> tuple[str, list[Any]]:
        """Return the SQL after FROM, and its values. ``state``: the expression for the state of a request."""
        conditions, values = [], list[Any]()
        if self.states:
            wanted = {each for name in self.states for each in (OPEN_STATES if name == OPEN else (name,))}
            stored = {Stage.ACCEPTED if each in _AT_WORK else each for each in wanted}  # see ``RequestBook.counts``
            conditions.append(f"requests.state IN ({_marks(stored)}) AND {state} IN ({_marks(wanted)})")
            values += [*sorted(stored), *sorted(wanted)]
        if self.since is not None:
            conditions.append("received >= ?")
            values.append(self.since)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        order = "deadline, number" if self.by_deadline else "number DESC"
        if self.limit is not None:
            values.append(min(self.limit, _MOST))
        return f"{where} ORDER BY {order}{'' if self.limit is None else ' LIMIT ?'}", values


def _marks(values: set[str]) -> str:
    return ", ".join("?" * len(values))


def _moment(text: str) -> str:
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC).isoformat(timespec="milliseconds")
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(
            f"{quoted(text)} is neither a day nor a time", hint="write 2027-01-31 or 2027-01-31T12:00+01:00"
        ) from error
