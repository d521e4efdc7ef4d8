"""Figure 8: requests that arrive again and again, at rounds 20, 40 and 60, while methods are still recovering."""

from __future__ import annotations

from collections.abc import Iterator

from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.comparison import comparison_cells
from fedforget.experiments.problems import datasets_of, halved, training_of

NAME = "streaming"
DATASETS = ("mnist", "femnist")


def cells(choice: Choice) -> Iterator[Cell]:
    for dataset in datasets_of(choice, DATASETS):
        training = halved(training_of(dataset), choice.scale)
        training = training.with_plan(rounds=training.streaming_horizon)
        yield from comparison_cells(NAME, training, training.streaming_rounds, choice.seeds, choice)
