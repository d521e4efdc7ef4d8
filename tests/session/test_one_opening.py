"""An app that serves a deployment opens its run once: one reading of the plan, one rebuild of each database.

A command of a client opens its state directory once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fedforget.algorithm.seeds import SeedSource
from fedforget.client_side import ClientState, directory
from fedforget.federation.flower.post import GridPost
from fedforget.flower import server
from fedforget.flower.server import ShowProgress
from tests.cli.commandline import good
from tests.counting import counting
from tests.requests.world import DATA
from tests.session.deployed import Deployed


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what happens from now on."""
    return counting(monkeypatch, (directory, "_open", "opened"))


def served(there: Deployed, until: int) -> list[str]:
    """Serve the deployment as a user's ServerApp does. Return what the app shows."""
    shown: list[str] = []
    progress = ShowProgress(
        lambda round_: shown.append(f"trained {round_}"),
        lambda round_: shown.append(f"recomputed {round_}"),
        lambda receipt: shown.append(receipt.state),
    )
    app = server.Deployed(there.path, there.plan, there.model, None, SeedSource(1), None)
    app.work(GridPost(there.grid), 5.0, until, None, progress)
    return shown


ONCE = {"locked": 1, "opened": 1, "plan read": 1, "rebuilt server.db": 1, "rebuilt contacts.db": 1}


def test_app_that_trains_opens_its_run_once(tmp_path: Path, counted: Counter[str]) -> None:
    there = Deployed(tmp_path / "run")
    counted.clear()
    assert served(there, 2) == ["trained 1", "trained 2"]
    assert counted == ONCE


def test_app_with_a_pending_request_opens_its_run_once_and_shows_what_it_recomputes(
    tmp_path: Path, counted: Counter[str]
) -> None:
    there = Deployed(tmp_path / "run")
    served(there, 4)
    good("forget", there.path, "--client", "3", "--defer", "--basis", "exogenous")
    counted.clear()
    shown = served(there, 5)
    assert "purged" in shown
    assert shown[-1] == "trained 5"
    assert any(line.startswith("recomputed") for line in shown)
    assert (counted["opened"], counted["locked"], counted["plan read"]) == (1, 1, 1)


def test_app_creates_its_run_and_opens_it_once(tmp_path: Path, counted: Counter[str]) -> None:
    there = Deployed(tmp_path / "run")
    enrolled = [there.enrolment(client) for client in there.members]
    new = server.Deployed(tmp_path / "new", there.plan, there.model, None, SeedSource(1), tmp_path)
    counted.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "enrolments_in", lambda _: enrolled)
        with new._opened() as run:
            assert not run.server.rounds_done
    assert (counted["opened"], counted["plan read"]) == (1, 1)


def test_client_commands_open_the_state_directory_once(tmp_path: Path, counted: Counter[str]) -> None:
    state = tmp_path / "state"
    ClientState.init(state, 3, DATA[3])
    commands = {
        ("status",): {"opened": 1},
        ("forget", "--sample", "1"): {"opened": 1, "locked": 1},
        ("receipt",): {"opened": 1},
        ("enrolment", "--out", str(tmp_path / "enrolment.json")): {"opened": 1},
        ("leave",): {"opened": 1, "locked": 1},
    }
    for (name, *options), expected in commands.items():
        counted.clear()
        good("client", name, "--state-dir", state, *options)
        assert counted == expected, name
