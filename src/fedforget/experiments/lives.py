"""The life of a method: training, requests, training again. Its model is evaluated after every computed round."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.baselines.method import Cost, Method, Problem
from fedforget.errors import InvalidInput
from fedforget.federation.background import BackgroundJob
from fedforget.session.workforce import INLINE
from fedforget.training.evaluation import TestSet
from fedforget.training.weights import Weights

FEW = 2000  # test images for every round; the tabulated rounds use the whole set
LAST = 5  # rounds whose mean accuracy counts as the accuracy before a request
WITHIN = 0.01  # below the accuracy before: counts as recovered
_BEAT = 10  # rounds


class Meter:
    """Evaluates models on a fixed, evenly spread part of the test set, and on all of it.

    ``leaving``: clients that will be erased. Their test samples are left out from the beginning, so that accuracy
    before and after is measured on the same samples.
    """

    def __init__(self, problem: Problem, leaving: Collection[Id] = ()) -> None:
        if problem.data.test is None:
            raise InvalidInput("the data have no test set", hint="give FederatedData(..., test=(x, y))")
        x, y = problem.data.test
        if leaving and problem.data.test_owners is not None:
            stays = np.array([owner not in leaving for owner in problem.data.test_owners])
            x, y = x[stays], y[stays]
        module, places = problem.model.module, np.linspace(0, len(y) - 1, min(FEW, len(y))).astype(int)
        self._problem = problem
        self._all, self._few = TestSet(module, (x, y)), TestSet(module, (x[places], y[places]))

    def whole(self, weights: Weights) -> float:
        """Accuracy on the whole test set."""
        with self._problem.engine().computing():
            correct, count = self._all.count_correct(weights)
        return correct / count

    def few(self, weights: Weights) -> float:
        with self._problem.engine().computing():
            correct, count = self._few.count_correct(weights)
        return correct / count

    @contextlib.contextmanager
    def job(self) -> Iterator[BackgroundJob | None]:
        """Yield a background process beside the pool; None if this process trains."""
        workforce = self._problem.workforce
        if workforce.federation == INLINE:
            yield None
            return
        with contextlib.closing(BackgroundJob(self._few.count_correct, _one_thread, workforce.patience)) as job:
            yield job


def _one_thread() -> None:
    torch.set_num_threads(1)


@dataclass(slots=True)
class Moment:
    """A model during training: its round, and the number of rounds computed until then."""

    rounds_computed: int
    round: int
    phase: str  # "learned", "removed" (just after a request) or "learned again"
    accuracy: float = 0.0


@dataclass(frozen=True, slots=True)
class Unlearning:
    """The effect of requests: the round before, the round after the removal, and the cost to return to the former."""

    at: int  # rounds computed when they arrived
    goal: int
    left: int
    requests: int
    cost: Cost


@dataclass(slots=True)
class Life:
    """A method with its history, and the models that the tables need."""

    method: Method
    meter: Meter
    computed: int = 0
    moments: list[Moment] = field(default_factory=list)
    unlearnings: list[Unlearning] = field(default_factory=list)
    lowest: tuple[float, Weights] | None = None  # since the first request
    heartbeat: Callable[[str], None] | None = None

    def learn(self, *, computed: int | None = None, until: int | None = None) -> Cost:
        """Train until this many rounds are computed, or until a round is reached; at most to the plan's last round."""
        goal = self.method.problem.plan.rounds if until is None else until
        if computed is not None:
            goal = min(goal, self.method.rounds_done + computed - self.computed)
        if goal <= self.method.rounds_done:
            return Cost()
        waiting: dict[int, tuple[Moment, Weights]] = {}
        with self.meter.job() as job:

            def on_round(round_: int, weights: Weights) -> None:
                self.computed += 1
                moment = Moment(self.computed, round_, "learned again" if self.unlearnings else "learned")
                self.moments.append(moment)
                if self.heartbeat is not None and self.computed % _BEAT == 0:
                    self.heartbeat(f"{self.method.name}: {self.computed} rounds computed, at round {round_}")
                if job is None:
                    self._measured(moment, weights, self.meter.few(weights))
                    return
                waiting[self.computed] = moment, weights
                self._collect(job.start(self.computed, weights), waiting)

            cost = self.method.learn(goal, on_round)
            if job is not None:
                self._collect(job.finish(), waiting)
        return cost

    def _collect(self, results: list[tuple[int, tuple[int, int]]], waiting: dict[int, tuple[Moment, Weights]]) -> None:
        for number, (correct, count) in results:
            moment, weights = waiting.pop(number)
            self._measured(moment, weights, correct / count)

    def _measured(self, moment: Moment, weights: Weights, accuracy: float) -> None:
        moment.accuracy = accuracy
        if self.unlearnings and (self.lowest is None or accuracy < self.lowest[0]):
            self.lowest = accuracy, weights

    def unlearn(self, requests: Sequence[Request], until_computed: int | None = None) -> Unlearning:
        """Remove the data, evaluate the model, and train back to the same round, or until the next requests."""
        goal, at = self.method.rounds_done, self.computed
        cost = self.method.remove(requests)
        left = self.method.rounds_done
        self.unlearnings.append(Unlearning(at, goal, left, len(requests), cost))
        moment = Moment(at, left, "removed")
        self.moments.append(moment)
        weights = self.method.state.model
        self._measured(moment, weights, self.meter.few(weights))
        cost += self.learn(until=goal, computed=until_computed)
        self.unlearnings[-1] = Unlearning(at, goal, left, len(requests), cost)
        return self.unlearnings[-1]

    def fork(self) -> Life:
        """Return a copy that continues independently."""
        return Life(self.method.fork(), self.meter, self.computed, list(self.moments), heartbeat=self.heartbeat)

    @property
    def before(self) -> float:
        """Return the mean accuracy of the last rounds before the first request."""
        learned = [moment.accuracy for moment in self.moments if moment.phase == "learned"]
        return float(np.mean(learned[-LAST:]))

    @property
    def drop(self) -> float | None:
        """Return how far accuracy fell below ``before``."""
        return None if self.lowest is None else self.before - self.lowest[0]

    @property
    def recovery(self) -> int | None:
        """Return the rounds computed until accuracy is within a point of ``before`` again; None: never."""
        if not self.unlearnings:
            return None
        first, goal = self.unlearnings[0].at, self.before - WITHIN
        after = [moment for moment in self.moments if moment.phase != "learned"]
        return next((moment.rounds_computed - first for moment in after if moment.accuracy >= goal), None)
