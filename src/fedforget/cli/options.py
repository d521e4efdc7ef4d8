"""Options shared by the commands, and plan options from the command line, a TOML file, or both."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from fedforget.algorithm.plan import KEEP_ENDS, KEEP_EVERY, LocalOptimizer, Plan, ServerOptimizer
from fedforget.errors import InvalidInput, PlanRefused, quoted
from fedforget.federation.pool import PATIENCE
from fedforget.session.workforce import INLINE, POOL, Workforce

Data = Annotated[str | None, typer.Option(help="Dataset: digits.", show_default="digits")]
Clients = Annotated[int | None, typer.Option(help="How many clients share the data (M).", show_default="60")]
RhoS = Annotated[float | None, typer.Option(help="Sample-level stability, in (0, 1].")]
RhoC = Annotated[float | None, typer.Option(help="Client-level stability, in (0, 1].")]
PerRound = Annotated[int | None, typer.Option(help="Slots per round (K); with --batch-size instead of the rhos.")]
BatchSize = Annotated[int | None, typer.Option(help="Samples per local step (b).")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds (R).")]
LocalSteps = Annotated[int | None, typer.Option(help="Local steps per round (E).")]
Seed = Annotated[int | None, typer.Option(help="Derive every seed from this number.", show_default="from the system")]
Config = Annotated[Path | None, typer.Option(help="TOML file with any options of the plan.")]


EvalEvery = Annotated[
    int | None, typer.Option(help="Evaluate the model on the test set every N rounds.", show_default="the last")
]
RecomputeAll = Annotated[
    bool,
    typer.Option("--recompute-all", help="Recompute all rounds here: exact even if another environment trained them."),
]
AcceptMixed = Annotated[
    bool,
    typer.Option("--accept-mixed", help="Continue after another environment: neither reproduces the bytes."),
]
Federation = Annotated[
    str | None, typer.Option(help="How clients are trained: pool (processes) or inline.", show_default="pool")
]
ServerOptimizerName = Annotated[str | None, typer.Option(help="average or fedadam.", show_default="average")]
Workers = Annotated[int | None, typer.Option(help="Processes of the pool.", show_default="one per core")]
WorkerTimeout = Annotated[
    float | None, typer.Option(help="Seconds allowed to a worker for one client's round.", show_default="600")
]


def workforce(federation: str | None, workers: int | None, timeout: float | None) -> Workforce:
    """Check the options for the worker processes. The default is the pool on Linux, else inline."""
    default = POOL if sys.platform == "linux" or workers is not None else INLINE
    return Workforce(federation or default, workers, PATIENCE if timeout is None else timeout)


@dataclass(slots=True)
class PlanOptions:
    """The options of a plan; None where not given."""

    data: str | None = None
    clients: int | None = None
    rho_s: float | None = None
    rho_c: float | None = None
    clients_per_round: int | None = None
    batch_size: int | None = None
    rounds: int | None = None
    local_steps: int | None = None
    seed: int | None = None
    keep: str | int | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    prox: float | None = None
    server_optimizer: str | None = None
    server_lr: float | None = None

    def with_file(self, path: Path | None) -> PlanOptions:
        """Fill options that are not given from a TOML file."""
        if path is None:
            return self
        try:
            values = {key.replace("-", "_"): value for key, value in tomllib.loads(path.read_text()).items()}
        except OSError as error:
            raise InvalidInput(f"cannot read {path}: {error.strerror}", hint="check the path of --config") from error
        except ValueError as error:
            raise InvalidInput(f"{path} is not TOML: {error}", hint="correct the file") from error
        known = {field.name: field.type for field in fields(self)}
        for key, value in values.items():
            if key not in known:
                raise InvalidInput(f"{path} has an unknown key {quoted(key)}", hint=f"the keys are: {', '.join(known)}")
            if not _fits(value, str(known[key])):
                raise InvalidInput(
                    f"{path}: {key} = {quoted(value)} is not {_in_words(str(known[key]))}", hint="correct the value"
                )
        return PlanOptions(
            **{name: values.get(name) if getattr(self, name) is None else getattr(self, name) for name in known}
        )

    def given(self) -> list[str]:
        """Return the names of the options that are given."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]

    def plan_for(self, sizes: Sequence[int]) -> Plan:
        """Return the plan for clients of these sizes."""
        return self._maker()(sizes)

    def _maker(self) -> Callable[[Sequence[int]], Plan]:
        local_steps = _needed(self.local_steps, "--local-steps")
        rounds = _needed(self.rounds, "--rounds")
        others: dict[str, Any] = {
            "local": LocalOptimizer(
                **_said(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, prox=self.prox)
            ),
            "server": ServerOptimizer(**_said(name=self.server_optimizer, lr=self.server_lr)),
            "keep": parse_keep(self.keep),
        }  # fmt: skip
        by_rho, by_number = (self.rho_s, self.rho_c), (self.clients_per_round, self.batch_size)
        if by_rho != (None, None) and by_number != (None, None):
            raise PlanRefused("both rho and K, b are given", hint="give one pair: they determine each other")
        if None not in by_rho:
            rho_s, rho_c = by_rho
            return lambda sizes: Plan.from_rho(
                rho_s=rho_s, rho_c=rho_c, local_steps=local_steps, rounds=rounds, sizes=sizes, **others  # type: ignore[arg-type]
            )  # fmt: skip
        if None not in by_number:
            slots, batch = by_number
            return lambda _: Plan(slots, batch, local_steps, rounds, **others)  # type: ignore[arg-type]
        raise PlanRefused(
            "the plan is not determined",
            hint="give --rho-s and --rho-c, or --clients-per-round and --batch-size",
        )


def parse_keep(text: str | int | None) -> str | int:
    if text is None:
        return KEEP_EVERY
    if text in (KEEP_EVERY, KEEP_ENDS):
        return text
    try:
        return int(text)
    except ValueError as error:
        raise PlanRefused(
            f"cannot keep models {quoted(text)}", hint="keep every, ends, or a whole number from 1"
        ) from error


def _needed(value: int | None, option: str) -> int:
    if value is None:
        raise PlanRefused(f"{option} is missing", hint="give it on the command line or in --config")
    return value


def _said(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _in_words(annotation: str) -> str:
    if "float" in annotation:
        return "a number"
    return {"str": "text", "int": "a whole number"}.get(annotation.removesuffix(" | None"), "text or a whole number")


def _fits(value: object, annotation: str) -> bool:
    if isinstance(value, bool):
        return False
    if "float" in annotation:
        return isinstance(value, (int, float))
    return isinstance(
        value, (str, int) if "str" in annotation and "int" in annotation else str if "str" in annotation else int
    )
