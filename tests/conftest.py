"""One Hypothesis profile for everybody: the same examples on every machine, however slow it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers import scratch

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture
def scratch_path() -> Iterator[Path]:
    """Like ``tmp_path``, in memory where that can be."""
    with scratch() as directory:
        yield directory
