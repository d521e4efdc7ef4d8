"""Runs with a built-in dataset and model, which the commands can open from the plan file alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.seeds import SeedSource
from fedforget.data.federations import DataChoice, Federation, chosen, model_settings, recorded
from fedforget.data.registry import DIGITS, NAMES, dataset_of
from fedforget.errors import InvalidInput, RunDamaged
from fedforget.session.workforce import Workforce
from fedforget.store import run_directory
from fedforget.store.contacts import EnrolledClient
from fedforget.store.plan_file import NAME, PlanFile, Settings
from fedforget.store.run_directory import OpenRun

if TYPE_CHECKING:
    from fedforget.run import Run
    from fedforget.session.engine import Engine, Model
    from fedforget.session.node_work import Built

__all__ = ["DataChoice", "built_of", "engine_of", "open_run", "require_built_in", "sizes_of", "start_run"]

_INLINE = Workforce()


def sizes_of(choice: DataChoice, seed: int | None) -> list[int]:
    """Return the number of samples of each client of a dataset."""
    return chosen(choice, SeedSource(seed).partition()).sizes()


def model_bytes_of(data: str, name: str | None) -> int:
    """Return the size of a dataset's model (not of digits), without building it."""
    from fedforget.training.models import parameters_of_settings  # noqa: PLC0415 (torch)

    return 4 * parameters_of_settings(model_settings(dataset_of(data).models, name))


def start_run(
    path: Path,
    choice: DataChoice,
    make_plan: Callable[[Sequence[int]], Plan],
    *,
    seed: int | None,
    without: Sequence[Request] = (),
    model: str | None = None,
    weights: Path | None = None,
    enrolments: Sequence[EnrolledClient] = (),
    require_room: Callable[[Plan, Sequence[int], int], None] | None = None,
) -> bool:
    """Create a run on a built-in dataset, and return True; or find that it exists with the same plan.

    ``model``: one of those that fit the data, by name. ``weights``: a file to begin from. ``enrolments``: clients on
    other machines, which hold the data themselves; the dataset then is only the server's test set.
    ``require_room``: refuses a plan, sizes and a model's bytes that do not fit, before anything is written.
    """
    from fedforget.session.starting import (  # noqa: PLC0415 (torch)
        create_remote_run,
        create_run,
        require_no_file,
        require_same,
    )

    require_no_file(path)
    source, exists = SeedSource(seed), run_directory.is_run(path)
    if exists and seed is None:
        partition_seed = bytes.fromhex(str(PlanFile.read(path).dataset.get("partition_seed", "")))
    else:
        partition_seed = source.partition()
    federation = chosen(choice, partition_seed)
    owners = federation.owners()
    sizes = [len(own) for own in owners.values()]
    plan = make_plan(sizes)
    built, settings = _initial_model(federation, model, weights, source.initial_model())
    wanted = PlanFile(plan, built.described(settings), federation.settings(), b"", built.structure)
    if require_room is not None and not exists:
        parameters = sum(each.numel() for each in built.module.state_dict().values())
        require_room(plan, sizes, 4 * parameters)
    if exists:
        require_same(path, wanted, source, without)
    elif enrolments:
        create_remote_run(path, wanted, built, source, enrolments)
    else:
        create_run(path, wanted, built, federation.data(owners), source, without)
    return not exists


def _initial_model(
    federation: Federation, name: str | None, weights: Path | None, seed: bytes
) -> tuple[Model, Settings]:
    """Build the model, from the seed or from a file of weights, and return it with what the plan records."""
    from fedforget.session.engine import Model  # noqa: PLC0415 (torch)
    from fedforget.training.models import build_model  # noqa: PLC0415
    from fedforget.training.pretrained import load_pretrained  # noqa: PLC0415

    settings = model_settings(federation.models, name)
    module = build_model(settings, seed)
    if weights is not None:
        settings = {**settings, "weights": load_pretrained(module, weights)}
    return Model.of(module), settings


