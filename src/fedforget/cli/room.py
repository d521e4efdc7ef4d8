"""Whether a new run fits on this machine, estimated before anything is written."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from fedforget.algorithm.plan import Plan, goal_of
from fedforget.cli.plan_text import size
from fedforget.errors import OutOfMemory, StorageFailed
from fedforget.planner.storage import kept_bytes

_BOOKS = 60  # bytes of a sample in the clients' books: 220 MB for Shakespeare's 3.7 million
_CLIENTS = 400  # bytes of a client there and at the server, generously
_LARGE_MODEL = 8_000_000  # bytes: below this, memory is not what a training lacks
_COPIES = 6  # of the weights: before and after a round, gradients, momentum, a reply, the sum
_LAYERS = 350_000_000  # bytes: the layers' values when the test set is measured, and libraries (measured: FEMNIST)
Check = Callable[[Plan, Sequence[int], int], None]


def room_for(path: Path, until_round: int | None) -> Check:
    """Return a check of a plan, its clients' sizes and its model's bytes. Raises StorageFailed or OutOfMemory."""

    def check(plan: Plan, sizes: Sequence[int], model_bytes: int) -> None:
        goal = goal_of(plan.rounds, until_round)
        _require_disk(path, kept_bytes(plan, goal, model_bytes) + _BOOKS * sum(sizes) + _CLIENTS * len(sizes))
        _require_memory(model_bytes)

    return check


def _require_disk(path: Path, needed: int) -> None:
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError:  # an unreadable place is reported when it is written
        return
    if needed > free:
        raise StorageFailed(
            f"the run needs about {size(needed)}, but {place} has {size(free)} free",
            hint="free some space and give the same command again; or keep fewer models (--keep), or stop earlier "
            "(--until-round)",
        )


def _require_memory(model_bytes: int) -> None:
    if model_bytes < _LARGE_MODEL:
        return
    needed, free = _COPIES * model_bytes + _LAYERS, free_memory()
    if free is not None and needed > free:
        raise OutOfMemory(
            f"there is not enough memory: a training of this model needs about {size(needed)} more, "
            f"and {size(free)} can be had",
            hint="use a smaller model, or free some memory",
        )


def free_memory() -> int | None:
    """Bytes that this process may still take: of the machine, and of its own limit. None where nothing tells."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(1024 * int(next(line for line in text.splitlines() if line.startswith("MemAvailable")).split()[1]))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    with contextlib.suppress(OSError, ValueError, IndexError):
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            found.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)
