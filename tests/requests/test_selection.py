"""Listing requests: by state, by time, the last ones, and those with the next deadlines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from fedforget import Request, Run
from fedforget.errors import InvalidInput
from fedforget.requests.selection import OPEN, Selection
from fedforget.store import run_directory
from tests.cli.commandline import call, good_json
from tests.requests.world import opened


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return opened(tmp_path / "run")


def listed(run: Run, **chosen: Any) -> list[str]:
    return [receipt.id for receipt in run.receipts(**chosen)]


def defer(run: Run, *clients: int, days: Sequence[int] = ()) -> list[str]:
    moments: list[str | None] = [(datetime.now(UTC) + timedelta(days=each)).isoformat() for each in days]
    return [
        run.forget(Request(client), defer=True, deadline=moment)[0].id
        for client, moment in zip_longest(clients, moments)
    ]


def test_requests_are_listed_by_state_in_the_order_of_receipt(run: Run) -> None:
    first, second, third = defer(run, 0, 1, 2)
    run.cancel(second)
    purged = run.forget(Request(4))[0].id
    assert listed(run) == [first, second, third, purged]
    assert listed(run, states=["open"]) == listed(run, states=["accepted"]) == [first, third]
    assert listed(run, states=["purged", "cancelled"]) == [second, purged]
    assert listed(run, states=["removed"]) == []
    assert listed(run, states=["open"], limit=1) == [third]
    assert listed(run, limit=2) == [third, purged]


def test_requests_of_a_batch_at_work_are_in_its_state(run: Run) -> None:
    run.train()
    waiting = defer(run, 0)
    seen = list[tuple[list[str], list[str], list[str]]]()

    def look(*_: object) -> None:
        seen.append(tuple(listed(run, states=[each]) for each in ("removed", "accepted", OPEN)))  # type: ignore[arg-type]

    [receipt] = run.forget(Request(4), on_round=look)
    assert seen
    assert set(map(repr, seen)) == {repr(([receipt.id], waiting, [*waiting, receipt.id]))}


def test_requests_are_listed_since_a_time_in_any_zone(run: Run) -> None:
    before = defer(run, 0, 1)
    [moment] = [receipt.received for receipt in run.receipts() if receipt.id == before[1]]
    other = datetime.fromisoformat(moment).astimezone().isoformat()
    assert listed(run, since=moment) == listed(run, since=other) == [before[1]]
    assert listed(run, since=moment[:10]) == before
    assert listed(run, since="2999-01-01") == []


def test_next_deadlines_come_first_when_there_are_more(run: Run) -> None:
    late, soon, sooner = defer(run, 0, 1, 2, days=(9, 5, 2))
    with run_directory.reading(run.path) as found:
        chosen = found.record.book.chosen(Selection((OPEN,), limit=2, by_deadline=True))
    assert [receipt.id for receipt in chosen] == [soon, sooner]
    assert late not in [receipt.id for receipt in chosen]


@pytest.mark.parametrize("limit", [2**63, 10**30])
def test_limit_beyond_any_number_of_requests_lists_all(run: Run, limit: int) -> None:
    assert listed(run, limit=limit) == []
    assert listed(run, states=["open"], limit=limit) == []


@pytest.mark.parametrize(
    "chosen", [{"states": ["lost"]}, {"since": "yesterday"}, {"since": "0001-01-01T00:00+14:00"}, {"limit": 0}]
)
def test_other_selections_are_refused(run: Run, chosen: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        run.receipts(**chosen)


def test_command_lists_what_is_chosen_and_names_no_target(run: Run) -> None:
    first, second = defer(run, 0, 1)
    run.cancel(first)
    shown = good_json("requests", run.path, "--state", "open", "--state", "cancelled", "--limit", "1")["receipts"]
    assert [each["id"] for each in shown] == [second]
    assert not {"client", "sample"} & shown[0].keys()
    assert "no such requests" in call("requests", run.path, "--state", "purged").out
    assert call("requests", run.path, "--state", "lost").code == 3