def _require_buildable(run: OpenRun) -> None:
    """Refuse a plan whose model is larger than the run's model files, before allocating memory for it."""
    from fedforget.training.models import structure_of_settings  # noqa: PLC0415 (torch)

    if structure_of_settings(run.file.model) != run.file.tensors:
        raise RunDamaged(f"{run.path / NAME} is damaged: its tensors are not those of its model")
    run.server.models.require_layout(run.server.model_digest(0))


def require_built_in(run: OpenRun, instead: Callable[[], str] | None = None) -> None:
    """Refuse a run with its own model or data. ``instead`` makes the hint."""
    if not run.file.is_built_in or run.file.dataset.get("name") not in NAMES:
        raise InvalidInput(
            f"the model and data of {run.path} are not built in",
            hint=instead() if instead else "open it in Python: fedforget.Run(path, model=…, data=…)",
        )


def engine_of(
    run: OpenRun,
    workforce: Workforce,
    *,
    all_data: bool = False,
    instead: Callable[[], str] | None = None,
    data_dir: Path | None = None,
) -> Engine:
    """Build the model and find the data of an open run on a built-in dataset.

    ``all_data``: the whole dataset, not only the samples in the run. ``instead``: makes the hint for a run with its own
    model or data, which is refused. ``data_dir``: where to look for the data.
    """
    file = run.file
    require_built_in(run, instead)
    _require_buildable(run)
    from fedforget.session.engine import Engine, Model  # noqa: PLC0415 (torch)
    from fedforget.training.models import build_model  # noqa: PLC0415

    federation = _federation_of(run, data_dir)
    owners: Mapping[Any, Any] = federation.owners() if all_data else _present(run)
    model = Model.of(build_model(file.model, bytes(32)))
    return Engine.of_run(file, run.path, model, federation.data(owners), workforce, data_dir)


def remote_engine_of(run: OpenRun, *, data_dir: Path | None = None) -> Engine:
    """Build the model of an open run whose clients are on other machines, and find the server's test set."""
    require_built_in(run)
    _require_buildable(run)
    from fedforget.session.engine import Engine, Model  # noqa: PLC0415 (torch)
    from fedforget.training.models import build_model  # noqa: PLC0415

    model = Model.of(build_model(run.file.model, bytes(32)))
    return Engine.of_run(run.file, run.path, model, _federation_of(run, data_dir).data({}), _INLINE)


def _federation_of(run: OpenRun, data_dir: Path | None) -> Federation:
    try:
        return recorded(run.file.dataset, data_dir, run.path)
    except (KeyError, ValueError) as error:
        raise RunDamaged(f"{run.path / NAME} is damaged: its dataset lacks or misspells {error}") from error


def built_of(problem: Mapping[str, Any]) -> Built:
    """Return what a Flower node computes with: the model and the data that a message names."""
    from fedforget.session.engine import Model  # noqa: PLC0415 (torch)
    from fedforget.session.node_work import Built  # noqa: PLC0415
    from fedforget.training.models import build_model  # noqa: PLC0415

    place = problem["data_dir"]
    federation = recorded(problem["dataset"], None if place is None else Path(place), Path("the run"))
    return Built(Model.of(build_model(problem["model"], bytes(32))), federation.data(federation.owners()))


def _present(run: OpenRun) -> dict[Any, Callable[[], Any]]:
    """Return, for each client in the run, how to look up its samples; most commands need those of few clients."""
    return {client: partial(run.clients.samples, client) for client in run.clients.clients()}


def open_run(path: Path, workforce: Workforce = _INLINE) -> Run:
    """Open a run on a built-in dataset from its directory alone."""
    from fedforget.run import Run  # noqa: PLC0415 (torch)

    with run_directory.reading(path, only_idle=False) as run:  # raises if the plan is not the run's
        engine = engine_of(run, workforce, all_data=run.file.dataset.get("name") != DIGITS)
    return Run(path, model=engine.model.module, data=engine.data, federation=workforce)
