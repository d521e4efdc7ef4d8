"""The order of receipt is the order in which requests were handed in, whatever clocks, ids and crashes do."""

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
from fedforget.requests.inbox import Inbox
from fedforget.requests.lifecycle import Submission

_fork = multiprocessing.get_context("fork")


def submission(identifier: str, received: str = "2027-01-01T00:00:00.000+00:00") -> Submission:
    return replace(Submission.of((Request(1),), "unknown"), ids=(identifier,), received=received)


def order(path: Path) -> list[str]:
    return [found.ids[0] for _, found in Inbox(path).submissions()]


def test_submissions_of_one_millisecond_keep_their_order(tmp_path: Path) -> None:
    left = [f"r-{(7919 * number) % 997:016x}" for number in range(30)]
    assert left != sorted(left)
    for identifier in left:
        Inbox(tmp_path).leave(submission(identifier))
    assert order(tmp_path) == left


def test_a_clock_that_is_set_back_does_not_change_the_order(tmp_path: Path) -> None:
    for hour in range(9, 0, -1):
        Inbox(tmp_path).leave(submission(f"r-{hour}", f"2027-01-01T0{hour}:00:00.000+00:00"))
    assert order(tmp_path) == [f"r-{hour}" for hour in range(9, 0, -1)]


def test_taking_files_away_reorders_nothing(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for identifier in ("r-9", "r-8", "r-7"):
        inbox.leave(submission(identifier))
    for place, left in ((2, ["r-9", "r-8", "r-6"]), (0, ["r-8", "r-6", "r-5"]), (1, ["r-8", "r-5", "r-4"])):
        inbox.take_away(inbox.submissions()[place][0])
        inbox.leave(submission(left[-1]))
        assert order(tmp_path) == left


def test_a_listing_that_misses_an_earlier_file_takes_in_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is not listed in one moment: the first listing here has passed the place of what comes next."""
    inbox, real = Inbox(tmp_path), Inbox._names
    inbox.leave(submission("r-3"))
    listings = [0]

    def files_and_meanwhile(self: Inbox) -> list[str]:
        listings[0] += 1
        shown = real(self)
        if listings[0] == 1:
            monkeypatch.setattr(Inbox, "_names", real)
            inbox.leave(submission("r-2"))
            inbox.leave(submission("r-1"))
            shown += [name for name in real(self) if "r-1" in name]
        return shown

    monkeypatch.setattr(Inbox, "_names", files_and_meanwhile)
    assert order(tmp_path) == ["r-3", "r-2", "r-1"]


def _submit(path: Path, name: int, count: int, told: Any) -> None:
    for number in range(count):
        identifier = f"r-{os.urandom(8).hex()}"
        begun = time.monotonic()
        Inbox(path).leave(submission(identifier))
        told.put((begun, time.monotonic(), identifier, name, number))


def test_submissions_of_processes_at_once_stand_in_the_order_in_which_they_ended(tmp_path: Path) -> None:
    told = _fork.SimpleQueue()
    processes = [_fork.Process(target=_submit, args=(tmp_path, name, 25, told)) for name in range(4)]
    for process in processes:
        process.start()
    moments = [told.get() for _ in range(100)]
    for process in processes:
        process.join()
    place = {identifier: number for number, identifier in enumerate(order(tmp_path))}
    assert len(place) == 100
    assert all(
        place[first] < place[second]
        for _, ended, first, _, _ in moments
        for begun, _, second, _, _ in moments
        if ended < begun
    )


def _killed_at(touch: int, act: Callable[[], None]) -> bool:
    """Run it in a child that ends before its n-th touch of the disk; returns whether it got so far."""
    child = os.fork()
    if child == 0:
        seen = [0]

        def counted(real: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                seen[0] += 1
                if seen[0] == touch:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            return call

        for name in ("fsync", "replace", "rename", "unlink", "mkdir", "open", "link"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_kill_at_any_moment_leaves_whole_submissions_in_order(tmp_path: Path) -> None:
    touch, killed, run = 0, True, tmp_path
    while killed:
        touch += 1
        run = tmp_path / str(touch)
        run.mkdir()
        Inbox(run).leave(submission("r-9"))
        killed = _killed_at(touch, lambda run=run: Inbox(run).leave(submission("r-8")))  # type: ignore[misc]
        Inbox(run).leave(submission("r-7"))
        assert order(run) in (["r-9", "r-8", "r-7"], ["r-9", "r-7"])
        Inbox(run).clean()
        assert not list(run.rglob("*" + files.TEMPORARY))
    assert order(run) == ["r-9", "r-8", "r-7"]
    assert touch > 5
