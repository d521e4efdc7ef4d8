"""The examples run as they are, and the notebook is stored with what it printed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NOTEBOOK = EXAMPLES / "quickstart.ipynb"
FLOWER_ROOM = EXAMPLES.parent / "src" / "fedforget" / "flower"
APPS = (EXAMPLES / "flower-mnist", EXAMPLES / "flower-quickstart" / "after")


def keys_that_server_app_reads() -> set[str]:
    sources = "".join(path.read_text(encoding="utf-8") for path in FLOWER_ROOM.glob("*.py"))
    found = re.findall(r'\bconfig(?:\.get\(|\[)"([a-z-]+)"', sources)
    return set(found)


def printed(notebook: nbformat.NotebookNode) -> str:
    """What its cells printed, without digests and figures: those may differ on another processor."""
    texts = [
        out["text"] for cell in notebook.cells for out in cell.get("outputs", ()) if out["output_type"] == "stream"
    ]
    return re.sub(r"[0-9a-f]{16,}|[0-9.]+|None", "#", "".join(texts))


def test_the_notebook_is_stored_executed_and_without_errors() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [out for cell in cells for out in cell.outputs]
    assert not [out for out in outputs if out["output_type"] == "error"]
    assert [out for out in outputs if "image/png" in out.get("data", {})]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the Jupyter client's own libraries
def test_the_notebook_runs_and_prints_what_is_stored() -> None:
    stored = nbformat.read(NOTEBOOK, 4)
    again = nbformat.read(NOTEBOOK, 4)
    NotebookClient(again, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    assert printed(again) == printed(stored)


@pytest.mark.slow
def test_own_model_runs(tmp_path: Path) -> None:
    program = [sys.executable, str(EXAMPLES / "own_model.py")]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "guarantee law-and-path" in done.stdout
    assert done.stdout.splitlines()[-1] == "exported 2050 weights"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("app", APPS, ids=lambda path: path.name)
def test_app_declares_every_key_that_server_app_reads(app: Path) -> None:
    """Flower refuses a key in --run-config that the app does not declare, so the app could not be deployed."""
    declared = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    assert keys_that_server_app_reads() >= {"run", "rounds", "seed", "eval-every", "without", "enrolled", "patience"}
    assert declared.keys() == keys_that_server_app_reads()


def test_every_key_of_the_run_config_is_documented() -> None:
    page = (EXAMPLES.parent / "docs" / "flower.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) >= keys_that_server_app_reads()
