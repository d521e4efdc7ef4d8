"""The commands on datasets from files: data list, data check, presets, and a run's whole life."""

from __future__ import annotations

import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fedforget.data import hub, places, registry
from fedforget.data.places import VARIABLE
from fedforget.experiments.presets import PRESETS, preset_of
from tests.cli.commandline import call, function_of, good, good_json, refused, state
from tests.data import made_up

SMALL = ("--clients-per-round", "2", "--batch-size", "3", "--local-steps", "2", "--rounds", "3", "--seed", "7")
INLINE = ("--federation", "inline")


@pytest.fixture(autouse=True)
def no_other_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is found but what a test writes."""
    monkeypatch.setattr(places, "_notes", lambda: tmp_path / "cache" / "data.json")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(hub, "is_installed", lambda: False)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("data")
    made_up.write_idx(base / "mnist", made_up.images((28, 28), 10, 120, 30))
    made_up.write_npz(base / "cifar-10" / "part.npz", made_up.images((32, 32, 3), 10, 60, 20))
    found = made_up.writers({"f0001_07": 110, "f0002_11": 45, "f0003_30": 120, "f0004_04": 105, "f0005_05": 130})
    made_up.write_writers_npz(base / "femnist" / "some.npz", found)
    made_up.write_roles(
        base / "shakespeare" / "roles.json.gz", made_up.roles({"LEAR": 1100, "FOOL": 1000, "GHOST": 900, "PAGE": 300})
    )
    return base


# data list, data check


def test_list_names_every_dataset_and_where_it_is(data_dir: Path) -> None:
    found = {row["name"]: row for row in good_json("data", "list", "--data-dir", data_dir)["datasets"]}
    assert set(found) == {"digits", *(preset.data for preset in PRESETS.values())}
    assert found["mnist"]["place"] == str(data_dir / "mnist")
    assert found["cifar-100"]["place"] is None
    assert found["femnist"]["hub"] == "flwrlabs/femnist"
    assert "not found" in good("data", "list").out


def test_check_counts_what_is_there(data_dir: Path) -> None:
    mnist = good_json("data", "check", "mnist", "--data-dir", data_dir)
    assert {key: mnist[key] for key in ("name", "found", "train", "test", "clients", "checksum_ok", "which")} == {
        "name": "mnist", "found": True, "train": 120, "test": 30, "clients": None, "checksum_ok": None,
        "which": "subset",
    }  # fmt: skip
    femnist = good_json("data", "check", "femnist", "--data-dir", data_dir)
    assert (femnist["train"], femnist["clients"], femnist["clients_used"]) == (510, 5, 4)
    assert good_json("data", "check", "digits")["train"] == 1437
    assert good_json("data", "check", "shakespeare", "--data-dir", data_dir)["clients"] == 3


def test_check_of_altered_data_fails(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    altered = replace(registry.DATASETS["mnist"], checksums={(120, 30): "0" * 32})
    monkeypatch.setitem(cast("dict[str, Any]", registry.DATASETS), "mnist", altered)
    result = call("data", "check", "mnist", "--data-dir", data_dir, "--json")
    assert result.code == 8
    assert result.json["checksum_ok"] is False
    assert result.error["code"] == "data-damaged"


def test_check_of_missing_data_says_where_it_looked(tmp_path: Path) -> None:
    plain = call("data", "check", "mnist", "--data-dir", tmp_path / "none")
    assert (plain.code, plain.out) == (3, "")
    assert len(plain.err.splitlines()) == 1
    assert str(tmp_path / "none") in plain.err
    scripted = call("data", "check", "mnist", "--data-dir", tmp_path / "none", "--json")
    assert scripted.json["found"] is False
    assert scripted.error["code"] == "data-missing"


def test_check_of_a_truncated_file_names_it(data_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(data_dir / "mnist", tmp_path / "mnist")
    os.truncate(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", 1000)
    result = call("data", "check", "mnist", "--data-dir", tmp_path)
    assert result.code == 8
    assert len(result.err.splitlines()) == 1
    assert "train-images-idx3-ubyte.gz" in result.err


def test_unknown_dataset_is_refused() -> None:
    assert "mnist" in refused(3, "invalid-input", "data", "check", "emnist")["hint"]
    assert "mnist" in refused(3, "invalid-input", "train", "--data", "emnist", *SMALL, "--out", "nowhere")["hint"]


# A run's life

LIVES = {
    "mnist": ("--data", "mnist", "--clients", "8", "--model", "mlp"),
    "mnist-equal": ("--data", "mnist", "--clients", "8", "--partition", "equal", "--model", "mlp"),
    "cifar-10": ("--data", "cifar-10", "--clients", "5", "--model", "mlp"),
    "femnist": ("--data", "femnist", "--model", "mlp"),
    "femnist-virtual": ("--data", "femnist", "--partition", "virtual", "--clients", "9", "--model", "mlp"),
    "digits-equal": ("--clients", "8", "--partition", "equal", "--beta", "1.5"),
}


def train(run: Path, life: str, data_dir: Path, *more: str | Path) -> None:
    good("train", *LIVES[life], *SMALL, "--data-dir", data_dir, *INLINE, "--out", run, *more)


@pytest.mark.parametrize("life", LIVES)
def test_forgetting_equals_training_without(life: str, data_dir: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", life, data_dir)
    clients = good_json("clients", tmp_path / "run")["clients"]
    first, second = clients[0]["client"], clients[1]["client"]
    sample = good_json("clients", tmp_path / "run", "--client", str(second))["ids"][0]
    asked = tmp_path / "requests.jsonl"
    asked.write_text(f'{{"client": "{first}"}}\n{{"client": "{second}", "sample": {sample}}}\n')
    good("forget", tmp_path / "run", "--batch", asked, "--basis", "exogenous", *INLINE)
    train(tmp_path / "without", life, data_dir, "--without", asked)
    assert function_of(tmp_path / "run") == function_of(tmp_path / "without")
    assert good_json("verify", tmp_path / "run", *INLINE)["ok"]
    good("add", tmp_path / "run", "--from", asked, "--returning", "--seed", "7", "--basis", "exogenous", *INLINE)
    train(tmp_path / "whole", life, data_dir)
    assert state(tmp_path / "run") == state(tmp_path / "whole")


def test_same_command_again_resumes_the_run(data_dir: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", "mnist", data_dir, "--until-round", "1")
    train(tmp_path / "run", "mnist", data_dir)
    train(tmp_path / "at-once", "mnist", data_dir)
    assert state(tmp_path / "run") == state(tmp_path / "at-once")
    error = refused(
        4, "plan-refused", "train", *LIVES["mnist-equal"], *SMALL,
        "--data-dir", data_dir, *INLINE, "--out", tmp_path / "run",
    )  # fmt: skip
    assert "dataset partition" in error["message"]


def test_plan_records_no_path(data_dir: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", "femnist", data_dir)
    text = (tmp_path / "run" / "plan.toml").read_text()
    assert str(data_dir) not in text
    assert 'partition = "natural"' in text
    assert 'which = "subset"' in text
    assert "checksum = " in text


def test_data_that_move_are_found_by_option_or_variable(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shutil.copytree(data_dir, tmp_path / "first")
    train(tmp_path / "run", "mnist", first)
    assert good_json("verify", tmp_path / "run", *INLINE)["ok"]  # where they were found last
    first.rename(tmp_path / "second")
    assert "first" in refused(3, "data-missing", "verify", tmp_path / "run", *INLINE)["message"]
    assert good_json("verify", tmp_path / "run", "--data-dir", tmp_path / "second", *INLINE)["ok"]
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "second"))
    assert good_json("verify", tmp_path / "run", *INLINE)["ok"]


def test_the_same_data_in_another_format_continue_the_run(data_dir: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", "mnist", data_dir)
    made_up.write_idx(tmp_path / "plain" / "mnist", made_up.images((28, 28), 10, 120, 30), zipped=False)
    good("forget", tmp_path / "run", "--client", "3", "--basis", "exogenous", "--data-dir", tmp_path / "plain", *INLINE)
    assert good_json("verify", tmp_path / "run", "--data-dir", tmp_path / "plain", *INLINE)["ok"]


def test_other_content_is_noticed_before_anything_changes(data_dir: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", "mnist", data_dir)
    before = function_of(tmp_path / "run")
    made_up.write_idx(tmp_path / "other" / "mnist", made_up.images((28, 28), 10, 120, 30, seed=1))
    refused(
        8, "data-changed", "forget", tmp_path / "run", "--client", "3", "--basis", "exogenous", "--data-dir",
        tmp_path / "other", *INLINE,
    )  # fmt: skip
    assert function_of(tmp_path / "run") == before


def test_run_verifies_on_data_without_what_was_erased(data_dir: Path, tmp_path: Path) -> None:
    """An auditor needs the remaining data only: here the erased client's images are blank, so the checksum differs."""
    run = tmp_path / "run"
    train(run, "mnist", data_dir)
    gone = good_json("clients", run, "--client", "3")["ids"]
    good("forget", run, "--client", "3", "--basis", "exogenous", *INLINE)
    splits = made_up.images((28, 28), 10, 120, 30)
    splits["train"][0][gone] = 0
    made_up.write_idx(tmp_path / "rest" / "mnist", splits)
    assert good_json("verify", run, "--data-dir", tmp_path / "rest", *INLINE)["ok"]
    splits["train"][0][next(row for row in range(120) if row not in gone)] = 0
    made_up.write_idx(tmp_path / "less" / "mnist", splits)
    assert call("verify", run, "--data-dir", tmp_path / "less", *INLINE).code == 1


