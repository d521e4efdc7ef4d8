"""The samples of one client, from the source that its state directory records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedforget.data.one_client import samples_recorded
from fedforget.errors import InvalidInput

MODULE = """
def samples(client):
    return {client: ([1.0], 0)}

def broken(client):
    raise RuntimeError("the database is gone")
"""
DIGITS = {"name": "digits", "clients": 3, "beta": 0.5, "partition_seed": "00" * 32}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "ward_data.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "ward_data"


def found(noted: dict[str, Any], client: int | str) -> Any:
    return samples_recorded(noted, client, Path("state"), hint="give --data")


def test_recorded_function_is_called_with_the_client(module: str) -> None:
    assert found({"own": f"{module}:samples"}, "w") == {"w": ([1.0], 0)}


def test_recorded_dataset_gives_one_clients_part() -> None:
    parts = [set(found(DIGITS, client)) for client in range(3)]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts))


@pytest.mark.parametrize(
    ("noted", "client", "message"),
    [
        ({"own": "ward_data:broken"}, "w", "cannot be read: RuntimeError: the database is gone"),
        ({"own": "ward_data:none"}, "w", "cannot be read: AttributeError"),
        ({"own": "no_such_module:samples"}, "w", "cannot be read: there is no module"),
        (DIGITS, 9, "the dataset has no client 9"),
        ({**DIGITS, "partition_seed": "?"}, 1, "names a dataset that cannot be read"),
        ({}, "w", "records no source of its samples"),
    ],
)
def test_source_that_cannot_be_read_raises_invalid_input(
    module: str,
    noted: dict[str, Any],
    client: int | str,
    message: str,
) -> None:
    with pytest.raises(InvalidInput, match=message):
        found(noted, client)
