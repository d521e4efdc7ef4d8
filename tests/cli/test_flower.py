"""Commands with ``--federation flower-simulation``, on nodes in this process: the states and digests of the pool."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fedforget import builtin
from fedforget.session.node_work import NodeWorker
from tests.cli.commandline import PLAN, good, good_json, refused
from tests.federation.flower_in_process import InNodes

ON_FLOWER = ("--federation", "flower-simulation")
INLINE = ("--federation", "inline")
STARTED: list[InNodes] = []


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes in this process in the place of a simulation's."""

    def start(processes: int | None, patience: float) -> object:
        STARTED.append(InNodes(NodeWorker(builtin.built_of)))
        return STARTED[-1].nodes

    monkeypatch.setattr("fedforget.session.engine.Simulation", start)
    monkeypatch.setattr("fedforget.session.workforce.Simulation", start)
    STARTED.clear()


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """The same run, trained on nodes and in one process."""
    flower, inline = tmp_path / "flower", tmp_path / "inline"
    good("train", "--out", flower, *PLAN, *ON_FLOWER)
    good("train", "--out", inline, *PLAN, *INLINE)
    return flower, inline


def states(runs: tuple[Path, Path]) -> list[str]:
    return [good_json("state", run)["digest"] for run in runs]


def test_every_command_that_computes_gives_the_state_of_one_process(runs: tuple[Path, Path], tmp_path: Path) -> None:
    assert len(set(states(runs))) == 1
    newcomers = tmp_path / "back.jsonl"
    newcomers.write_text('{"client": 3}\n')
    for arguments in (
        ("forget", "--client", "3", "--basis", "exogenous"),
        ("forget", "--client", "1", "--basis", "exogenous", "--defer"),
        ("run-pending", "--all"),
        ("add", "--from", newcomers, "--returning", "--seed", "7", "--basis", "exogenous"),
        ("forget", "--new-seed", "--basis", "exogenous"),
    ):
        name, *others = arguments
        for run, how in zip(runs, (ON_FLOWER, INLINE), strict=True):
            good(name, run, *others, *how)
        if "--new-seed" not in others:  # which come from the system
            assert len(set(states(runs))) == 1, arguments
    assert good_json("verify", runs[0], *ON_FLOWER)["ok"]


def test_json_reports_bytes_for_every_command_and_none_without_computing(runs: tuple[Path, Path]) -> None:
    flower, inline = runs
    trained = good_json("train", "--out", flower.with_name("again"), *PLAN, *ON_FLOWER)
    model = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert trained["bytes_up"] % model < model / 2  # ten small bodies
    assert min(trained["bytes_down"], trained["bytes_up"]) >= 5 * model
    again = good_json("train", flower, *ON_FLOWER)
    assert (again["bytes_up"], again["bytes_down"]) == (0, 0)
    forgotten = good_json("forget", flower, "--client", "3", "--basis", "exogenous", *ON_FLOWER)
    assert 0 < forgotten["bytes_up"] < trained["bytes_up"]
    waiting = good_json("run-pending", flower, "--all", *ON_FLOWER)
    assert (waiting["bytes_up"], waiting["bytes_down"]) == (0, 0)
    assert "bytes_up" not in good_json("train", inline, *INLINE)


def test_a_request_that_changes_no_draw_starts_no_flower(runs: tuple[Path, Path]) -> None:
    from fedforget.store import run_directory  # noqa: PLC0415 (only here)

    STARTED.clear()
    with run_directory.reading(runs[0]) as run:
        client, sample = next(
            (c, s)
            for c in run.server.roster
            for s in run.clients.samples(c)
            if s not in run.clients.first_steps(c)
        )  # fmt: skip
    target = ("--client", str(client), "--sample", str(sample), "--basis", "exogenous")
    told = good_json("forget", runs[0], *target, *ON_FLOWER)
    assert told["receipts"][0]["recomputed_steps"] == 0
    assert (told["bytes_up"], STARTED) == (0, [])


def test_the_experiments_share_one_simulation_and_give_the_digests_of_the_pool(tmp_path: Path) -> None:
    for name, how in (("flower", ON_FLOWER), ("inline", INLINE)):
        good("reproduce", "accuracy", "--scale", "smoke", "--out", tmp_path / name, *how)
    assert len(STARTED) == 1
    tables = [
        [
            {key: value for key, value in row.items() if key != "seconds"}
            for row in csv.DictReader((tmp_path / name / "accuracy.csv").read_text().splitlines())
        ]
        for name in ("flower", "inline")
    ]
    assert tables[0] == tables[1]
    assert any(row["model_digest"] for row in tables[0])
    assert json.loads((tmp_path / "flower" / "settings.json").read_text())["accuracy"]["federation"] == ON_FLOWER[1]


def test_workers_are_for_processes(tmp_path: Path) -> None:
    told = refused(3, "invalid-input", "train", "--out", tmp_path / "run", *PLAN, *INLINE, "--workers", "2")
    assert "--workers" in told["message"]
