"""The environment that computed a round. Results are bitwise equal only between equal environments."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

_GENERATION = {"family": "cpu family", "model": "model"}
_VECTORS = ("avx", "avx2", "avx512f")  # ascending; only the highest that the processor has is recorded
_BITS = {  # keys that may change the bits of a result, with their names in messages
    "torch": "torch",
    "numpy": "numpy",
    "processor": "the processor",
    "threads": "the number of threads",
    "vectors": "the vector instructions",
    "variables": "the environment variables",
    "probe": "the results of test operations",
}


@cache
def environment() -> dict[str, str]:
    """Return versions and processor, as the record stores them."""
    import fedforget  # noqa: PLC0415

    return {
        "fedforget": fedforget.__version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "processor": _processor(),
    }


def numeric_environment() -> dict[str, str]:
    """Return the environment together with torch's fingerprint."""
    from fedforget.training.arithmetic import fingerprint  # noqa: PLC0415 (torch)

    return {**environment(), **fingerprint()}


def arithmetic(versions: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return the part of an environment that can change the bits of a result."""
    return tuple(versions.get(key) for key in _BITS)


def arithmetic_digest() -> str:
    """Return a digest of what can change the bits of a result in this process."""
    found = json.dumps(arithmetic(numeric_environment()))
    return hashlib.blake2b(found.encode(), digest_size=16).hexdigest()


class _Trained(Protocol):
    @property
    def environment(self) -> Mapping[str, str]: ...


def is_mixed(trained: Iterable[_Trained]) -> bool:
    """Return whether environments with different arithmetic computed these rounds."""
    return len({arithmetic(each.environment) for each in trained}) > 1


def numeric_differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe the differences that may change the bits of a result."""
    return [
        f"{words}: {then.get(key) or 'none'} then, {now.get(key) or 'none'} now"
        for key, words in _BITS.items()
        if then.get(key) != now.get(key)
    ]


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name with what libraries select their loops by: one name may cover several generations."""
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
