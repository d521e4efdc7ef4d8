"""The interface of a method: what it is given, what it does, and what that costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from fedforget.algorithm.forget import Request
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import State
from fedforget.data.federated import FederatedData
from fedforget.disk.files import digest
from fedforget.session.engine import Engine, Model
from fedforget.session.workforce import Workforce
from fedforget.store.model_files import encode
from fedforget.training.weights import Weights, weights_of

OnRound = Callable[[int, Weights], object]  # a true value stops learning after that round
_INLINE = Workforce()


@dataclass(frozen=True, slots=True)
class Problem:
    """What every method of a comparison is given: plan, data, model with its initial weights, and a seed."""

    plan: Plan
    model: Model
    initial: Weights
    data: FederatedData
    seed: int | str
    workforce: Workforce = _INLINE
    for_nodes: Mapping[str, Any] = field(default_factory=dict)  # what Flower's nodes build the model and data from

    @classmethod
    def of(
        cls,
        plan: Plan,
        module: object,
        data: FederatedData,
        seed: int | str,
        workforce: Workforce = _INLINE,
        for_nodes: Mapping[str, Any] | None = None,
    ) -> Problem:
        """A problem that starts from the weights that the module has now."""
        model = Model.of(module)
        return cls(plan, model, weights_of(model.module), data, seed, workforce, for_nodes or {})

    def engine(self, plan: Plan | None = None) -> Engine:
        return Engine(plan or self.plan, self.model, self.data, self.workforce, self.for_nodes)

    @property
    def model_bytes(self) -> int:
        return sum(array.nbytes for array in self.initial.values())

    def with_plan(self, plan: Plan) -> Problem:
        return replace(self, plan=plan)


@dataclass(frozen=True, slots=True)
class Cost:
    """What was computed and sent: rounds, time steps (E per round), and models up and down in bytes."""

    rounds: int = 0
    steps: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.rounds + other.rounds,
            self.steps + other.steps,
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
        )


class Method(ABC):
    """A method that learns and unlearns. A subclass writes ``learn``, ``remove`` and ``state``.

    ``without`` names data that the method never sees: training from scratch on what remains.
    """

    name: ClassVar[str]

    def __init__(self, problem: Problem, without: Sequence[Request] = ()) -> None:
        self.problem = problem
        self.gone = tuple(without)

    @property
    @abstractmethod
    def rounds_done(self) -> int: ...

    @property
    @abstractmethod
    def state(self) -> State:
        """The state after ``rounds_done`` rounds."""

    @abstractmethod
    def learn(self, until: int, on_round: OnRound | None = None) -> Cost:
        """Train up to round ``until``, or to the round after which ``on_round`` returns true."""

    @abstractmethod
    def remove(self, requests: Sequence[Request]) -> Cost:
        """Go back to a state without the data. ``rounds_done`` then says how many rounds are left of it."""

    def unlearn(self, requests: Sequence[Request], on_round: OnRound | None = None) -> Cost:
        """Remove the data and train again up to the round that was done when the requests came."""
        goal = self.rounds_done
        return self.remove(requests) + self.learn(goal, on_round)

    def fork(self) -> Method:
        """A second copy at the same point, which goes on independently. By default it learns the same again."""
        other = type(self)(self.problem, self.gone)
        other.learn(self.rounds_done)
        return other

    @property
    def model_digest(self) -> str:
        return digest_of(self.state)


def digest_of(state: State) -> str:
    """The digest that a run directory gives the same state."""
    return digest(encode(state))
