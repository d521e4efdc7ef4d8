"""The inbox lists submissions in the order in which they arrived, independent of clocks, ids and crashes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedforget import Request
from fedforget.disk import files
from fedforget.errors import InvalidInput, RunDamaged, StorageFailed
from fedforget.requests import inbox as inbox_module
from fedforget.requests.inbox import Inbox
from fedforget.requests.lifecycle import Submission

_fork = multiprocessing.get_context("fork")


def submission(identifier: str, received: str = "2027-01-01T00:00:00.000+00:00") -> Submission:
    return replace(Submission.of((Request(1),), "unknown"), ids=(identifier,), received=received)


def order(path: Path) -> list[str]:
    return [found.ids[0] for _, found in Inbox(path).submissions()]


def test_submissions_of_the_same_millisecond_keep_their_order(tmp_path: Path) -> None:
    left = [f"r-{(7919 * number) % 997:016x}" for number in range(30)]
    assert left != sorted(left)
    for identifier in left:
        Inbox(tmp_path).leave(submission(identifier))
    assert order(tmp_path) == left


def test_clock_set_back_does_not_change_the_order(tmp_path: Path) -> None:
    for hour in range(9, 0, -1):
        Inbox(tmp_path).leave(submission(f"r-{hour}", f"2027-01-01T0{hour}:00:00.000+00:00"))
    assert order(tmp_path) == [f"r-{hour}" for hour in range(9, 0, -1)]


def test_deleting_submissions_does_not_reorder_the_rest(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for identifier in ("r-9", "r-8", "r-7"):
        inbox.leave(submission(identifier))
    for place, left in ((2, ["r-9", "r-8", "r-6"]), (0, ["r-8", "r-6", "r-5"]), (1, ["r-8", "r-5", "r-4"])):
        inbox.take_away(inbox.submissions()[place][0])
        inbox.leave(submission(left[-1]))
        assert order(tmp_path) == left


def test_submissions_are_in_order_when_a_listing_misses_an_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing a directory is not atomic: here the first listing shows the third file and misses the second."""
    inbox, real = Inbox(tmp_path), Inbox._names
    inbox.leave(submission("r-3"))
    listings = [0]

    def racing_listing(self: Inbox) -> list[str]:
        listings[0] += 1
        shown = real(self)
        if listings[0] == 1:
            monkeypatch.setattr(Inbox, "_names", real)
            inbox.leave(submission("r-2"))
            inbox.leave(submission("r-1"))
            shown += [name for name in real(self) if "r-1" in name]
        return shown

    monkeypatch.setattr(Inbox, "_names", racing_listing)
    assert order(tmp_path) == ["r-3", "r-2", "r-1"]


@pytest.mark.parametrize("planted", ["9" * 18, "9" * 19, "1" + "0" * 12, "x"])
def test_planted_name_does_not_change_the_order(tmp_path: Path, planted: str) -> None:
    """18 nines once made the next number 19 digits long, which counted as none."""
    inbox, strange = Inbox(tmp_path), tmp_path / "inbox" / f"{planted}-r-0.json"
    inbox.leave(submission("r-9"))
    (tmp_path / "inbox" / next(iter(inbox.names()))).rename(strange)
    for identifier in ("r-8", "r-7", "r-6"):
        inbox.leave(submission(identifier))
    with pytest.raises(RunDamaged, match=planted):
        inbox.submissions()
    strange.unlink()
    assert order(tmp_path) == ["r-8", "r-7", "r-6"]


