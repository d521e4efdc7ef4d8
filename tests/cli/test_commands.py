"""Every command and every option, for people and for scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import typer
from safetensors.numpy import load_file

from fedforget import __version__
from fedforget.cli.app import app
from tests.cli.commandline import (
    COMMANDS,
    PLAN,
    ROUNDS,
    WORLD,
    Zygote,
    call,
    copy,
    everything_of,
    good,
    good_json,
    refused,
    requests_file,
    samples_of,
    state,
    train,
)

STATUS_KEYS = {
    "rounds_done", "rounds", "steps", "clients", "samples", "model_digest", "rho_s", "rho_c", "requests",
}  # fmt: skip
RECEIPT_KEYS = {
    "id", "batch_id", "level", "client", "state", "first_changed_step", "recomputed_steps", "model_digest", "guarantee",
}  # fmt: skip


def commands() -> dict[str, click.Command]:
    good("--help")  # fills the program with its commands
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        found |= (
            {f"{name} {n}": c for n, c in command.commands.items()}
            if isinstance(command, click.Group)
            else {name: command}
        )
    return found


def is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


# Help


def test_program_has_the_documented_commands() -> None:
    assert {name.split()[0] for name in commands()} == set(COMMANDS)


def test_every_command_and_every_option_has_help() -> None:
    for name, command in commands().items():
        assert command.help, name
        shown = good(*name.split(), "--help").out
        assert "\\[" not in shown, name  # brackets that were escaped for another printer
        for parameter in command.params:
            text = getattr(parameter, "help", None)
            assert text, f"{name} {parameter.name}"
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--"):
                    assert option in shown, f"{name} {option}"


def test_every_command_has_json() -> None:
    for name, command in commands().items():
        assert any("--json" in parameter.opts for parameter in command.params), name


def test_the_program_helps() -> None:
    shown = good("--help").out
    assert all(name in shown for name in COMMANDS)
    assert good("--version").out == f"fedforget {__version__}\n"


def test_no_command_at_all_is_a_usage_error_with_help() -> None:
    result = call()
    assert result.code == 2
    assert "Usage" in result.out + result.err


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("train", "--nonsense"), ("forget",), ("train", "--clients", "many"), ("status",), ("export", "x")],
)
def test_usage_error_is_one_line_and_exit_2(arguments: tuple[str, ...]) -> None:
    error = refused(2, "usage", *arguments)
    assert "\n" not in error["message"]


# plan


def test_plan_of_numbers() -> None:
    told = good_json(
        "plan", "--clients", "300", "--samples", "200", "--rho-s", "0.25", "--rho-c", "0.5", "--rounds", "30",
        "--local-steps", "10",
    )  # fmt: skip
    assert (told["clients_per_round"], told["batch_size"], told["steps"]) == (5, 10, 300)
    assert (told["rho_s"], told["rho_c"]) == (0.25, 0.5)
    assert 0 < told["sample"]["probability"] <= 0.25
    assert 0 < told["client"]["probability"] <= 0.5
    text = good("plan", "--clients", "9", "--samples", "20", *WORLD[2:], "--rounds", "3")
    assert "P(recompute)" in text.out
    assert "above 1" not in text.out


def test_plan_of_a_dataset_is_the_plan_that_train_makes(trained_once: Path) -> None:
    told, status = good_json("plan", "--data", "digits", *PLAN), good_json("status", trained_once)
    for key in ("clients", "samples", "clients_per_round", "batch_size", "rounds", "steps", "rho_s", "rho_c"):
        assert told[key] == status[key], key


# train


def test_train_for_people_and_for_scripts(tmp_path: Path) -> None:
    text = good("train", *PLAN, "--out", tmp_path / "text")
    assert "model_digest" in text.out
    assert not text.out.startswith("keeping")
    assert "keeping 6 models" in text.err, "the space it costs is said beforehand"
    told = train(tmp_path / "json")
    assert told.keys() >= STATUS_KEYS
    assert is_digest(told["model_digest"])
    assert (told["rounds_done"], told["rounds"], told["steps"], told["clients"]) == (ROUNDS, ROUNDS, 2 * ROUNDS, 6)
    assert told["model_digest"] in text.out
    assert (told["requests"], told["samples"]) == (0, 1437)


def test_train_by_rho_and_with_the_defaults(tmp_path: Path) -> None:
    options = ("--data", "digits", "--rho-s", "0.2", "--rho-c", "0.9", "--rounds", "9", "--local-steps", "2")
    told = good_json("train", *options, "--until-round", "1", "--out", tmp_path / "run")
    assert (told["clients"], told["clients_per_round"], told["seed_origin"]) == (60, 6, "system")
    assert told["rho_c"] <= 0.9
    assert good_json("train", *options, "--until-round", "2", "--out", tmp_path / "run")["rounds_done"] == 2


def test_without_a_seed_every_run_is_another(tmp_path: Path) -> None:
    for name in ("one", "other"):
        good("train", *WORLD[:-2], "--rounds", "1", "--out", tmp_path / name)
    assert state(tmp_path / "one") != state(tmp_path / "other")


def test_training_in_parts_gives_the_same_model(tmp_path: Path, trained_once: Path) -> None:
    run = tmp_path / "run"
    assert train(run, "--until-round", "2")["rounds_done"] == 2
    assert good_json("train", run, "--until-round", "3")["rounds_done"] == 3
    assert train(run, "--until-round", "4")["rounds_done"] == 4, "the same command with --out goes on too"
    assert good_json("train", run)["rounds_done"] == ROUNDS
    assert train(run)["rounds_done"] == ROUNDS
    assert state(run) == state(trained_once)


def test_config_files_and_the_command_line_over_them(tmp_path: Path, trained_once: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        'data = "digits"\nclients = 6\nclients-per-round = 2\nbatch_size = 3\nlocal-steps = 2\nrounds = 99\nseed = 7\n'
    )
    good("train", "--config", config, "--rounds", str(ROUNDS), "--out", tmp_path / "run")
    assert state(tmp_path / "run") == state(trained_once)
    assert good_json("plan", "--config", config)["rounds"] == 99


@pytest.mark.parametrize(
    "option",
    [
        ("--lr", "0.3"),
        ("--momentum", "0.5"),
        ("--weight-decay", "0.01"),
        ("--prox", "0.1"),
        ("--server-optimizer", "fedadam"),
        ("--server-optimizer", "fedadam", "--server-lr", "0.2"),
    ],
)
def test_options_of_the_optimisers_change_the_model(
    tmp_path: Path, trained_once: Path, option: tuple[str, ...]
) -> None:
    told = train(tmp_path / "run", *option)
    assert told["model_digest"] != good_json("status", trained_once)["model_digest"]
    assert good_json("verify", tmp_path / "run")["ok"]


@pytest.mark.parametrize(("keep", "files"), [("every", 6), ("2", 4), ("ends", 2)])
def test_keep_says_which_models_stay(tmp_path: Path, trained_once: Path, keep: str, files: int) -> None:
    told = train(tmp_path / "run", "--keep", keep, "--federation", "inline", "--device", "cpu")
    assert len(list((tmp_path / "run" / "models").iterdir())) == files
    assert told["model_digest"] == good_json("status", trained_once)["model_digest"]


def test_another_plan_seed_or_dataset_is_refused(trained: Path) -> None:
    before = everything_of(trained)
    for change in (("--rounds", "9"), ("--lr", "0.3"), ("--keep", "ends"), ("--clients", "7"), ("--batch-size", "4")):
        error = refused(4, "plan-refused", "train", *PLAN, *change, "--out", trained)
        assert "another plan" in error["message"]
    assert "another seed" in refused(4, "plan-refused", "train", *PLAN, "--seed", "8", "--out", trained)["message"]
    assert everything_of(trained) == before


def test_resuming_with_plan_options_is_refused(trained: Path, tmp_path: Path) -> None:
    assert "--lr" in refused(3, "invalid-input", "train", trained, "--lr", "0.3")["message"]
    refused(3, "invalid-input", "train", trained, "--out", tmp_path / "other")
    refused(3, "invalid-input", "train", trained, "--without", requests_file(tmp_path / "w", [(1, None)]))
    refused(3, "invalid-input", "train", *PLAN)


def test_without_leaves_out_the_targets(tmp_path: Path, trained_once: Path) -> None:
    sample = samples_of(trained_once, 0)[0]
    file = requests_file(tmp_path / "without.jsonl", [(3, None), (0, sample)])
    told = train(tmp_path / "run", "--without", file)
    assert told["clients"] == 5
    assert sample not in samples_of(tmp_path / "run", 0)
    assert train(tmp_path / "run", "--without", file)["clients"] == 5, "the same command goes on"
    error = refused(4, "plan-refused", "train", *PLAN, "--out", trained_once, "--without", file)
    assert "forget" in error["hint"]


# forget


def test_forget_for_people_and_for_scripts(trained: Path) -> None:
    sample = samples_of(trained, 0)[0]
    text = good("forget", trained, "--client", "0", "--sample", str(sample))
    assert "guarantee" in text.out
    status = good_json("status", trained)
    assert status["model_digest"] in text.out
    (receipt,) = good_json("forget", trained, "--client", "3")["receipts"]
    assert receipt.keys() >= RECEIPT_KEYS
    assert (receipt["level"], receipt["client"], receipt["state"]) == ("client", 3, "purged")
    assert receipt["model_digest"] == good_json("status", trained)["model_digest"]
    assert good_json("status", trained)["requests"] == 2
    assert good_json("status", trained)["clients"] == 5


def test_first_changed_step_counts_from_1_and_recomputing_from_its_round(trained: Path, tmp_path: Path) -> None:
    for client in range(6):
        run = copy(trained, tmp_path / f"run{client}")
        (receipt,) = good_json("forget", run, "--client", str(client))["receipts"]
        step = receipt["first_changed_step"]
        if step is None:
            assert receipt["recomputed_steps"] == 0
        else:
            assert step % 2 == 1, "a client changes a round from its first step on"
            assert 1 <= step <= 2 * ROUNDS
            assert receipt["recomputed_steps"] == 2 * ROUNDS - (step - 1)


def test_batch_of_requests_is_carried_out_with_one_rewind(trained: Path, tmp_path: Path) -> None:
    sample = samples_of(trained, 0)[0]
    requests = [(0, sample), (3, None), (0, sample)]
    receipts = good_json("forget", trained, "--batch", requests_file(tmp_path / "r", requests))["receipts"]
    assert len(receipts) == 2, "what stands twice is one request"
    assert len({receipt["id"] for receipt in receipts}) == 2
    assert len({receipt["batch_id"] for receipt in receipts}) == 1
    assert len({receipt["recomputed_steps"] for receipt in receipts}) == 1, "it is the batch's figure"
    assert [receipt["level"] for receipt in receipts] == ["sample", "client"]
    assert [(receipt["client"], receipt["sample"]) for receipt in receipts] == [(0, sample), (3, None)]


def test_dry_run_changes_nothing_and_reads_no_draws(trained: Path, tmp_path: Path) -> None:
    before = everything_of(trained)
    figures = [good_json("forget", trained, "--client", str(client), "--dry-run") for client in range(6)]
    assert len({figure["probability"] for figure in figures}) == 1, "every client costs the same a priori"
    assert figures[0]["dry_run"] is True
    assert 0 < figures[0]["probability"] < 1
    assert "nothing was changed" in good("forget", trained, "--client", "1", "--dry-run").out
    refused(3, "unknown-target", "forget", trained, "--client", "99", "--dry-run")
    assert everything_of(trained) == before


def test_dry_run_for_erased_data_costs_nothing(trained: Path) -> None:
    good("forget", trained, "--client", "3")
    assert good_json("forget", trained, "--client", "3", "--dry-run")["probability"] == 0


# Reading


def test_status_lists_receipts_without_client_ids(trained: Path) -> None:
    told = good_json("status", trained)
    assert told.keys() >= STATUS_KEYS
    assert told["model_digest"] in good("status", trained).out
    assert told["receipts"] == []
    good("forget", trained, "--client", "3")
    receipts = good_json("status", trained)["receipts"]
    assert len(receipts) == 1
    assert "client" not in receipts[0], "the record keeps no ids"
    assert receipts[0]["id"] in good("status", trained).out


def test_clients_lists_sizes_and_sample_ids(trained: Path) -> None:
    rows = good_json("clients", trained)["clients"]
    assert [row["client"] for row in rows] == list(range(6))
    assert sum(row["samples"] for row in rows) == 1437
    ids = good_json("clients", trained, "--client", "2")
    assert ids["samples"] == len(ids["ids"]) == rows[2]["samples"]
    assert good("clients", trained, "--client", "2").out.split() == [str(sample) for sample in ids["ids"]]
    assert len(good("clients", trained).out.splitlines()) == 8
    refused(3, "unknown-target", "clients", trained, "--client", "99")


def test_state_is_one_digest(trained: Path) -> None:
    text = good("state", trained)
    assert is_digest(text.out.strip())
    assert good_json("state", trained) == {"digest": text.out.strip()}


def test_reading_commands_change_nothing(trained: Path) -> None:
    before = everything_of(trained)
    for command in ("status", "clients", "state", "verify", "doctor"):
        good(command, trained)
    assert everything_of(trained) == before


# Proving


def test_verify_of_intact_run_is_ok(trained: Path) -> None:
    told = good_json("verify", trained)
    assert told["ok"] is told["bitwise_equal"] is told["chain_ok"] is told["seeds_ok"] is True
    assert (told["rounds_replayed"], told["models_compared"]) == (ROUNDS, ROUNDS)
    assert "bitwise_equal" in good("verify", trained).out


def test_prove_one_world() -> None:
    names = [world["name"] for world in good_json("prove", "--only", "everyone")["worlds"]]
    assert names
    assert all("everyone" in name for name in names)
    assert "every law is exact" in good("prove", "--only", "everyone").out


def test_export_loads_in_torch_and_safetensors(trained: Path, tmp_path: Path) -> None:
    plain, safe = tmp_path / "model.pt", tmp_path / "model.SafeTensors"
    told = good_json("export", trained, plain)
    assert told["model_digest"] == good_json("status", trained)["model_digest"]
    assert "model_digest" in good("export", trained, safe).out
    weights = torch.load(plain, weights_only=True)
    assert weights.keys() == load_file(safe).keys()
    for name, array in load_file(safe).items():
        assert torch.equal(weights[name], torch.from_numpy(array))


def test_doctor_on_intact_run_passes_every_check(trained: Path) -> None:
    machine, both = good_json("doctor"), good_json("doctor", trained)
    assert machine["ok"] is both["ok"] is True
    assert len(both["checks"]) > len(machine["checks"]) > 3
    assert "event chain" in good("doctor", trained).out


@pytest.mark.slow
def test_demo_ends_with_equal_digests(tmp_path: Path) -> None:
    told = good_json("demo", "--out", tmp_path / "demo")
    assert told["equal"] is True
    assert told["unlearned_digest"] == told["retrained_digest"]
    assert is_digest(told["unlearned_digest"])
    assert state(tmp_path / "demo" / "forgets") == state(tmp_path / "demo" / "never-had")
    refused(3, "invalid-input", "demo", "--out", tmp_path / "demo")
    free, used, client, batch = told["chapters"]
    assert (free["first_changed_step"], free["recomputed_steps"]) == (None, 0)
    assert 0 < used["recomputed_steps"] < told["steps"]
    assert client["requests"][0].startswith("client ")
    assert len(batch["requests"]) == 5
    for chapter in told["chapters"]:
        assert chapter["guarantee"] == "path"  # the demonstration chooses its requests by the draws
        assert 0 < chapter["probability"] < 1
        assert [step for step, _ in chapter["curve"]][-1] == told["steps"]
    assert told["retrained"][-1][1] == batch["accuracy_after"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_demo_with_other_seeds_and_its_picture(tmp_path: Path, seed: str) -> None:
    told = good("demo", "--seed", seed, "--plot", tmp_path / "demo.svg")
    assert "EQUAL, byte for byte" in told.out
    assert (tmp_path / "demo.svg").read_text().startswith("<?xml")
    refused(3, "invalid-input", "demo", "--plot", tmp_path / "demo.txt")


# Streams


def test_nothing_but_data_on_stdout(tmp_path: Path, trained: Path) -> None:
    calls: list[tuple[Any, ...]] = [
        ("plan", *PLAN), ("train", *PLAN, "--out", tmp_path / "new"), ("train", trained), ("status", trained),
        ("forget", trained, "--client", "1", "--dry-run"), ("forget", trained, "--client", "1"), ("clients", trained),
        ("clients", trained, "--client", "2"), ("state", trained), ("verify", trained), ("doctor", trained),
        ("export", trained, tmp_path / "model.pt"), ("prove", "--only", "everyone"),
    ]  # fmt: skip
    for arguments in calls:
        json.loads(good(*arguments, "--json").out)


def test_no_colour_and_no_bar_outside_a_terminal(tmp_path: Path, zygote: Zygote) -> None:
    done = zygote.run("train", *PLAN, "--out", tmp_path / "run")
    assert "model_digest" in done.out
    assert "\x1b" not in done.out + done.err


def test_no_colour_on_a_terminal_either(tmp_path: Path) -> None:
    controller, terminal = os.openpty()
    program = [sys.executable, "-m", "fedforget", "train", *PLAN, "--out", str(tmp_path / "run")]
    env = {**os.environ, "NO_COLOR": "1", "TERM": "xterm-256color"}
    with subprocess.Popen(program, env=env, stdout=terminal, stderr=terminal, cwd=tmp_path) as process:
        os.close(terminal)
        shown = b""
        try:
            while piece := os.read(controller, 65536):
                shown += piece
        except OSError:
            pass  # the terminal ends with the program
        os.close(controller)
        assert process.wait() == 0
    assert b"model_digest" in shown
    assert b"\x1b[3" not in shown, "no colours, though the bar may move the cursor"


def test_log_file(trained: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    good("--log-file", log, "forget", trained, "--client", "1")
    refused(3, "unknown-target", "--log-file", log, "forget", trained, "--client", "99")
    text = log.read_text()
    assert "carried out 1 requests" in text
    assert "unknown-target" in text
    refused(2, "usage", "--log-file", tmp_path / "no" / "such", "status", trained)


def test_closed_stdout_pipe_is_not_an_error(trained: Path) -> None:
    command = f'"{sys.executable}" -m fedforget clients "{trained}" --client 2 | true; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout in {"0\n", "141\n"}


def test_unwritable_stdout_exits_with_storage_failed(trained: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with Path("/dev/full").open("w") as full:
        program = [sys.executable, "-m", "fedforget", "state", str(trained)]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 10
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
