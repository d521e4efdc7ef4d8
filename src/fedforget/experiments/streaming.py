"""Figure 8: requests that arrive again and again, at rounds 20, 40 and 60, while methods are still recovering."""

from __future__ import annotations

from collections.abc import Iterator

from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.comparison import comparison_cells
from fedforget.experiments.problems import WRITERS, Training

NAME = "streaming"
DATASETS = ("mnist", "femnist", WRITERS)


def cells(choice: Choice) -> Iterator[Cell]:
    return comparison_cells(NAME, DATASETS, choice, scheduled)


def scheduled(training: Training) -> tuple[Training, tuple[int, ...]]:
    return training.with_plan(rounds=training.streaming_horizon), training.streaming_rounds
