"""A user's own app in a deployment: clients with state directories on disk, and a run that holds none of their data."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedforget import Plan, Request, Run
from fedforget.algorithm.seeds import SeedSource
from fedforget.client_side import ClientState
from fedforget.errors import InvalidInput, PlanRefused
from fedforget.flower import client_app, server_app
from fedforget.requests.lifecycle import Submission
from fedforget.session.deferral import accept
from fedforget.store import run_directory
from fedforget.store.state_digest import state_digest
from fedforget.training.streams import own_streams, start_stream
from tests.federation import test_pool
from tests.federation.flower_in_process import InProcessGrid
from tests.federation.test_flower_app import PLAN, build, samples_of

SEED = 3


class Machines:
    """The clients' machines: a state directory each, and the files that they sent to the server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.files = folder, folder / "run", folder / "enrolled"
        self.files.mkdir()
        self.clients = {
            client: ClientState.init(folder / f"client-{client}", client, samples_of(client), seed=SEED)
            for client in test_pool.DATA
        }
        for client in self.clients:
            self.enroll(client)
        self.app = client_app(model=build, data=samples_of)

    def enroll(self, client: int) -> None:
        (self.files / f"{client}.json").write_bytes(self.clients[client].enrolment())

    def flwr_run(self, plan: Plan = PLAN, **config: Any) -> None:
        """What `flwr run` does in a deployment."""
        nodes = {100 + place: {"state-dir": str(state.path)} for place, state in enumerate(self.clients.values())}
        grid = InProcessGrid(dict.fromkeys(nodes, self.app), nodes)
        given = {"run": str(self.run), "enrolled": str(self.files), "seed": SEED, "patience": 5, **config}
        server_app(model=build, data=samples_of, plan=plan)(grid, Context(1, 0, {}, RecordDict(), given))

    def digest(self) -> str:
        with run_directory.reading(self.run) as run:
            return state_digest(run)


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def inline(path: Path, *without: Request) -> str:
    with own_streams():
        start_stream(SeedSource(SEED).initial_model())
        model = build()
    run = Run(path, PLAN, model=model, data=test_pool.DATA, seed=SEED, without=without)
    run.train()
    return run.state_digest()


def test_app_trains_clients_that_keep_their_data(machines: Machines, tmp_path: Path) -> None:
    machines.flwr_run(rounds=2)
    machines.flwr_run()
    assert machines.digest() == inline(tmp_path / "inline")
    assert all(state.status().has_plan for state in machines.clients.values())


def test_requests_at_both_ends_are_carried_out_by_the_next_run(machines: Machines, tmp_path: Path) -> None:
    machines.flwr_run()
    machines.clients[2].forget([0], basis="exogenous")
    with run_directory.writing(machines.run) as run:
        accept(run, Submission.of((Request(4),), "exogenous"))
    machines.flwr_run()
    assert machines.digest() == inline(tmp_path / "never", Request(2, 0), Request(4))
    assert [receipt.state for receipt in machines.clients[2].receipts()] == ["purged"]
    assert machines.clients[4].status().left
    machines.flwr_run()  # the file of the erased client still lies there
    with run_directory.reading(machines.run) as run:
        assert 4 not in run.server.roster


def test_client_that_leaves_by_itself_is_purged_on_its_machine(machines: Machines, tmp_path: Path) -> None:
    machines.flwr_run()
    machines.clients[1].leave(basis="exogenous")
    machines.flwr_run()
    assert machines.digest() == inline(tmp_path / "never", Request(1))
    assert machines.clients[1].status().left
    assert [receipt.state for receipt in machines.clients[1].receipts()] == ["purged"]


def predicate_of(state: ClientState) -> dict[str, Any]:
    [receipt] = state.receipts()
    statement: dict[str, Any] = json.loads(base64.b64decode(state.signed_receipt(receipt.id)["payload"]))
    return dict(statement["predicate"])


def test_receipts_of_clients_name_those_of_the_server(machines: Machines) -> None:
    """Of a sample that was erased at its client, of a client that left, and of one that the server erased."""
    machines.flwr_run()
    machines.clients[2].forget([0], basis="exogenous")
    machines.flwr_run()
    machines.clients[1].leave(basis="exogenous")
    machines.flwr_run()
    with run_directory.writing(machines.run) as run:
        accept(run, Submission.of((Request(4),), "exogenous"))
    machines.flwr_run()
    with run_directory.reading(machines.run) as run:
        at_server = [receipt.id for receipt in run.record.book.receipts()]
    told = [predicate_of(machines.clients[client])["server"] for client in (2, 1, 4)]
    assert [each["server_receipt"] for each in told] == at_server
    assert {each["rounds_done"] for each in told} == {PLAN.rounds}


def test_newcomer_has_the_plan_before_its_first_round(machines: Machines, tmp_path: Path) -> None:
    file = machines.files / "3.json"
    late = file.read_bytes()
    file.unlink()
    machines.flwr_run()
    file.write_bytes(late)
    machines.flwr_run()
    assert machines.clients[3].status().has_plan
    assert machines.digest() == inline(tmp_path / "inline")


def test_another_plan_is_refused(machines: Machines) -> None:
    machines.flwr_run(rounds=1)
    with pytest.raises(PlanRefused, match="is a run with another plan"):
        machines.flwr_run(Plan(2, 3, 2, 4))


def test_deployment_without_enrolment_files_is_refused(machines: Machines) -> None:
    with pytest.raises(InvalidInput, match="there is no directory"):
        machines.flwr_run(enrolled=str(machines.folder / "nowhere"))
    for file in machines.files.iterdir():
        file.unlink()
    with pytest.raises(PlanRefused, match="no clients"):
        machines.flwr_run()
