"""The faults of a deployment on real processes, each compared with the undisturbed run. `make flower-torture`.

Prints a table in Markdown for docs/reliability.md. Every process that it starts ends with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedforget.errors import FedForgetError
from fedforget.store import run_directory
from tests.deployment.parties import Parties
from tests.deployment.superlink import Deployment, command_line, deployment, wait_for

CLIENTS, ROUNDS = 5, 4
Fault = Callable[[Parties], object]


def done(parties: Parties) -> int:
    return int(parties.asked("status", parties.run)["rounds_done"]) if (parties.run / "plan.toml").exists() else 0


@contextmanager
def training(parties: Parties) -> Iterator[object]:
    """Begin to train, and wait for the first round."""
    command = parties.there.begin(*parties.train_command())
    wait_for(lambda: done(parties) >= 1, 300)
    yield command
    command.wait(600)


def drawn(parties: Parties) -> int:
    """A client that a round draws later."""
    with run_directory.reading(parties.run, only_idle=False) as run:
        for client in range(1, CLIENTS):
            if run.server.first_round(client) is None:
                return client
    return 1


def kill_node(parties: Parties) -> None:
    there = parties.there
    with training(parties):
        client = drawn(parties)
        there.kill(there.nodes[parties.node(client)])
        time.sleep(75)  # Flower takes the same key again only then
        there.start_node(parties.node(client), parties.state_dir(client))


def kill_client_app(parties: Parties) -> None:
    with training(parties):
        for _ in range(50):
            found = [pid for pid in parties.there.processes("flwr-clientapp") if command_line(pid)]
            if found:
                parties.there.kill_pid(found[0])
                return
            time.sleep(0.2)


def kill_superlink(parties: Parties) -> None:
    there = parties.there
    command = there.begin(*parties.train_command())
    wait_for(lambda: done(parties) >= 1, 300)
    assert there.superlink is not None
    there.kill(there.superlink)
    command.wait(300)
    there.start_superlink()
    time.sleep(20)  # its nodes come back by themselves


def kill_command(parties: Parties) -> None:
    command = parties.there.begin(*parties.train_command())
    wait_for(lambda: done(parties) >= 2, 300)
    parties.there.kill(command)


def kill_recompute(parties: Parties) -> None:
    parties.called(*parties.train_command())
    with run_directory.reading(parties.run) as run:
        client = next(each for each in range(CLIENTS) if run.server.first_round(each) == 1)
    command = parties.there.begin("forget", parties.run, "--client", client, "--federation", "flower:there")
    wait_for(lambda: done(parties) < ROUNDS, 200)
    parties.there.kill(command)


FAULTS: dict[str, Fault] = {
    "kill -9 of the command": kill_command,
    "kill -9 of a SuperNode, started again": kill_node,
    "kill -9 of a ClientApp process": kill_client_app,
    "kill -9 of the SuperLink, started again": kill_superlink,
    "kill -9 during a recomputation": kill_recompute,
}


def lived(name: str, there: Deployment) -> tuple[bool, float]:
    parties = Parties(there, CLIENTS, ROUNDS)
    parties.start()
    began = time.monotonic()
    FAULTS[name](parties)
    parties.called(*parties.train_command(), timeout=900)
    with run_directory.reading(parties.run) as run:
        gone = [{"client": each} for each in range(CLIENTS) if each not in run.server.roster]
    equal = parties.digest() == parties.inline("undisturbed", gone)
    receipts = parties.asked("requests", parties.run)["receipts"]
    return equal and len(receipts) == len(gone), time.monotonic() - began


def main() -> None:
    chosen = [name for name in FAULTS if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]
    sys.stdout.write("| fault | the state is that of an undisturbed run | seconds |\n|---|---|---:|\n")
    wrong = []
    for name in chosen:
        with deployment() as there:
            try:
                equal, seconds = lived(name, there)
            except (AssertionError, FedForgetError, OSError, subprocess.SubprocessError) as error:
                sys.stderr.write(f"{name}: {error}\n{there.log('superlink')[-2000:]}\n")
                equal, seconds = False, 0.0
        wrong += [] if equal else [name]
        sys.stdout.write(f"| {name} | {'yes' if equal else 'NO'} | {seconds:.0f} |\n")
        sys.stdout.flush()
    sys.exit(json.dumps(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
