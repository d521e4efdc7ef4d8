"""Estimates of the duration of a training, printed before it starts."""

from __future__ import annotations

from fedforget.experiments.cells import Choice
from fedforget.experiments.problems import Training
from fedforget.session.workforce import INLINE

_STEP = {"digits": 4e-4}  # seconds of one local step of one client on one core
_CNN_STEP = 0.018
_MEASURING = 0.5  # seconds to measure a model of the CNN on 2,000 images


def seconds_of(training: Training, rounds: int, choice: Choice) -> float:
    """Return a rough estimate for computing and evaluating this many rounds."""
    plan = training.plan
    step = _STEP.get(training.dataset, _CNN_STEP)
    measuring = 0.01 if training.dataset in _STEP else _MEASURING
    cores = 1 if choice.workforce.federation == INLINE else 2
    return rounds * (plan.clients_per_round * plan.local_steps * step + measuring) / cores
