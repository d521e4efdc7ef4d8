"""One real deployment: SuperLink, SuperNodes, TLS and node authentication, a kill, erasures, and verification."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fedforget.algorithm.ids import Id
from fedforget.store import run_directory
from tests.deployment.parties import Parties
from tests.deployment.superlink import Deployment, deployment, wait_for

pytestmark = pytest.mark.slow
ROUNDS = 3


@pytest.fixture
def there() -> Iterator[Deployment]:
    with deployment() as made:
        yield made


def test_deployment_lives_through_a_kill_and_erasures_with_the_state_of_one_process(there: Deployment) -> None:
    parties = Parties(there, 3, ROUNDS)
    parties.start()

    there.make_key("stranger")  # a node whose key is not registered
    stranger = there.start_node("stranger", parties.state_dir(0))

    command = there.begin(*parties.train_command())
    wait_for(lambda: (parties.run / "plan.toml").exists() and done(parties) >= 1, 240)
    there.kill(command)
    assert done(parties) < ROUNDS
    parties.called(*parties.train_command())
    assert parties.digest() == parties.inline("whole")
    assert stranger.wait(60) != 0, "Flower refuses a node with an unknown key"

    sample = used(parties, 1)
    parties.called("client", "forget", "--state-dir", parties.state_dir(1), "--sample", sample)
    parties.through("run-pending")
    gone = [{"client": 1, "sample": sample}]
    assert parties.digest() == parties.inline("without a sample", gone)
    (receipt,) = parties.through("forget", "--client", 2, "--basis", "exogenous")["receipts"]
    assert receipt["state"] == "purged"
    assert parties.digest() == parties.inline("without a client", [*gone, {"client": 2}])
    assert parties.through("verify")["ok"]


def done(parties: Parties) -> int:
    return int(parties.asked("status", parties.run)["rounds_done"])


def used(parties: Parties, client: int) -> Id:
    """A sample of a client that was used, as the run in one process knows."""
    with run_directory.reading(parties.there.folder / "whole") as run:
        return next(iter(run.clients.first_steps(client)))


def test_deployment_ends_every_process() -> None:
    with deployment() as there:
        there.start_superlink()
        mine = there.processes("")
        assert mine
    time.sleep(0.5)
    assert there.processes("") == []
