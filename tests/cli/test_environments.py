"""A run that was trained elsewhere: what the command line refuses, and both ways on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedforget.training.environment
from fedforget.training.arithmetic import fingerprint
from tests.cli.commandline import FUNCTION, call, everything_of, good, good_json, refused, train


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of this machine, opened on another."""
    train(tmp_path / "run")
    here = dict(fedforget.training.environment.environment())
    monkeypatch.setattr(fedforget.training.environment, "environment", lambda: {**here, "processor": "another"})
    return tmp_path / "run"


def test_forget_in_another_environment_is_refused_and_changes_nothing(moved: Path) -> None:
    before = everything_of(moved)
    error = refused(16, "environment-differs", "forget", moved, "--client", "1")
    assert "compute all 5 rounds (10 steps)" in error["hint"]
    for name in FUNCTION[:-1]:
        assert everything_of(moved)[name] == before[name]
    assert good_json("status", moved)["requests"] == 0


def test_recompute_all_announces_its_cost_and_is_exact(moved: Path, tmp_path: Path) -> None:
    dry = good_json("forget", moved, "--client", "1", "--recompute-all", "--dry-run")
    assert dry["expected_steps"] == 10
    result = good("forget", moved, "--client", "1", "--recompute-all")
    assert "recomputing all 5 rounds (10 steps)" in result.err
    (tmp_path / "gone.jsonl").write_text('{"client": 1}\n')
    train(tmp_path / "never", "--without", tmp_path / "gone.jsonl")
    assert good_json("state", moved) == good_json("state", tmp_path / "never")


def test_status_and_verify_report_mixed_environments(moved: Path) -> None:
    assert "path (draws only)" in good("forget", moved, "--client", "1", "--accept-mixed").out
    status = good_json("status", moved)
    assert status["mixed_environments"]
    assert len(status["environments"]) == 2
    assert status["receipts"][0]["guarantee_covers"] == "draws"
    text = good("status", moved).out
    assert "mixed_environments  yes" in text
    assert "path (draws only)" in text
    verified = call("verify", moved)
    assert "different environments" in verified.err


def test_variables_that_change_the_arithmetic_of_a_real_process_are_noticed(tmp_path: Path) -> None:
    train(tmp_path / "run")
    command = [sys.executable, "-m", "fedforget", "forget", str(tmp_path / "run"), "--client", "1", "--json"]
    elsewhere = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    result = subprocess.run(command, env=elsewhere, capture_output=True, text=True, check=False)
    assert result.returncode == 16, result.stderr
    assert "ATEN_CPU_CAPABILITY=default" in json.loads(result.stderr)["error"]["message"]
    result = subprocess.run([*command, "--accept-mixed"], env=elsewhere, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "only the structure" not in result.stderr, "a kept round was trained again, and agrees up to rounding"
    assert json.loads(result.stdout)["receipts"][0]["guarantee_covers"] == "draws"


@pytest.mark.parametrize("name", ["NPY_ENABLE_CPU_FEATURES", "NPY_DISABLE_CPU_FEATURES"])
def test_variable_by_which_numpy_selects_its_loops_is_part_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "X86_V3")
    assert f"{name}=X86_V3" in fingerprint.__wrapped__()["variables"]


def test_every_client_loses_samples_at_the_command_line(tmp_path: Path) -> None:
    """FedForget reads the data itself, so the learner can always be compared."""
    run, gone = tmp_path / "run", tmp_path / "gone.jsonl"
    train(run)
    lines = list[str]()
    for more in ((), ("--recompute-all",)):
        for client in ("0", "1", "2", "3", "4", "5"):
            ids = good_json("clients", run, "--client", client)["ids"]
            lines += [json.dumps({"client": int(client), "sample": sample}) for sample in ids[:40]]
        gone.write_text("\n".join(lines))
        assert "nothing shows" not in good("forget", run, "--batch", gone, *more).err
    train(tmp_path / "never", "--without", gone)
    assert good_json("state", run) == good_json("state", tmp_path / "never")