def test_no_submission_follows_the_last_number(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.leave(submission("r-9"))
    last = f"{'9' * 12}-r-9.json"
    (tmp_path / "inbox" / next(iter(inbox.names()))).rename(tmp_path / "inbox" / last)
    with pytest.raises(RunDamaged, match=last):
        inbox.leave(submission("r-8"))
    assert order(tmp_path) == ["r-9"]


def _submit(path: Path, name: int, count: int, queue: Any) -> None:
    for number in range(count):
        identifier = f"r-{os.urandom(8).hex()}"
        begun = time.monotonic()
        Inbox(path).leave(submission(identifier))
        queue.put((begun, time.monotonic(), identifier, name, number))


def test_submission_that_ends_before_another_begins_is_listed_before_it(tmp_path: Path) -> None:
    queue = _fork.SimpleQueue()
    processes = [_fork.Process(target=_submit, args=(tmp_path, name, 25, queue)) for name in range(4)]
    for process in processes:
        process.start()
    times = [queue.get() for _ in range(100)]
    for process in processes:
        process.join()
    place = {identifier: number for number, identifier in enumerate(order(tmp_path))}
    assert len(place) == 100
    assert all(
        place[first] < place[second]
        for _, ended, first, _, _ in times
        for begun, _, second, _, _ in times
        if ended < begun
    )


def _killed_at(call: int, act: Callable[[], object]) -> bool:
    """Run ``act`` in a child that is killed before its n-th disk call; return whether it made that many."""
    child = os.fork()
    if child == 0:
        seen = [0]

        def counted(real: Any) -> Any:
            def wrapped(*arguments: Any, **options: Any) -> Any:
                seen[0] += 1
                if seen[0] == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            return wrapped

        for name in ("fsync", "replace", "rename", "unlink", "mkdir", "open", "link"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_kill_at_any_disk_call_leaves_whole_submissions_in_order(tmp_path: Path) -> None:
    call, killed, run = 0, True, tmp_path
    while killed:
        call += 1
        run = tmp_path / str(call)
        run.mkdir()
        Inbox(run).leave(submission("r-9"))
        killed = _killed_at(call, lambda run=run: Inbox(run).leave(submission("r-8")))  # type: ignore[misc]
        Inbox(run).leave(submission("r-7"))
        assert order(run) in (["r-9", "r-8", "r-7"], ["r-9", "r-7"])
        Inbox(run).clean()
        assert not list(run.rglob("*" + files.TEMPORARY))
    assert order(run) == ["r-9", "r-8", "r-7"]
    assert call > 5


@pytest.mark.parametrize(("failures", "left"), [(0, True), (19, True), (20, False)])
def test_submission_is_retried_twenty_times_while_the_inbox_is_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, left: bool
) -> None:
    """The process at work removes the empty directory between two calls. A submission is never lost silently."""
    calls, real = [0], files.write_durably

    def write_durably(path: Path, data: bytes, **how: Any) -> None:
        calls[0] += 1
        if calls[0] <= failures:
            raise StorageFailed("gone", hint="") from FileNotFoundError()
        real(path, data, **how)

    monkeypatch.setattr(inbox_module, "write_durably", write_durably)
    if left:
        Inbox(tmp_path).leave(submission("r-1"))
    else:
        with pytest.raises(StorageFailed):
            Inbox(tmp_path).leave(submission("r-1"))
    assert calls[0] == min(failures + 1, 20)
    assert order(tmp_path) == (["r-1"] if left else [])


def test_other_failure_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]

    def write_durably(path: Path, data: bytes, **how: Any) -> None:
        calls[0] += 1
        raise StorageFailed("full", hint="") from OSError(28, "full")

    monkeypatch.setattr(inbox_module, "write_durably", write_durably)
    with pytest.raises(StorageFailed):
        Inbox(tmp_path).leave(submission("r-1"))
    assert calls[0] == 1


def test_inbox_takes_so_many_files_and_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(tmp_path)
    inbox.leave(submission("r-1"))
    size = sum(path.stat().st_size for path in (tmp_path / "inbox").iterdir())
    monkeypatch.setattr(inbox_module, "_MOST", 2)
    inbox.leave(submission("r-2"))
    with pytest.raises(InvalidInput, match="no room"):
        inbox.leave(submission("r-3"))
    monkeypatch.setattr(inbox_module, "_MOST", 10)
    monkeypatch.setattr(inbox_module, "_LARGEST", 3 * size)
    inbox.leave(submission("r-3"))
    with pytest.raises(InvalidInput, match="no room"):
        inbox.leave(submission("r-4"))
    assert order(tmp_path) == ["r-1", "r-2", "r-3"]
