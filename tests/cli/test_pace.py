"""How fast it goes and how long it will take: from what was seen, wherever it began."""

from __future__ import annotations

from fedforget.cli.progress import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rate_and_time_left_count_from_the_first_report() -> None:
    clock = Clock()
    pace = Pace("round", 1000, clock)
    assert pace.text() == ""
    pace.reach(400)
    assert pace.text() == ""
    clock.now += 10
    pace.reach(420)
    assert pace.text(", ") == ", 2 rounds/s, 4:50 left"


def test_slow_rate_is_in_seconds_per_unit_and_long_time_in_hours() -> None:
    clock = Clock()
    pace = Pace("round", 2000, clock)
    pace.reach(0)
    clock.now += 8
    pace.reach(2)
    assert pace.text() == "4 s/round, 2:13:12 left"


def test_a_recomputation_starts_the_count_again_and_an_unknown_total_has_no_end() -> None:
    clock = Clock()
    pace = Pace("order", None, clock)
    pace.reach(50)
    clock.now += 1
    pace.reach(60)
    pace.reach(10)
    assert pace.text() == ""
    clock.now += 2
    pace.reach(20)
    assert pace.text() == "5 orders/s"
