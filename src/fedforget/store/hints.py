"""What a hint may name: a command only for a run that a command can open, else what does the same in Python."""

from __future__ import annotations

from pathlib import Path

from fedforget.errors import FedForgetError
from fedforget.store.plan_file import PlanFile


def train(run: Path) -> str:
    """How to go on with a run, which finishes what was interrupted."""
    return _how(run, "train {}", "{}.train()")


def forget(run: Path) -> str:
    return _how(run, "forget {}", "{}.forget(…)")


def run_pending(run: Path, *, everything: bool = False) -> str:
    """How to meet the requests that wait."""
    if everything:
        return _how(run, "run-pending {} --all", "{}.run_pending(everything=True)")
    return _how(run, "run-pending {}", "{}.run_pending()")


def rebuild(run: Path) -> str:
    """How to compute lost models again."""
    return _how(run, "doctor {} --rebuild", "fedforget.health.repair.rebuild({})")


def rebuild_now(run: Path) -> str:
    """The same, as `doctor` itself says it."""
    return rebuild(run) if _has_own_data(run) else "give the same command with --rebuild"


def _how(run: Path, command: str, python: str) -> str:
    if _has_own_data(run):
        return f"`{python.format(f'fedforget.Run({str(run)!r}, model=…, data=…)')}` in Python"
    return f"`fedforget {command.format(run)}`"


def _has_own_data(run: Path) -> bool:
    """False where the plan cannot be read: that is told by the error which is being raised."""
    try:
        return not PlanFile.read(run).is_built_in
    except FedForgetError:
        return False
