"""The command ``reproduce``: files, resuming after a kill, and clear errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedforget.cli.app import app, commands
from fedforget.errors import InvalidInput, StorageFailed
from fedforget.experiments.reproduce import EXPERIMENTS
from fedforget.experiments.rows import COLUMNS, read_rows

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("FEDFORGET_")}
ENVIRONMENT["XDG_CACHE_HOME"] = os.devnull  # no place where data were found before
SMOKE = ["--scale", "smoke", "--federation", "inline", "--json"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "fedforget", "reproduce", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def performance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    done = run("performance", "--dataset", "digits", *SMOKE, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["performance"]["cells_computed"] == 2
    return out


def test_it_writes_csv_json_plots_and_one_report(performance: Path) -> None:
    names = {path.name for path in performance.iterdir()}
    assert names == {
        "performance.csv", "performance.json", "performance-digits.png", "performance-digits.svg", "report.html",
        "settings.json",
    }  # fmt: skip
    page = (performance / "report.html").read_text(encoding="utf-8")
    assert "data:image/svg+xml;base64," in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<td>performance</td><td>digits</td><td>smoke</td>" in page  # seeds
    assert "<th>torch</th>" in page  # versions
    header = (performance / "performance.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == ",".join(COLUMNS)


def test_the_digests_in_the_csv_show_exactness(performance: Path) -> None:
    rows = [row for row in read_rows(performance / "performance.csv") if row["kind"] == "summary"]
    fats = [row for row in rows if row["method"] == "FATS"]
    assert {row["level"] for row in fats} == {"sample", "client"}
    for row in fats:
        assert row["model_digest"] == row["retrained_digest"]
        assert len(row["model_digest"]) == 64
    digests = {row["model_digest"] for row in rows}
    assert len(digests) == len(rows)  # no two methods or levels end in the same model


def test_finished_cells_are_not_computed_again(performance: Path) -> None:
    before = (performance / "performance.csv").read_bytes()
    done = run("performance", "--dataset", "digits", *SMOKE, "--out", str(performance))
    found = json.loads(done.stdout)["performance"]
    assert (found["cells_computed"], found["cells_skipped"]) == (0, 2)
    assert (performance / "performance.csv").read_bytes() == before


def test_cells_of_another_optimiser_are_computed_again(performance: Path, tmp_path: Path) -> None:
    text = (performance / "performance.csv").read_text()
    lines = [line.replace("lr 0.3", "lr 0.2") if "/FRS/" in line else line for line in text.splitlines(keepends=True)]
    (tmp_path / "performance.csv").write_text("".join(lines))
    done = run("performance", "--dataset", "digits", *SMOKE, "--out", str(tmp_path))
    found = json.loads(done.stdout)["performance"]
    assert (found["cells_computed"], found["cells_skipped"]) == (1, 1)
    rows = read_rows(tmp_path / "performance.csv")
    assert {row["optimizer"] for row in rows} == {"lr 0.3, momentum 0.5"}
    assert len(rows) == len(lines) - 1


def test_a_torn_line_is_dropped_and_its_cell_computed_again(performance: Path, tmp_path: Path) -> None:
    whole = (performance / "performance.csv").read_bytes()
    (tmp_path / "performance.csv").write_bytes(whole[:-40])
    done = run("performance", "--dataset", "digits", *SMOKE, "--out", str(tmp_path))
    found = json.loads(done.stdout)["performance"]
    assert (found["cells_computed"], found["cells_skipped"]) == (1, 1)
    drop = COLUMNS.index("seconds")

    def content(data: bytes) -> list[list[str]]:
        return [line.split(",")[:drop] for line in data.decode().splitlines()]

    assert content((tmp_path / "performance.csv").read_bytes()) == content(whole)


def test_killed_command_resumes(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "fedforget", "reproduce", "efficiency", "--dataset", "shakespeare",
               "--scale", "smoke", "--out", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    path = tmp_path / "efficiency.csv"
    until = time.monotonic() + 60
    while time.monotonic() < until and (not path.exists() or path.read_bytes().count(b"\n") < 3):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {row["cell"] for row in read_rows(path)}
    done = run("efficiency", "--dataset", "shakespeare", *SMOKE, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["efficiency"]
    assert found["cells_skipped"] == len(kept) >= 1
    assert found["theory"]["agrees"]


def test_report_redraws_existing_results(performance: Path, tmp_path: Path) -> None:
    (tmp_path / "performance.csv").write_bytes((performance / "performance.csv").read_bytes())
    page = tmp_path / "results.md"
    done = run("report", "--out", str(tmp_path), "--markdown", str(page), "--json")
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "| 6.2.2 | One client: at most half of FRS's time | - | not measured |" in text
    assert (tmp_path / "performance-digits.svg").exists()


def test_forecast_is_printed_before_computing(tmp_path: Path) -> None:
    done = run("datasets", "--dataset", "mnist", "--scale", "smoke", "--out", str(tmp_path))
    assert "estimate: less than a minute" in done.stderr


def test_small_says_that_rho_halves(tmp_path: Path) -> None:
    arguments = ("--scale", "small", "--dataset", "digits", "--runs", "1", "--federation", "inline")
    done = run("performance", *arguments, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "ρ_C and ρ_S are half of the paper's" in done.stderr
    assert "Accuracy and cost of unlearning (digits at small scale)" in done.stdout


def test_a_scale_that_needs_more_disk_than_there_is_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedforget.baselines.simulation._IN_MEMORY", 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("U", (), {"free": 10})())
    commands()
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["reproduce", "performance", "--dataset", "digits", "--out", str(out)])
    assert isinstance(done.exception, StorageFailed)
    assert "performance/small/digits/FATS/1 keeps" in done.exception.message
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figures"], "unknown experiment 'figures'"),
        (["efficiency", "--scale", "huge"], "unknown scale 'huge'"),
        (["efficiency", "--runs", "0"], "cannot make 0 runs"),
        (["efficiency", "--markdown", "x.md"], "--markdown belongs to"),
        (["efficiency", "--published", "missing.csv"], "cannot read missing.csv"),
        (["performance", "--dataset", "kuzushiji"], "unknown dataset 'kuzushiji'"),
        (["performance", "--dataset", "shakespeare"], "performance has nothing to compute for shakespeare"),
        (["report"], "holds no results"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments: list[str], message: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    commands()
    done = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(out)])
    assert isinstance(done.exception, InvalidInput)
    assert message in done.exception.message
    assert done.exception.hint
    assert not out.exists()


def test_missing_data_are_one_line_and_leave_no_rows(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    out = tmp_path / "out"
    done = run("performance", "--dataset", "mnist", "--scale", "paper", "--data-dir", str(empty), "--out", str(out))
    assert done.returncode != 0
    assert "mnist was not found" in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error")]) == 1
    assert not out.exists()


def test_help_names_every_experiment() -> None:
    commands()  # fills the program
    text = CliRunner().invoke(app, ["reproduce", "--help"]).stdout
    for name in (*EXPERIMENTS, "all", "report"):
        assert name in text


@pytest.mark.slow
def test_all_at_smoke_scale_takes_less_than_two_minutes(tmp_path: Path) -> None:
    started = time.monotonic()
    done = run("all", *SMOKE, "--out", str(tmp_path), "--data-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 120
    found = json.loads(done.stdout)
    for name in ("efficiency", "requests", "tradeoff"):
        assert found[name]["theory"]["agrees"]
    for name in EXPERIMENTS:
        assert (tmp_path / f"{name}.csv").exists()
