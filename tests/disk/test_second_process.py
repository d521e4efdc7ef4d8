"""Two processes make a series together: the result is that of one, also if the second dies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fedforget.disk.second_process import can_help, made

NUMBERS = range(7)


def data(number: int) -> bytes:
    return bytes([number]) * (number * 100_000)  # more than a pipe holds, and nothing


@pytest.mark.parametrize("helped", [True, False])
def test_series_is_that_of_one_process_in_its_order(helped: bool) -> None:
    assert list(made(data, NUMBERS, helped=helped)) == [(number, data(number)) for number in NUMBERS]


def test_second_process_makes_every_other_one(tmp_path: Path) -> None:
    def noted(number: int) -> bytes:
        (tmp_path / f"{number} {os.getpid()}").touch()
        return data(number)

    list(made(noted, NUMBERS, helped=True))
    here = {int(each.name.split()[0]) for each in tmp_path.iterdir() if each.name.endswith(f" {os.getpid()}")}
    assert here == {0, 2, 4, 6}
    assert len(list(tmp_path.iterdir())) == len(NUMBERS)


def dying(number: int, parent: int) -> bytes:
    if os.getpid() != parent and number >= 3:
        os._exit(1)
    return data(number)


def failing(number: int, parent: int) -> bytes:
    if os.getpid() != parent and number >= 3:
        raise ValueError("in the second process")
    return data(number)


@pytest.mark.parametrize("act", [dying, failing])
def test_first_process_takes_over_from_a_dead_second_one(act: Callable[[int, int], bytes]) -> None:
    parent = os.getpid()
    found = list(made(lambda number: act(number, parent), NUMBERS, helped=True))
    assert found == [(number, data(number)) for number in NUMBERS]


def test_error_in_the_first_process_ends_the_second(tmp_path: Path) -> None:
    parent = os.getpid()

    def make(number: int) -> bytes:
        if os.getpid() != parent:
            (tmp_path / str(os.getpid())).touch()
        elif number == 2:
            raise ValueError("here")
        return data(number)

    with pytest.raises(ValueError, match="here"):
        list(made(make, NUMBERS, helped=True))
    [second] = (int(each.name) for each in tmp_path.iterdir())
    with pytest.raises(ChildProcessError):  # it has ended, and was waited for
        os.waitpid(second, os.WNOHANG)


def test_no_process_is_forked_beside_other_threads() -> None:
    found, go = list[bool](), threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    found.append(can_help())
    go.set()
    thread.join()
    assert found == [False]
