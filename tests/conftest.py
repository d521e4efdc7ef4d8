"""What all tests share: the same examples and the same seeds on every machine, however slow it is."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fedforget.algorithm.seeds import SeedSource
from fedforget.data import places
from tests.helpers import scratch

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("repeatable")

OTHER_SEEDS = os.environ.get("FEDFORGET_TEST_SEEDS", "")  # every test must pass with any text here


@pytest.fixture(autouse=True)
def _repeatable_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without a given seed takes its seeds from the test's name, so a failure can be repeated."""
    numbers, real = itertools.count(), SeedSource._derive

    def derive(self: SeedSource, purpose: str, block: bytes = b"") -> bytes:
        if self.origin == "given":
            return real(self, purpose, block)
        text = f"{OTHER_SEEDS} {request.node.nodeid} {next(numbers)}"
        return hashlib.blake2b(text.encode(), digest_size=32).digest()

    monkeypatch.setattr(SeedSource, "_derive", derive)


@pytest.fixture(autouse=True)
def _no_noted_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where datasets were found last on this machine is no business of a test."""
    monkeypatch.setattr(places, "_notes", lambda: Path(os.devnull) / "data.json")


@pytest.fixture
def scratch_path() -> Iterator[Path]:
    """Like ``tmp_path``, in memory where that can be."""
    with scratch() as directory:
        yield directory