def test_lost_model_is_rebuilt_and_receipt_replayed(data_dir: Path, tmp_path: Path) -> None:
    run, signed = tmp_path / "run", tmp_path / "receipt.json"
    train(run, "femnist", data_dir)
    receipts = good_json("forget", run, "--client", "f0003_30", "--basis", "exogenous", *INLINE)["receipts"]
    good("receipt", "show", run, receipts[0]["id"], "--out", signed)
    key = run / "receipt-key.pub.pem"
    where = ("--data-dir", data_dir)
    assert good_json("receipt", "verify", signed, "--key", key, "--run", run, *INLINE, *where)["ok"]
    sorted((run / "models").iterdir())[1].unlink()
    assert good_json("doctor", run, "--rebuild", *INLINE, *where)["ok"]


def test_erased_client_leaves_the_evaluation(data_dir: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, "femnist", data_dir, "--eval-every", "1")

    def measured() -> dict[object, int]:
        database = sqlite3.connect(f"file:{run / 'metrics.db'}?mode=ro", uri=True)
        rows = database.execute("SELECT client, count(*) FROM metrics GROUP BY client").fetchall()
        database.close()
        return dict(rows)

    assert measured() == {"f0001_07": 4, "f0003_30": 4, "f0004_04": 4, "f0005_05": 4}
    good("forget", run, "--client", "f0003_30", "--basis", "exogenous", "--eval-every", "1", *INLINE)
    assert set(measured()) == {"f0001_07", "f0004_04", "f0005_05"}
    train(tmp_path / "without", "femnist", data_dir, "--eval-every", "1", "--without", _without(tmp_path, "f0003_30"))
    assert good_json("status", run)["accuracies"] == good_json("status", tmp_path / "without")["accuracies"]
    returning = ("--from", _without(tmp_path, "f0003_30"), "--returning", "--seed", "7", "--basis", "exogenous")
    good("add", run, *returning, "--eval-every", "1", *INLINE)
    assert measured() == {"f0001_07": 4, "f0003_30": 4, "f0004_04": 4, "f0005_05": 4}


