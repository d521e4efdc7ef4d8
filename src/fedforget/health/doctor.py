"""``fedforget doctor``: check this machine and every file of a run, with a remedy for each problem."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from fedforget.algorithm.draws import Address, Purpose, draw_key
from fedforget.algorithm.ids import id_block
from fedforget.disk.files import write_durably
from fedforget.disk.lock import require_idle, shared_lock
from fedforget.errors import FedForgetError, RunBusy, StorageFailed
from fedforget.health.checks import Check, Examination
from fedforget.store import plan_file
from fedforget.store.names import BOOKS, RECORD, SERVER, USES
from fedforget.training.environment import environment


def examine(run: Path | None) -> list[Check]:
    """Return the results of all checks, in order: the machine, then the run if one is given.

    Raises RunBusy while another process writes the run.
    """
    checks = list(_machine())
    if run is not None:
        try:
            checks += _run(run)
        except RunBusy:  # its files change during the check
            raise
        except Exception as error:  # noqa: BLE001 (a doctor reports every problem)
            checks.append(Check("run", False, f"{run} cannot be examined: {error}", "check the disk and permissions"))
    return checks


def _machine() -> Iterator[Check]:
    versions = environment()
    yield Check("python", sys.version_info >= (3, 11), versions["python"], "install Python 3.11 or newer")
    yield Check("torch", True, f"{versions['torch']}, numpy {versions['numpy']}")
    yield Check("processor", True, versions["processor"])
    yield _checked("draw vectors", _vectors, "reinstall fedforget and cryptography: draws are wrong")
    yield _checked("repeatable arithmetic", _arithmetic, "use another torch build: its results cannot be repeated")
    yield _checked("durable files", _files, "choose a disk that can fsync")


def _checked(name: str, check: Callable[[], str], remedy: str) -> Check:
    try:
        return Check(name, True, check())
    except StorageFailed as error:
        return Check(name, False, error.message, error.hint)
    except Exception as error:  # noqa: BLE001 (a doctor reports every problem)
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

    from fedforget.training.arithmetic import fixed_arithmetic  # noqa: PLC0415

    with fixed_arithmetic():
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
    if not any((path / name).exists() for name in (plan_file.NAME, SERVER, USES, *BOOKS, RECORD)):
        yield Check("run", False, f"{path} holds no run", "check the path; `fedforget train --out` makes a run")
        return
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(require_idle(path))
            held.enter_context(shared_lock(path))
        except RunBusy:
            raise
        except FedForgetError as error:
            yield Check("lock", False, error.message, error.hint)
        yield from Examination(path, held).checks()
