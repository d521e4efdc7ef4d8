"""Runs to start from, and processes to run in."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sklearn import datasets

from tests.cli.commandline import Zygote, copy, train, zygote_in


@pytest.fixture(scope="session", autouse=True)
def digits_read_once() -> Iterator[None]:
    """Reading the digits takes longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_digits", functools.cache(datasets.load_digits))
        yield


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    train(run)
    return run


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A finished run that a test may change."""
    return copy(trained_once, tmp_path / "trained")


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with zygote_in(tmp_path_factory.mktemp("zygote")) as made:
        yield made
