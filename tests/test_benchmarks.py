"""The benchmarks can be run, and the page about them says what was measured."""

from __future__ import annotations

import importlib

import pytest

from benchmarks import run


@pytest.mark.parametrize("name", run.BENCHMARKS)
def test_every_benchmark_can_be_imported(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.bench_{name}").main)


def test_performance_page_is_made_of_the_results() -> None:
    assert run.PAGE.read_text() == run.page(list(run.known().values()))


def test_every_kept_section_says_where_and_when_it_was_measured() -> None:
    for name, made in run.known().items():
        assert made["machine"]["date"], name
        assert "fedforget" in made["machine"]["versions"], name


def test_missed_target_is_named_on_the_page() -> None:
    figure = {"name": "a round", "value": 3.0, "unit": "s", "low": None, "high": None, "at_most": 2.0, "at_least": None,
              "note": "", "met": False}  # fmt: skip
    made = {"name": "laws", "title": "T", "how": "H", "figures": [figure], "load": [0, 0],
            "machine": dict.fromkeys(("date", "processor", "memory", "disk", "system", "versions"), "x")}  # fmt: skip
    assert "Missed: a round." in run.page([made])
    assert "≤ 2.00: MISSED" in run.page([made])