def _without(folder: Path, client: str) -> Path:
    path = folder / "without.jsonl"
    path.write_text(f'{{"client": "{client}"}}\n')
    return path


# Presets


def test_preset_is_the_papers_plan(data_dir: Path, tmp_path: Path) -> None:
    good(
        "train", "--preset", "mnist:authors", "--data-dir", data_dir, "--clients", "10", "--model", "mlp", "--rounds",
        "1", "--seed", "1", *INLINE, "--out", tmp_path / "run",
    )  # fmt: skip
    text = (tmp_path / "run" / "plan.toml").read_text()
    for line in ("clients_per_round = 5", "batch_size = 10", "local_steps = 10", "rounds = 1", "lr = 0.001",
                 "momentum = 0.9", "weight_decay = 0.0001", 'partition = "equal"', "clients = 10"):  # fmt: skip
        assert f"\n{line}\n" in text, line


def test_plan_counts_the_bytes_of_the_datasets_model(data_dir: Path) -> None:
    plan = ("plan", "--preset", "mnist", "--data-dir", data_dir, "--clients", "30")
    whole, small = (good_json(*plan, *model)["storage"] for model in ((), ("--model", "mlp")))
    assert whole["model_bytes"] == 4 * 6_497_162
    assert small["model_bytes"] == 4 * (784 * 64 + 64 + 64 * 10 + 10)


def test_rho_takes_the_place_of_the_presets_integers(data_dir: Path) -> None:
    found = good_json(
        "plan", "--preset", "mnist", "--data-dir", data_dir, "--clients", "30", "--rho-s", "0.5", "--rho-c", "1",
        "--local-steps", "1",
    )  # fmt: skip
    assert (found["clients_per_round"], found["rounds"]) == (1, 30)


@pytest.mark.parametrize("text", ["minst", "mnist:best", "mnist:", ""])
def test_unknown_presets_are_refused(text: str) -> None:
    error = refused(3, "invalid-input", "train", "--preset", text, "--out", "nowhere")
    assert "mnist" in error["hint"]


def test_preset_for_another_dataset_is_refused() -> None:
    refused(3, "invalid-input", "train", "--preset", "mnist", "--data", "femnist", "--out", "nowhere")


def test_default_optimiser_of_a_preset_is_tuned() -> None:
    assert preset_of("mnist") == preset_of("mnist:tuned")
    assert preset_of("shakespeare:printed")[0].printed.lr == 0.8


def test_model_that_does_not_fit_is_refused(data_dir: Path, tmp_path: Path) -> None:
    error = refused(
        3, "invalid-input", "train", "--data", "mnist", "--clients", "5", "--model", "lstm", *SMALL,
        "--data-dir", data_dir, "--out", tmp_path / "run",
    )  # fmt: skip
    assert "cnn, mlp" in error["hint"]
    assert not (tmp_path / "run").exists()


def test_run_begins_from_the_weights_of_a_file(data_dir: Path, tmp_path: Path) -> None:
    train(tmp_path / "first", "mnist", data_dir)
    good("export", tmp_path / "first", tmp_path / "model.safetensors")
    options = ("--weights", tmp_path / "model.safetensors", "--until-round", "0")
    train(tmp_path / "second", "mnist", data_dir, *options)
    good("export", tmp_path / "second", tmp_path / "again.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    assert 'weights = "' in (tmp_path / "second" / "plan.toml").read_text()
    train(tmp_path / "second", "mnist", data_dir, *options)
    good("train", tmp_path / "second", *INLINE)
    assert good_json("verify", tmp_path / "second", *INLINE)["ok"]
