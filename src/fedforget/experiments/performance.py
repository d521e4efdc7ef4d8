"""Figures 1 and 5: accuracy through training, requests at the published round, and the way back.

With exact unlearning the final accuracy is that of retraining by construction, and the drop measures only how far the
method went back. What is compared is how much it has to compute again.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.comparison import comparison_cells
from fedforget.experiments.problems import WRITERS

NAME = "performance"
DATASETS = ("mnist", "fashion-mnist", "femnist", WRITERS)


def cells(choice: Choice) -> Iterator[Cell]:
    return comparison_cells(NAME, DATASETS, choice, lambda training: (training, (training.request_round,)))
