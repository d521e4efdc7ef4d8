"""The trainings of the experiments: data, plan, requests and scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.algorithm.seeds import SeedSource
from fedforget.algorithm.streams import numpy_stream
from fedforget.baselines.fats import Fats
from fedforget.baselines.fedavg import Averaging
from fedforget.baselines.method import Method, Problem
from fedforget.data.check import is_found
from fedforget.data.client_data import Array
from fedforget.data.federated import FederatedData
from fedforget.data.federations import DataChoice, Federation, StoredFederation, chosen, model_settings
from fedforget.data.ownership import places_by
from fedforget.data.places import find
from fedforget.data.registry import DIGITS, Settings, dataset_of
from fedforget.errors import InvalidInput, quoted
from fedforget.experiments.cells import Choice
from fedforget.experiments.data_used import require_unchanged
from fedforget.experiments.presets import PRESETS
from fedforget.experiments.rows import SMALL, SMOKE
from fedforget.experiments.settings import SCHEDULES, STREAMING_ROUNDS
from fedforget.session.engine import problem_of
from fedforget.training.models import build_model, parameters_of_settings

WRITERS = "femnist-writers"


@dataclass(frozen=True, slots=True)
class Training:
    """One training: the plan up to the horizon, and the round and number of the requests."""

    dataset: str  # the name of a preset, or digits
    plan: Plan
    request_round: int
    requests: int
    streaming_horizon: int = 0
    streaming_rounds: tuple[int, ...] = STREAMING_ROUNDS

    def with_plan(self, **changes: int) -> Training:
        return replace(self, plan=replace(self.plan, **changes))  # type: ignore[arg-type]


# At every scale: K, b and E of the demonstration.
_DIGITS = Training(DIGITS, Plan(3, 4, 5, 50, LocalOptimizer(lr=0.3, momentum=0.5)), 30, 3, 60, (15, 30, 45))


def training_of(dataset: str, method: type[Method] = Fats) -> Training:
    """A dataset's training with the plan of its preset and the optimiser that was tuned for the method."""
    if dataset == DIGITS:
        return _DIGITS
    if dataset not in PRESETS:
        raise InvalidInput(f"unknown dataset {quoted(dataset)}", hint=f"use one of: {', '.join((*PRESETS, DIGITS))}")
    preset, schedule = PRESETS[dataset], SCHEDULES[dataset]
    optimizer = preset.tuned_for_fedavg if issubclass(method, Averaging) else preset.tuned
    plan = Plan(preset.clients_per_round, preset.batch_size, preset.local_steps, schedule.horizon, optimizer)
    return Training(dataset, plan, preset.rounds, schedule.requests, schedule.streaming_horizon)


def datasets_of(choice: Choice, names: tuple[str, ...]) -> list[str]:
    """The datasets of an experiment: the chosen ones, else its own; digits at ``smoke``.

    Raises DataMissing if one is missing, before anything is computed.
    """
    found = [name for name in choice.datasets if name in names or name == DIGITS]
    if not choice.datasets:
        found = [DIGITS] if choice.scale == SMOKE else list(names)
    for name in found:
        if name != DIGITS and choice.check_data:
            find(dataset_of(PRESETS[name].data), choice.data_dir)
    return found


def is_available(dataset: str, choice: Choice) -> bool:
    """Return whether the data of a dataset are present."""
    return dataset == DIGITS or is_found(PRESETS[dataset].data, choice.data_dir) is not None


def natural_sizes(dataset: str, choice: Choice) -> list[int]:
    """The sizes of a dataset's natural clients; none if its data are missing."""
    if not is_available(dataset, choice):
        return []
    return chosen(DataChoice(PRESETS[dataset].data, None, "natural", None, choice.data_dir), bytes(32)).sizes()


def federation_of(dataset: str, seed: bytes, choice: Choice) -> Federation:
    if dataset == DIGITS:
        return chosen(DataChoice(), seed)
    preset = PRESETS[dataset]
    found = chosen(DataChoice(preset.data, preset.clients, preset.partition, None, choice.data_dir), seed)
    if isinstance(found, StoredFederation):
        require_unchanged(found.source, choice)
    return found


