"""Runs with a built-in dataset and model, which the commands can open from the plan file alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.seeds import SeedSource
from fedforget.data import digits
from fedforget.data.digits import Digits
from fedforget.errors import InvalidInput, RunDamaged, quoted
from fedforget.session.workforce import Workforce
from fedforget.store import run_directory
from fedforget.store.plan_file import NAME, OWN, PlanFile
from fedforget.store.run_directory import OpenRun

if TYPE_CHECKING:
    from fedforget.run import Run
    from fedforget.session.engine import Engine

_INLINE = Workforce()
DATASETS = (digits.NAME,)
MODEL: Mapping[str, str | int | float] = {"name": "mlp", "inputs": 64, "hidden": 64, "classes": 10}


@dataclass(frozen=True, slots=True)
class DigitsFederation:
    """The digits, partitioned over the clients before any data are left out."""

    dataset: Digits
    clients: int
    beta: float
    partition_seed: bytes

    @classmethod
    def split(cls, clients: int, beta: float, partition_seed: bytes) -> DigitsFederation:
        return cls(Digits(), clients, beta, partition_seed)

    def settings(self) -> dict[str, str | int | float]:
        return {
            "name": digits.NAME,
            "clients": self.clients,
            "beta": self.beta,
            "partition_seed": self.partition_seed.hex(),
        }

    def owners(self) -> dict[int, list[int]]:
        return self.dataset.partition(clients=self.clients, beta=self.beta, seed=self.partition_seed)


def check_dataset(name: str) -> None:
    if name not in DATASETS:
        raise InvalidInput(
            f"unknown dataset {quoted(name)}",
            hint=f"use one of: {', '.join(DATASETS)}; or bring your own with fedforget.Run",
        )


def sizes_of(name: str, clients: int, seed: int | None) -> list[int]:
    """Return the number of samples of each client for a dataset."""
    check_dataset(name)
    federation = DigitsFederation.split(clients, digits.BETA, SeedSource(seed).partition())
    return [len(rows) for rows in federation.owners().values()]


def start_run(
    path: Path,
    name: str,
    clients: int,
    make_plan: Callable[[Sequence[int]], Plan],
    *,
    seed: int | None,
    without: Sequence[Request] = (),
) -> bool:
    """Create a run on a built-in dataset, and return True; or find that it exists with the same plan."""
    from fedforget.session.engine import Model  # noqa: PLC0415 (torch)
    from fedforget.session.starting import create_run, require_place, require_same  # noqa: PLC0415
    from fedforget.training.models import build_model  # noqa: PLC0415

    check_dataset(name)
    require_place(path)
    source, exists = SeedSource(seed), run_directory.is_run(path)
    if exists and seed is None:
        partition_seed = bytes.fromhex(str(PlanFile.read(path).dataset.get("partition_seed", "")))
    else:
        partition_seed = source.partition()
    federation = DigitsFederation.split(clients, digits.BETA, partition_seed)
    owners = federation.owners()
    plan = make_plan([len(rows) for rows in owners.values()])
    model = Model.of(build_model(MODEL, source.initial_model()))
    wanted = PlanFile(plan, model.described(MODEL), federation.settings(), b"", model.structure)
    if exists:
        with run_directory.reading(path, only_idle=False) as run:
            require_same(run, wanted, source, without)
    else:
        create_run(path, wanted, model, federation.dataset.federated(owners), source, without)  # type: ignore[arg-type]
    return not exists


def _require_buildable(run: OpenRun) -> None:
    """Refuse a plan whose model is larger than the run's model files, before allocating memory for it."""
    if run.file.model.get("name") == OWN:
        return
    from fedforget.training.models import structure_of_settings  # noqa: PLC0415 (torch)

    if structure_of_settings(run.file.model) != run.file.tensors:
        raise RunDamaged(
            f"{run.path / NAME} is damaged: its tensors are not those of its model", hint="restore it from a backup"
        )
    run.server.models.require_room_for(run.server.model_digest(0), run.file.tensors)


def engine_of(
    run: OpenRun, workforce: Workforce, *, all_data: bool = False, instead: Callable[[], str] | None = None
) -> Engine:
    """Build the model and load the data of an open run on a built-in dataset.

    ``all_data``: load the whole dataset, not only the samples in the run. ``instead``: makes the hint for a run with
    its own model or data, which is refused.
    """
    file = run.file
    _require_buildable(run)
    if not file.is_built_in or file.dataset.get("name") not in DATASETS:
        raise InvalidInput(
            f"the model and data of {run.path} are not built in",
            hint=instead() if instead else "open it in Python: fedforget.Run(path, model=…, data=…)",
        )
    from fedforget.session.engine import Engine, Model  # noqa: PLC0415 (torch)
    from fedforget.training.models import build_model  # noqa: PLC0415

    owners: dict[Any, list[Any]] = {client: list(run.clients.samples(client)) for client in run.clients.clients()}
    if all_data:
        chosen = file.dataset
        seed = bytes.fromhex(str(chosen["partition_seed"]))
        owners = dict(DigitsFederation.split(int(chosen["clients"]), float(chosen["beta"]), seed).owners())
    model = Model.of(build_model(file.model, bytes(32)))
    return Engine.of_run(file, run.path, model, Digits().federated(owners), workforce)


def open_run(path: Path, workforce: Workforce = _INLINE) -> Run:
    """Open a run on a built-in dataset from its directory alone."""
    from fedforget.run import Run  # noqa: PLC0415 (torch)

    with run_directory.reading(path, only_idle=False) as run:  # raises if the plan is not the run's
        engine = engine_of(run, workforce)
    return Run(path, model=engine.model.module, data=engine.data, **asdict(workforce))
