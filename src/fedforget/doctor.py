"""A look at this machine, and at every file of a run: what is wrong, and what can be done."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedforget.algorithm.draws import Address, Purpose, draw_key
from fedforget.algorithm.ids import id_block
from fedforget.environment import environment
from fedforget.errors import FedForgetError, RunBusy
from fedforget.store.database import Database
from fedforget.store.files import write_durably
from fedforget.store.lock import RunLock
from fedforget.store.plan_file import PlanFile
from fedforget.store.run_directory import CLIENTS, RECORD, SERVER, reading


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine(run: Path | None) -> list[Check]:
    """Every check, in order."""
    checks = list(_machine())
    if run is not None:
        checks += _run(run)
    return checks


def _machine() -> Iterator[Check]:
    versions = environment()
    yield Check("python", sys.version_info >= (3, 11), versions["python"], "install Python 3.11 or newer")
    yield Check("torch", True, f"{versions['torch']}, numpy {versions['numpy']}")
    yield Check("processor", True, versions["processor"])
    yield _checked("draw vectors", _vectors, "reinstall fedforget and cryptography: draws are not what they must be")
    yield _checked("repeatable arithmetic", _arithmetic, "use another torch build: its results cannot be repeated")
    yield _checked("durable files", _files, "choose a disk that can fsync")


def _checked(name: str, check: Callable[[], str], remedy: str) -> Check:
    try:
        return Check(name, True, check())
    except Exception as error:  # noqa: BLE001 (a doctor reports whatever is wrong)
        return Check(name, False, f"{type(error).__name__}: {error}", remedy)


def _vectors() -> str:
    seed = bytes(range(32))
    slot, batch = Address(Purpose.SLOT, 1, 0), Address(Purpose.BATCH, 1, 0, id_block(3))
    keys = draw_key(seed, slot).hex(), draw_key(seed, batch).hex()
    if keys != ("d205c6d184a639ccb10387478b939e55", "bec8a9167620ef22d8003cd1bed0b870"):
        raise RuntimeError(f"wrong keys {keys}")
    return "as published"


def _arithmetic() -> str:
    import torch  # noqa: PLC0415

    from fedforget.training.streams import one_thread  # noqa: PLC0415

    with one_thread():
        matrix = torch.arange(64 * 64, dtype=torch.float32).reshape(64, 64).sin()
        results = {(matrix @ matrix).numpy().tobytes() for _ in range(20)}
    if len(results) != 1:
        raise RuntimeError("the same product gave different bits")
    return "20 equal products on one thread"


def _files() -> str:
    with tempfile.TemporaryDirectory() as directory:
        write_durably(Path(directory) / "probe", b"probe")
    return "fsync and rename work"


def _run(path: Path) -> Iterator[Check]:
    backup = "restore it from a backup"
    plan = _examined("plan.toml", lambda: f"{PlanFile.read(path).plan.rounds} rounds", backup)
    yield plan
    if not plan.ok:
        return
    try:
        with RunLock(path):
            pass
    except RunBusy as error:
        yield Check("lock", False, error.message, error.hint)
        return
    databases = [_examined(name, partial(_database, path / name), backup) for name in (SERVER, CLIENTS, RECORD)]
    yield from databases
    if not all(check.ok for check in databases):
        return
    try:
        yield from _models_and_record(path)
    except FedForgetError as error:
        yield Check("run", False, error.message, error.hint)


def _models_and_record(path: Path) -> Iterator[Check]:
    with reading(path, settled=False) as run:
        for round_, name in run.server.kept().items():
            check = _examined(f"model of round {round_}", partial(_model, run, name), "restore it from a backup")
            if not check.ok:
                yield check
        yield Check("models", True, f"{len(run.server.kept())} files referred to")
        problem = run.record.chain_problem()
        yield Check("event chain", problem is None, problem or "unbroken", "the record was altered: restore a backup")
        pending = bool(run.record.pending())
        yield Check(
            "requests", not pending, "one was interrupted" if pending else "none waits",
            f"finish it with `fedforget train {path}`",
        )  # fmt: skip


def _examined(name: str, look: Callable[[], str], remedy: str) -> Check:
    try:
        return Check(name, True, look())
    except FedForgetError as error:
        return Check(name, False, error.message, remedy)


def _database(path: Path) -> str:
    Database(path).close()
    return f"{path.stat().st_size} bytes"


def _model(run: Any, name: str) -> str:
    run.server.models.read(name)
    return "whole"
