"""Where a dataset is looked for, and what is said when it is nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedforget.data import hub, places
from fedforget.data.places import VARIABLE, find
from fedforget.data.registry import DATASETS
from fedforget.errors import DataMissing
from tests.data import made_up

MNIST = DATASETS["mnist"]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places, "_notes", lambda: tmp_path / "cache" / "fedforget" / "data.json")
    monkeypatch.delenv(VARIABLE, raising=False)


def write(base: Path, seed: int = 0) -> str:
    made_up.write_idx(base / "mnist", made_up.images((28, 28), 10, seed=seed))
    return str(base / "mnist")


def test_the_given_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, variable = write(tmp_path / "given"), write(tmp_path / "variable", 1)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "variable"))
    assert find(MNIST, tmp_path / "given", online=False).place == given
    assert find(MNIST, online=False).place == variable


def test_a_dataset_is_found_again_where_it_was_last(tmp_path: Path) -> None:
    place = write(tmp_path / "given")
    find(MNIST, tmp_path / "given", online=False)
    assert find(MNIST, online=False).place == place


def test_a_given_directory_without_it_is_not_replaced_by_another(tmp_path: Path) -> None:
    write(tmp_path / "given")
    find(MNIST, tmp_path / "given", online=False)
    with pytest.raises(DataMissing, match="empty"):
        find(MNIST, tmp_path / "empty", online=False)


@pytest.mark.parametrize("content", ["", "[]", '{"mnist": 3}', "\x00"])
def test_notes_that_cannot_be_read_are_no_error(tmp_path: Path, content: str) -> None:
    notes = tmp_path / "cache" / "fedforget" / "data.json"
    notes.parent.mkdir(parents=True)
    notes.write_text(content)
    with pytest.raises(DataMissing):
        find(MNIST, online=False)
    place = write(tmp_path / "given")
    assert find(MNIST, tmp_path / "given", online=False).place == place
    assert json.loads(notes.read_text())["mnist"] == str(tmp_path / "given")


def test_missing_dataset_error_lists_searched_places_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "variable"))
    monkeypatch.setattr(hub, "is_installed", lambda: False)
    with pytest.raises(DataMissing) as caught:
        find(MNIST)
    for word in (str(tmp_path / "variable"), VARIABLE, "ylecun/mnist", "not installed"):
        assert word in caught.value.message
    for word in ("train-images-idx3-ubyte", "DIR/mnist", "--data-dir", "fedforget[data]"):
        assert word in caught.value.hint


def test_the_hub_is_the_last_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(hub_id: str, folder: Path | None = None) -> object:
        asked.append((hub_id, folder))
        raise DataMissing("cannot read it: no network")

    monkeypatch.setattr(hub, "is_installed", lambda: True)
    monkeypatch.setattr(hub, "load", load)
    with pytest.raises(DataMissing, match="no network"):
        find(MNIST)
    assert asked == [("ylecun/mnist", None)]
    write(tmp_path / "given")
    find(MNIST, tmp_path / "given")
    assert len(asked) == 1
