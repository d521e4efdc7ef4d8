"""Text for hints: the command that helps, or the same call in Python if the run uses its own model or data."""

from __future__ import annotations

from pathlib import Path

from fedforget.errors import FedForgetError
from fedforget.store.plan_file import PlanFile


def train(run: Path) -> str:
    """How to resume a run, which also finishes interrupted requests."""
    return _how(run, "train {}", "{}.train()")


def forget(run: Path) -> str:
    return _how(run, "forget {}", "{}.forget(…)")


def run_pending(run: Path, *, everything: bool = False, file: PlanFile | None = None) -> str:
    """How to carry out pending requests. ``file``: the plan file, where the caller has read it."""
    if everything:
        return _how(run, "run-pending {} --all", "{}.run_pending(everything=True)", file)
    return _how(run, "run-pending {}", "{}.run_pending()", file)


def verify(run: Path) -> str:
    return _how(run, "verify {}", "{}.verify()")


def check_receipt(run: Path) -> str:
    return _how(run, "receipt verify FILE --run {}", "{}.check_receipt(fedforget.read_receipt(file, key))")


def rebuild(run: Path) -> str:
    """How to recompute lost models."""
    return _how(run, "doctor {} --rebuild", "{}.rebuild()")


def rebuild_now(run: Path) -> str:
    """How to recompute lost models, as `doctor` itself prints it."""
    return rebuild(run) if _has_own_data(run) else "give the same command with --rebuild"


def _how(run: Path, command: str, python: str, file: PlanFile | None = None) -> str:
    if _has_own_data(run) if file is None else not file.is_built_in:
        return f"`{python.format(f'fedforget.Run({str(run)!r}, model=…, data=…)')}` in Python"
    return f"`fedforget {command.format(run)}`"


def _has_own_data(run: Path) -> bool:
    """Return False if the plan cannot be read: the error being raised reports that."""
    try:
        return not PlanFile.read(run).is_built_in
    except FedForgetError:
        return False
