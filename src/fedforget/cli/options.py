"""The option groups that several commands share."""

from __future__ import annotations

import functools
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from fedforget.algorithm.plan import (
    KEEP_ENDS,
    KEEP_EVERY,
    Keep,
    LocalOptimizer,
    Plan,
    ServerOptimizer,
    check_eval_every,
)
from fedforget.data.federations import DataChoice
from fedforget.data.registry import DIGITS, NATURAL, VIRTUAL
from fedforget.disk.door import unreadable_as
from fedforget.errors import InvalidInput, PlanRefused, quoted
from fedforget.experiments.presets import preset_of
from fedforget.federation.pool import PATIENCE
from fedforget.session.workforce import INLINE, POOL, Workforce

RunPath = Annotated[Path, typer.Argument(help="The run directory.")]
BasisOption = Annotated[
    str | None,
    typer.Option(help="exogenous (no draws or model seen), model-informed, or unknown.", show_default="unknown"),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Directory with datasets.", show_default="FEDFORGET_DATA, or where the dataset was found last"),
]


@dataclass(frozen=True, slots=True)
class WorkforceOptions:
    """Where clients are trained. The default is the pool on Linux, else this process."""

    federation: Annotated[
        str | None,
        typer.Option(
            help="How clients are trained: pool (processes), inline, flower-simulation, or flower:NAME "
            "(on other machines, by a SuperLink of Flower's configuration).",
            show_default="pool",
        ),
    ] = None
    workers: Annotated[int | None, typer.Option(help="Processes that train.", show_default="one per core")] = None
    worker_timeout: Annotated[
        float | None, typer.Option(help="Seconds allowed to a worker for one client's round.", show_default="600")
    ] = None

    def __post_init__(self) -> None:
        self.workforce()  # raises before the command opens or creates anything

    def workforce(self) -> Workforce:
        default = POOL if sys.platform == "linux" or self.workers is not None else INLINE
        patience = PATIENCE if self.worker_timeout is None else self.worker_timeout
        return Workforce(self.federation or default, self.workers, patience)


@dataclass(frozen=True, slots=True)
class EngineOptions(WorkforceOptions):
    """Where a run's clients are trained, and where its data are."""

    data_dir: DataDir = None


