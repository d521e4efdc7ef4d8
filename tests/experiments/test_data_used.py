"""Results on data that are not the published ones: refused, or noted and kept apart."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedforget.cli.app import app, commands
from fedforget.data import places, registry
from fedforget.data.check import check, doubt_about
from fedforget.data.idx import NAMES
from fedforget.data.places import VARIABLE
from fedforget.errors import DataChanged, FedForgetError, InvalidInput
from fedforget.experiments.cells import Choice
from fedforget.experiments.data_used import checksums_of, is_of_published_data, require_one_kind, require_unchanged
from fedforget.experiments.rows import COLUMNS, read_rows
from tests.cli.commandline import good_json
from tests.data import made_up

Alteration = Callable[[Path], None]
COUNTS = (600, 600)


@pytest.fixture(autouse=True)
def no_other_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places, "_notes", lambda: tmp_path / "cache" / "data.json")
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small files whose checksums are the known ones."""
    base = tmp_path / "data"
    for seed, name in enumerate(("mnist", "fashion-mnist"), start=1):
        made_up.write_idx(base / name, made_up.images((28, 28), 10, *COUNTS, seed=seed), zipped=False)
        found = check(name, base).checksum
        assert found
        known = replace(registry.DATASETS[name], checksums={COUNTS: found})
        monkeypatch.setitem(registry.DATASETS, name, known)
    return base


def swap_splits(folder: Path) -> None:
    for train, test in zip(NAMES["train"], NAMES["test"], strict=True):
        (folder / train).rename(folder / "kept")
        (folder / test).rename(folder / train)
        (folder / "kept").rename(folder / test)


def train_as_test(folder: Path) -> None:
    for train, test in zip(NAMES["train"], NAMES["test"], strict=True):
        shutil.copy(folder / train, folder / test)


def flip_pixel(folder: Path) -> None:
    path = folder / NAMES["train"][0]
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


def other_dataset(folder: Path) -> None:
    for name in (*NAMES["train"], *NAMES["test"]):
        shutil.copy(folder.parent / "fashion-mnist" / name, folder / name)


ALTERATIONS = [swap_splits, train_as_test, flip_pixel, other_dataset]


def refusal(*arguments: str) -> FedForgetError:
    commands()
    done = CliRunner().invoke(app, ["reproduce", *arguments])
    assert isinstance(done.exception, FedForgetError), done.output
    return done.exception


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_reproduce_refuses_altered_data_and_leaves_nothing(published: Path, tmp_path: Path, alter: Alteration) -> None:
    alter(published / "mnist")
    words = "are those of fashion-mnist" if alter is other_dataset else "no checksum that is known"
    for experiment in ("performance", "datasets"):
        error = refusal(experiment, "--dataset", "mnist", "--scale", "paper", "--data-dir", str(published), "--out",
                        str(tmp_path / "out"))  # fmt: skip
        assert isinstance(error, DataChanged)
        assert words in error.message
        assert "\n" not in error.message
        assert "--accept-data" in (error.hint or "")
        assert not (tmp_path / "out").exists()


def test_the_published_data_are_not_doubted(published: Path) -> None:
    said: list[str] = []
    choice = Choice("paper", data_dir=published)
    assert set(checksums_of({"mnist"}, {"femnist"}, choice, said.append)) == {"mnist"}
    assert not said
    assert doubt_about("digits", None, None, "scikit-learn") is None


def test_rows_of_accepted_data_have_their_checksum_and_stay_apart(published: Path, tmp_path: Path) -> None:
    commands()
    arguments = ["datasets", "--dataset", "mnist", "--scale", "paper", "--data-dir", str(published)]
    for directory in ("ours", "others"):
        done = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path / directory), "--accept-data"])
        assert done.exit_code == 0, done.output
        rows = [row for row in read_rows(tmp_path / directory / "datasets.csv") if row["kind"] != "printed"]
        assert {row["data"] for row in rows} == {check("mnist", published).checksum}
        assert is_of_published_data(rows[0]) == (directory == "ours")
        flip_pixel(published / "mnist")
    before = (tmp_path / "others" / "datasets.csv").read_bytes()
    error = refusal(*arguments, "--out", str(tmp_path / "others"))  # the pixel is back: these are the published ones
    assert isinstance(error, InvalidInput)
    assert "has results on other data of mnist" in error.message
    assert (tmp_path / "others" / "datasets.csv").read_bytes() == before


def test_rows_of_two_kinds_of_data_are_not_joined(published: Path) -> None:
    known, other = check("mnist", published).checksum, "0" * 32
    assert known

    def row(data: str | None) -> dict[str, object]:
        return {**dict.fromkeys(COLUMNS), "experiment": "performance", "dataset": "mnist", "kind": "end", "data": data}

    own, theirs = (Choice("paper", checksums={"mnist": checksum}) for checksum in (other, known))
    require_one_kind([row(None), row(known)], theirs, Path("r.csv"))  # rows of an earlier version are of these
    require_one_kind([row(other)], own, Path("r.csv"))
    for rows, choice in (([row(None)], own), ([row(known)], own), ([row(other)], theirs)):
        with pytest.raises(InvalidInput, match=r"r\.csv has results on other data of mnist"):
            require_one_kind(rows, choice, Path("r.csv"))


def test_data_that_change_during_the_experiment_are_refused(published: Path) -> None:
    choice = Choice("paper", data_dir=published)
    source = places.find(registry.DATASETS["mnist"], published)
    known = replace(choice, checksums=checksums_of({"mnist"}, (), choice, print))
    require_unchanged(source, known)
    flip_pixel(published / "mnist")
    with pytest.raises(DataChanged, match="changed during"):
        require_unchanged(places.find(registry.DATASETS["mnist"], published), known)


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_train_warns_of_altered_data(published: Path, tmp_path: Path, alter: Alteration) -> None:
    arguments = ("train", "--data", "mnist", "--model", "mlp", "--clients", "4", "--clients-per-round", "2",
                 "--batch-size", "3", "--local-steps", "1", "--rounds", "1", "--federation", "inline")  # fmt: skip
    fine = good_json(*arguments, "--data-dir", published, "--out", tmp_path / "fine")
    assert not [each for each in fine["warnings"] if "mnist" in each]
    alter(published / "mnist")
    found = good_json(*arguments, "--data-dir", published, "--out", tmp_path / "run")
    assert [each for each in found["warnings"] if "the data of mnist" in each or "of mnist in" in each]


def test_the_known_checksums_do_not_depend_on_compression(published: Path) -> None:
    for path in list((published / "mnist").iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert check("mnist", published).checksum_ok
