"""Option groups, ``--quiet`` and shell completion."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fedforget.cli.option_groups import grouped
from tests.cli.commandline import PLAN, call, good, train


@dataclass(frozen=True)
class Shape:
    sides: Annotated[int, typer.Option(help="How many sides.")] = 3
    colour: Annotated[str | None, typer.Option("--colour", "-c", help="Its colour.")] = None


def test_fields_of_a_group_become_options_with_their_defaults() -> None:
    app, seen = typer.Typer(), list[tuple[str, Shape, bool]]()

    @app.command()
    @grouped
    def draw(name: str, *, shape: Shape, dry: bool = False) -> None:
        seen.append((name, shape, dry))

    for arguments in (["a"], ["b", "--sides", "5", "-c", "red", "--dry"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert seen == [("a", Shape(), False), ("b", Shape(5, "red"), True)]
    assert "How many sides." in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["a", "--sides", "many"]).exit_code == 2


def test_quiet_leaves_out_notes_and_progress_but_not_results_warnings_and_errors(tmp_path: Path) -> None:
    loud = good("train", *PLAN, "--out", tmp_path / "loud")
    quiet = good("train", *PLAN, "--out", tmp_path / "quiet", "--quiet")
    assert "keeping" in loud.err
    assert quiet.err.splitlines() == [line for line in loud.err.splitlines() if line.startswith("warning: ")]
    assert quiet.out.splitlines()[1:] == loud.out.splitlines()[1:]
    assert call("train", tmp_path / "missing", "-q").err.startswith("error: ")


def test_quiet_shows_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedforget.cli.progress._PLAIN_EVERY", 0.0)
    train(tmp_path / "run")
    assert "replaying: round 1 of 5" in good("verify", tmp_path / "run").err
    assert good("verify", tmp_path / "run", "--quiet").err == ""


def test_a_workforce_that_cannot_be_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    for option in (("--workers", "0"), ("--federation", "pigeons"), ("--eval-every", "0"), ("--worker-timeout", "-1")):
        assert call("train", *PLAN, "--out", tmp_path / "run", *option).code == 3
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fedforget run-p", "run-pending"),
        ("fedforget forget --idem", "--idempotency-key"),
        ("fedforget receipt s", "show"),
    ],
)
def test_the_shell_completes_commands_and_options(words: str, expected: str) -> None:
    asked = {"_FEDFORGET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "fedforget"], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [expected]