@dataclass(frozen=True, slots=True)
class RoundsOptions(EngineOptions):
    """How rounds are computed and measured."""

    eval_every: Annotated[
        int | None, typer.Option(help="Evaluate the model on the test set every N rounds.", show_default="the last")
    ] = None
    recompute_all: Annotated[
        bool,
        typer.Option(
            "--recompute-all", help="Recompute all rounds here: exact even if another environment trained them."
        ),
    ] = False
    accept_mixed: Annotated[
        bool,
        typer.Option("--accept-mixed", help="Continue after another environment: neither reproduces the bytes."),
    ] = False

    def __post_init__(self) -> None:
        self.workforce()
        check_eval_every(self.eval_every)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of a plan; None if not given."""

    preset: Annotated[
        str | None,
        typer.Option(
            help="Plan of the paper for a dataset: mnist, fashion-mnist …; with :printed, :authors or :tuned."
        ),
    ] = None
    data: Annotated[
        str | None, typer.Option(help="Dataset; `fedforget data list` lists them.", show_default="digits")
    ] = None
    clients: Annotated[
        int | None,
        typer.Option(help="Number of clients (M).", show_default="60 for digits, else the paper's"),
    ] = None
    partition: Annotated[
        str | None,
        typer.Option(
            help="dirichlet (label mix), equal (label mix, equal sizes), natural (by writer or role), virtual.",
            show_default="dirichlet, or natural",
        ),
    ] = None
    beta: Annotated[
        float | None, typer.Option(help="Of the Dirichlet law: smaller is more heterogeneous.", show_default="0.5")
    ] = None
    model: Annotated[
        str | None, typer.Option(help="mlp, cnn, vgg16 or lstm, where it fits.", show_default="the dataset's")
    ] = None
    weights: Annotated[
        str | None, typer.Option(help="Start from the weights in this .safetensors or .pt file.", metavar="FILE")
    ] = None
    rho_s: Annotated[float | None, typer.Option(help="Sample-level stability, in (0, 1].")] = None
    rho_c: Annotated[float | None, typer.Option(help="Client-level stability, in (0, 1].")] = None
    clients_per_round: Annotated[
        int | None, typer.Option(help="Slots per round (K); with --batch-size instead of the rhos.")
    ] = None
    batch_size: Annotated[int | None, typer.Option(help="Samples per local step (b).")] = None
    rounds: Annotated[int | None, typer.Option(help="Communication rounds (R).")] = None
    local_steps: Annotated[int | None, typer.Option(help="Local steps per round (E).")] = None
    seed: Annotated[
        int | None, typer.Option(help="Derive every seed from this number.", show_default="from the system")
    ] = None
    keep: Annotated[
        str | None, typer.Option(help="Models to keep: every, ends, or each N-th.", show_default="every")
    ] = None
    lr: Annotated[float | None, typer.Option(help="Local learning rate.", show_default="0.1")] = None
    momentum: Annotated[float | None, typer.Option(help="Local momentum.", show_default="0")] = None
    weight_decay: Annotated[float | None, typer.Option(help="Local weight decay.", show_default="0")] = None
    prox: Annotated[float | None, typer.Option(help="FedProx term.", show_default="0")] = None
    server_optimizer: Annotated[str | None, typer.Option(help="average or fedadam.", show_default="average")] = None
    server_lr: Annotated[float | None, typer.Option(help="Learning rate of fedadam.", show_default="0.01")] = None
    config: Annotated[Path | None, typer.Option(help="TOML file with any options of the plan.")] = None

    def with_file(self) -> PlanOptions:
        """Fill options that are not given from the TOML file of ``--config``."""
        if self.config is None:
            return self
        found = _read_config(self.config)
        return replace(self, **{name: value for name, value in found.items() if getattr(self, name) is None})

    def with_preset(self) -> PlanOptions:
        """Fill options that are not given from the preset. A given rho replaces the preset's K and b."""
        if self.preset is None:
            return self
        preset, variant = preset_of(self.preset)
        if self.data not in (None, preset.data):
            raise InvalidInput(
                f"the preset {preset.name} is for {preset.data}, but --data {self.data} is given", hint="leave out one"
            )
        values = preset.options(variant)
        if self.rho_s is not None or self.rho_c is not None:
            values = {name: value for name, value in values.items() if name not in ("clients_per_round", "batch_size")}
        if self.partition not in (None, preset.partition) and preset.partition in (NATURAL, VIRTUAL):
            del values["clients"]  # another partition has another number of clients
        return replace(self, **{name: value for name, value in values.items() if getattr(self, name) is None})

    def data_choice(self, data_dir: Path | None) -> DataChoice:
        """Return the dataset and its partition."""
        return DataChoice(self.data or DIGITS, self.clients, self.partition, self.beta, data_dir)

    def given(self) -> list[str]:
        """Return the names of the options that are given."""
        return [name for name in _plan_keys() if getattr(self, name) is not None]

    def plan_for(self, sizes: Sequence[int]) -> Plan:
        """Return the plan for clients of these sizes."""
        length: dict[str, Any] = {
            "local_steps": _needed(self.local_steps, "--local-steps"),
            "rounds": _needed(self.rounds, "--rounds"),
        }
        local = given_only(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, prox=self.prox)
        server = given_only(name=self.server_optimizer, lr=self.server_lr)
        others: dict[str, Any] = {
            "local": LocalOptimizer(**local), "server": ServerOptimizer(**server), "keep": parse_keep(self.keep),
        }  # fmt: skip
        by_rho, by_number = (self.rho_s, self.rho_c), (self.clients_per_round, self.batch_size)
        if by_rho != (None, None) and by_number != (None, None):
            raise PlanRefused("both rho and K, b are given", hint="give one pair: they determine each other")
        if self.rho_s is not None and self.rho_c is not None:
            return Plan.from_rho(rho_s=self.rho_s, rho_c=self.rho_c, sizes=sizes, **length, **others)
        if self.clients_per_round is not None and self.batch_size is not None:
            return Plan(self.clients_per_round, self.batch_size, **length, **others)
        raise PlanRefused(
            "the plan is not determined",
            hint="give --rho-s and --rho-c, or --clients-per-round and --batch-size",
        )


def parse_keep(text: str | int | None) -> Keep:
    if text in (None, KEEP_EVERY):
        return KEEP_EVERY
    if text == KEEP_ENDS:
        return KEEP_ENDS
    try:
        return int(str(text))
    except ValueError as error:
        raise PlanRefused(
            f"cannot keep models {quoted(text)}", hint="keep every, ends, or a whole number from 1"
        ) from error


def _needed(value: int | None, option: str) -> int:
    if value is None:
        raise PlanRefused(f"{option} is missing", hint="give it on the command line or in --config")
    return value


def given_only(**values: Any) -> dict[str, Any]:
    """Return the values that are given."""
    return {name: value for name, value in values.items() if value is not None}


@functools.cache
def _plan_keys() -> dict[str, Any]:
    """Return the names and types of the options that belong to the plan."""
    return {name: hint for name, hint in get_type_hints(PlanOptions).items() if name != "config"}


def _read_config(path: Path) -> dict[str, Any]:
    """Read options of the plan from a TOML file."""
    try:
        with unreadable_as(InvalidInput, path, "check the path of --config"):
            values = {key.replace("-", "_"): value for key, value in tomllib.loads(path.read_text()).items()}
    except ValueError as error:
        raise InvalidInput(f"{path} is not TOML: {error}", hint="correct the file") from error
    known = _plan_keys()
    for key, value in values.items():
        if key not in known:
            raise InvalidInput(f"{path} has an unknown key {quoted(key)}", hint=f"the keys are: {', '.join(known)}")
        kind = "text or a whole number" if key == "keep" else _KINDS[get_args(known[key])[0]]
        if isinstance(value, bool) or not isinstance(value, _ACCEPTED[kind]):
            raise InvalidInput(f"{path}: {key} = {quoted(value)} is not {kind}", hint="correct the value")
    return values


_KINDS = {str: "text", int: "a whole number", float: "a number"}
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "a whole number": (int,),
    "a number": (int, float),
    "text or a whole number": (str, int),
}
