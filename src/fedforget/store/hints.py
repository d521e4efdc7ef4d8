"""Text for hints: the command that helps, or what helps if the run uses its own model or data.

Such a run may be that of a Flower app, which `flwr run` finishes, or that of a Python program. One whose clients are on
other machines is always reached by Flower.
"""

from __future__ import annotations

from pathlib import Path

from fedforget.disk.door import Door
from fedforget.errors import FedForgetError
from fedforget.store.names import CONTACTS
from fedforget.store.plan_file import PlanFile

_REACHED = " --federation flower:NAME"
_APP = "`flwr run` of its Flower app"


def train(run: Path) -> str:
    """How to resume a run, which also finishes interrupted requests."""
    return _how(run, "train {}", "{}.train()", by_app=True)


def forget(run: Path) -> str:
    return _how(run, "forget {}", "{}.forget(…)")


def run_pending(run: Path, *, everything: bool = False, file: PlanFile | None = None) -> str:
    """How to carry out pending requests. ``file``: the plan file, where the caller has read it."""
    if everything:
        return _how(run, "run-pending {} --all", "{}.run_pending(everything=True)", file, by_app=True)
    return _how(run, "run-pending {}", "{}.run_pending()", file, by_app=True)


def verify(run: Path) -> str:
    return _how(run, "verify {}", "{}.verify()")


def check_receipt(run: Path) -> str:
    return _how(run, "receipt verify FILE --run {}", "{}.check_receipt(fedforget.read_receipt(file, key))", reached="")


def rebuild(run: Path) -> str:
    """How to recompute lost models."""
    return _how(run, "doctor {} --rebuild", "{}.rebuild()", reached="")


def rebuild_now(run: Path) -> str:
    """How to recompute lost models, as `doctor` itself prints it."""
    return rebuild(run) if _has_own_data(run) else "give the same command with --rebuild"


def _how(
    run: Path,
    command: str,
    python: str,
    file: PlanFile | None = None,
    *,
    by_app: bool = False,
    reached: str = _REACHED,
) -> str:
    """``by_app``: a Flower app does it, too. ``reached``: what a command adds that has to reach clients elsewhere."""
    is_remote = _is_remote(run)
    if _has_own_data(run) if file is None else not file.is_built_in:
        if is_remote and by_app:
            return _APP
        code = f"`{python.format(f'fedforget.Run({str(run)!r}, model=…, data=…)')}` in Python"
        return f"{code}, or with {_APP}" if by_app else code
    return f"`fedforget {command.format(run)}{reached if is_remote else ''}`"


def _is_remote(run: Path) -> bool:
    try:
        return Door(run).status(CONTACTS) is not None
    except OSError:
        return False


def _has_own_data(run: Path) -> bool:
    """Return False if the plan cannot be read: the error being raised reports that."""
    try:
        return not PlanFile.read(run).is_built_in
    except FedForgetError:
        return False
