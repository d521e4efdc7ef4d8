"""Rounds that don't come out even: every step once, in order, and no worker idle for longer than a step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedforget.federation.schedule import Part, RoundSchedule, parts_of_round

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 17), st.integers(1, 12))


def played(tasks: int, workers: int, steps: int) -> tuple[float, dict[Part, tuple[float, float]]]:
    """When it all ends, and when each part ran, if workers take the next possible part and steps take one second."""
    schedule, left = RoundSchedule(tasks, workers, steps), len(parts_of_round(tasks, workers, steps))
    running: dict[int, Part] = {}
    when: dict[Part, tuple[float, float]] = {}
    now = 0.0
    while left:
        for worker in range(workers):
            if worker not in running and (part := schedule.take()) is not None:
                running[worker] = part
                when[part] = now, now + part.stop - part.start
        assert running, "all workers wait"
        now = min(when[part][1] for part in running.values())
        for worker, part in list(running.items()):
            if when[part][1] == now:
                del running[worker]
                schedule.done(part)
                left -= 1
    return now, when


@given(SIZES)
def test_workers_take_every_step_of_a_round_once_and_in_order(sizes: tuple[int, int, int]) -> None:
    tasks, workers, steps = sizes
    parts = parts_of_round(*sizes)
    done = {task: sorted((p.start, p.stop) for p in parts if p.task == task) for task in range(tasks)}
    for pieces in done.values():
        assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
        assert pieces[-1][1] == steps
        assert all(start < stop for start, stop in pieces)
    assert sum(len(pieces) - 1 for pieces in done.values()) <= workers - 1
    _, when = played(*sizes)
    for task, pieces in done.items():
        for first, second in pairwise(pieces):
            assert when[Part(task, *first)][1] <= when[Part(task, *second)][0]


@given(SIZES)
def test_a_round_ends_within_two_steps_of_an_even_division(sizes: tuple[int, int, int]) -> None:
    tasks, workers, steps = sizes
    end, _ = played(*sizes)
    assert max(tasks / workers, 1) * steps <= end + 1e-9
    assert end < max(tasks / workers, 1) * steps + 2


@pytest.mark.parametrize(("tasks", "workers"), [(4, 2), (1, 1), (7, 1), (2, 5), (3, 3), (64, 16)])
def test_tasks_that_divide_evenly_among_workers_are_not_cut(tasks: int, workers: int) -> None:
    assert parts_of_round(tasks, workers, 10) == [Part(task, 0, 10) for task in range(tasks)]


def test_two_workers_do_five_tasks_in_the_time_of_two_and_a_half() -> None:
    assert played(5, 2, 10)[0] == 25