def data_of(dataset: str) -> str | None:
    """The name of the files that a dataset of the experiments is read from; none for digits."""
    return None if dataset == DIGITS else PRESETS[dataset].data


def build_problem(training: Training, seed: int, choice: Choice) -> Problem:
    """Data, model and initial weights of a training; everything random is a function of the seed."""
    return _build(training, seed, choice, lambda settings, _: settings)


def build_linear_problem(training: Training, seed: int, choice: Choice) -> Problem:
    """Return the same training with a linear model."""

    def settings(usual: Settings, data: FederatedData) -> Settings:
        assert data.test is not None  # noqa: S101 (every built-in dataset has one)
        return {"name": "linear", "inputs": math.prod(data.test[0].shape[1:]), "classes": usual["classes"]}

    return _build(training, seed, choice, settings)


def _build(
    training: Training, seed: int, choice: Choice, settings: Callable[[Settings, FederatedData], Settings]
) -> Problem:
    root = _root(training.dataset, seed)
    source = SeedSource(root)
    federation = federation_of(training.dataset, source.partition(), choice)
    data = federation.data(federation.owners())
    chosen_model = settings(model_settings(federation.models, None), data)
    for_nodes = (
        problem_of(chosen_model, federation.settings(), choice.data_dir) if choice.workforce.uses_nodes else None
    )
    module = build_model(chosen_model, source.initial_model())
    return Problem.of(training.plan, module, data, root, choice.workforce, for_nodes)


def _root(dataset: str, seed: int) -> str:
    return f"reproduce/{dataset}/{seed}"


def training_samples(dataset: str, seed: int, choice: Choice) -> tuple[Array, Array]:
    """Every training sample that a client holds, once, in the order of the dataset."""
    federation = federation_of(dataset, SeedSource(_root(dataset, seed)).partition(), choice)
    owners = federation.owners()
    if isinstance(federation, StoredFederation):
        places = places_by(federation.source, federation.partition.kind)
        rows = np.unique(np.concatenate([places(client, np.asarray(ids)) for client, ids in owners.items()]))
        return federation.source.train.batch(rows)
    data = federation.data(owners)
    held = sorted((sample, client) for client, ids in owners.items() for sample in ids)
    x, y = zip(*(data.sample(client, sample) for sample, client in held), strict=True)
    return np.stack(x), np.stack(y)


def bytes_of_rounds(training: Training, rounds: int) -> int:
    """Return the size of this many states of a training."""
    models = federation_models(training.dataset)
    return 4 * rounds * parameters_of_settings(model_settings(models, None))


def federation_models(dataset: str) -> tuple[Settings, ...]:
    return chosen(DataChoice(), bytes(32)).models if dataset == DIGITS else dataset_of(PRESETS[dataset].data).models


def choose_requests(problem: Problem, level: str, count: int, seed: int) -> list[Request]:
    """Clients, or samples of different clients, chosen without looking at the draws."""
    stream = numpy_stream(SeedSource(f"requests/{level}/{seed}").partition())
    members = problem.data.members()
    clients = [list(members)[place] for place in stream.choice(len(members), count, replace=False)]
    if level == "client":
        return [Request(client) for client in clients]
    return [Request(client, members[client].ids[int(stream.integers(len(members[client])))]) for client in clients]


def leaving_clients(requests: Sequence[Request]) -> set[Id]:
    """The clients that requests remove as a whole."""
    return {request.client for request in requests if request.sample is None}


def halved(training: Training, scale: str) -> Training:
    """Return the training at a scale: ``small`` has half the rounds, which halves ρ."""
    if scale != SMALL:
        return training
    plan = replace(training.plan, rounds=max(2, training.plan.rounds // 2))
    return replace(
        training,
        plan=plan,
        request_round=max(1, training.request_round // 2),
        streaming_horizon=training.streaming_horizon // 2,
        streaming_rounds=tuple(round_ // 2 for round_ in training.streaming_rounds),
    )
