"""Create a run, or find that the same arguments have created it before."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.ports import State
from fedforget.algorithm.seeds import SeedSource
from fedforget.data.federated import FederatedData
from fedforget.disk.files import storage_errors
from fedforget.errors import InvalidInput, PlanRefused
from fedforget.session.engine import Model
from fedforget.store import hints, run_directory
from fedforget.store.contacts import EnrolledClient
from fedforget.store.creation import NewRun, create
from fedforget.store.new_clients import LocalNewClients, NewClients, RemoteNewClients
from fedforget.store.plan_file import PlanFile
from fedforget.store.run_directory import OpenRun
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.identity import parts_of
from fedforget.training.weights import float_type, weights_of


def require_no_file(path: Path) -> None:
    """Refuse a file where the directory of a run should be."""
    with storage_errors(path):
        if path.exists() and not path.is_dir():
            raise InvalidInput(f"{path} is a file", hint="give a directory for the run")


def create_run(
    path: Path, wanted: PlanFile, model: Model, data: FederatedData, seeds: SeedSource, without: Sequence[Request]
) -> None:
    """Create a run on the data without what is left out. The plan file lacks only the commitment to the seed."""
    members = data.members(without)
    if not members:
        raise PlanRefused("the federation has no clients", hint="give it at least one client with one sample")
    _warn_of_float_targets(model, data, members)

    def clients() -> LocalNewClients:
        drawn = {client: seeds.client(client) for client in members}
        return LocalNewClients(drawn, data.contents_of(members), data.is_in_memory)

    _create(path, wanted, model, seeds, clients)


def create_remote_run(
    path: Path, wanted: PlanFile, model: Model, seeds: SeedSource, enrolments: Sequence[EnrolledClient]
) -> None:
    """Create a run of clients on other machines. The plan file lacks only the commitment to the server's seed."""
    if not enrolments:
        raise PlanRefused("the federation has no clients", hint="give the enrolment file of at least one")
    _create(path, wanted, model, seeds, lambda: RemoteNewClients(enrolments))


def _create(path: Path, wanted: PlanFile, model: Model, seeds: SeedSource, clients: Callable[[], NewClients]) -> None:
    server_seed = seeds.server()
    with fixed_arithmetic(float_type(model.module)):  # the data are read as in training, the initial model as it is
        new = NewRun(
            file=replace(wanted, server_commitment=server_seed.commitment),
            server_seed=server_seed,
            seed_origin=seeds.origin,
            tree_key=seeds.tree_key(),
            clients=clients(),
            initial=State(weights_of(model.module)),
            learner=parts_of(model.module, model.loss),
        )
        create(path, new)


def _warn_of_float_targets(model: Model, data: FederatedData, members: Mapping[Id, IdSet]) -> None:
    client, ids = next(iter(members.items()))
    _, target = data.sample(client, ids.ids[0])
    if model.loss is None and target.dtype.kind == "f":
        warnings.warn(
            "the targets are floats, which the default loss (cross-entropy) reads as class probabilities: "
            "give whole numbers for classes, or a loss=… for anything else",
            stacklevel=4,
        )


def require_same(path: Path, wanted: PlanFile, seeds: SeedSource, without: Sequence[Request]) -> None:
    """Refuse another plan, seed or roster. The same arguments again resume the run."""
    with run_directory.reading(path, only_idle=False) as run:
        _require_same(run, wanted, seeds, without)


def _require_same(run: OpenRun, wanted: PlanFile, seeds: SeedSource, without: Sequence[Request]) -> None:
    seed = []
    if seeds.origin == "given" and seeds.server().commitment != run.file.server_commitment:
        seed.append("it was made with another seed, or new seeds were drawn since")
    require_same_plan(run, wanted, seed, instead=f"go on with {hints.train(run.path)}, without a plan; or ")
    for request in without:
        if run.has(request):
            raise PlanRefused(
                f"{run.path} was trained with {request}",
                hint=f"use {hints.forget(run.path)} instead of leaving it out",
            )


def require_same_plan(run: OpenRun, wanted: PlanFile, others: Sequence[str] = (), *, instead: str = "") -> None:
    """Refuse another plan. ``others``: other differences. ``instead``: what the caller can do with this run."""
    differences = [*run.file.differences(wanted), *others]
    if differences:
        raise PlanRefused(
            f"{run.path} is a run with another plan: {'; '.join(differences)}",
            hint=f"{instead}choose another directory",
        )
