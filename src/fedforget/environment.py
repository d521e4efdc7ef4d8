"""What did the arithmetic: bits are promised only between equal environments."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def environment() -> dict[str, str]:
    """Versions and processor, as the record notes them."""
    import fedforget  # noqa: PLC0415

    return {
        "fedforget": fedforget.__version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "processor": _processor(),
        "threads": "1",
    }


def arithmetic(versions: dict[str, str]) -> tuple[str | None, ...]:
    """The part of an environment that can change the bits of a result."""
    return tuple(versions.get(key) for key in ("torch", "numpy", "processor", "threads"))


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
