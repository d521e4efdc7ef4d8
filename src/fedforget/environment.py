"""What did the arithmetic: bits are promised only between equal environments."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

_GENERATION = {"family": "cpu family", "model": "model"}
_VECTORS = ("avx", "avx2", "avx512f")  # the last that is there counts


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


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Its name, and what libraries choose their arithmetic by: a name may stand for several generations."""
    facts: dict[str, str] = {}
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    numbers = [f"{key} {facts[name]}" for key, name in _GENERATION.items() if name in facts]
    vectors = [flag for flag in _VECTORS if flag in facts.get("flags", "").split()]
    return ", ".join((facts["model name"], *numbers, *vectors[-1:]))
