"""The faults of a deployment on real processes. Each begins with a run that is not there, and states as they were made.

``lived`` trains to the end afterwards, and compares the state with that of an undisturbed run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.session.status import status_of
from fedforget.store import run_directory
from tests.deployment.parties import Parties
from tests.deployment.superlink import NAME, command_line, wait_for

CLIENTS, ROUNDS = 5, 3
SHORT = ("--worker-timeout", "75")  # seconds that a client may stay silent
THERE = ("--federation", f"flower:{NAME}")
Fault = Callable[[Parties], object]


def done(parties: Parties) -> int:
    return rounds_done_in(parties.run)


def rounds_done_in(path: Path) -> int:
    if not (path / "plan.toml").exists():
        return 0
    with run_directory.reading(path, only_idle=False) as run:
        return run.server.rounds_done


def status(parties: Parties) -> Mapping[str, Any]:
    with run_directory.reading(parties.run, only_idle=False) as run:
        found = status_of(run)
    return {"rounds_done": found.rounds_done, "silent": found.silent, "undelivered": found.undelivered}


def drawn_next(parties: Parties, after: int = 1) -> int:
    """A client that a later round draws, and no round up to ``after``: it has taken no part yet."""
    parties.inline("foretold")
    with run_directory.reading(parties.there.folder / "foretold") as run:
        first = {client: run.server.first_round(client) for client in range(parties.count)}
    return min(client for client, round_ in first.items() if round_ is not None and round_ > after)


def drawn_first(parties: Parties) -> Id:
    """A client that the first round draws."""
    with run_directory.reading(parties.run) as run:
        return next(each for each in range(CLIENTS) if run.server.first_round(each) == 1)


# Kills


@contextmanager
def training(parties: Parties) -> Iterator[None]:
    """Begin to train, and wait for the first round."""
    command = parties.there.begin(*parties.train_command())
    wait_for(lambda: done(parties) >= 1, 400)
    yield
    command.wait(900)


def kill_command(parties: Parties) -> None:
    command = parties.there.begin(*parties.train_command())
    wait_for(lambda: done(parties) >= 2, 400)
    parties.there.kill(command)


def kill_node(parties: Parties) -> None:
    there, client = parties.there, drawn_next(parties)
    with training(parties):
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
    command = parties.there.begin(*parties.train_command())
    wait_for(lambda: done(parties) >= 1, 400)
    restart_superlink(parties)
    command.wait(300)


def restart_superlink(parties: Parties) -> None:
    there = parties.there
    assert there.superlink is not None
    there.kill(there.superlink)
    there.start_superlink()
    time.sleep(20)  # its nodes come back by themselves


def kill_recompute(parties: Parties) -> None:
    parties.called(*parties.train_command())
    client = drawn_first(parties)
    command = parties.there.begin("forget", parties.run, "--client", client, *THERE)
    wait_for(lambda: done(parties) < ROUNDS, 300)
    parties.there.kill(command)


# A client that stays away


def silenced(parties: Parties) -> int:
    """Let a client be away when its round comes. The round blocks, and the status names the client."""
    client = drawn_next(parties)
    parties.called(*parties.train_command("--until-round", 1))
    parties.there.pause(parties.there.nodes[parties.node(client)])
    error = parties.refused(*parties.train_command(*SHORT))
    assert (error["code"], error["exit"]) == ("client-unreachable", 19), error
    require_blocked(parties, client)
    return client


def require_blocked(parties: Parties, client: int) -> None:
    [silence] = status(parties)["silent"]
    assert silence["client"] == client
    assert silence["round"] == done(parties) + 1
    assert silence["since"].startswith("20")
    error = parties.refused("status", parties.run, "--check")
    assert error["exit"] == 17, error
    assert f"client {client} has not answered since" in error["message"]


def require_draw_informed(parties: Parties, client: int) -> None:
    """Erase a client because it is silent: the receipt claims equality path by path only."""
    erase = ("forget", parties.run, "--client", client, "--basis", "model-informed")
    [receipt] = parties.asked(*erase, *THERE, *SHORT)["receipts"]
    assert (receipt["state"], receipt["basis"], receipt["guarantee"]) == ("purged", "model-informed", "path"), receipt


def back_again(parties: Parties) -> None:
    """A client that is away, and is back: nothing is lost."""
    client = silenced(parties)
    parties.there.pause(parties.there.nodes[parties.node(client)], on=False)
    parties.called(*parties.train_command())
    assert status(parties)["silent"] == []


def stays_away(parties: Parties) -> None:
    """A client that stays away and is erased; when it is back, it is told, and purges its own directory."""
    client = silenced(parties)
    require_draw_informed(parties, client)
    parties.called(*parties.train_command())
    assert status(parties)["undelivered"] == 1
    parties.there.pause(parties.there.nodes[parties.node(client)], on=False)
    require_told(parties, client)


def require_told(parties: Parties, client: int) -> None:
    for _ in range(6):
        parties.through("run-pending")
        if not status(parties)["undelivered"]:
            break
        time.sleep(10)
    assert status(parties)["undelivered"] == 0
    assert parties.asked("client", "status", "--state-dir", parties.state_dir(client))["left"]


# A client that answers wrongly


def late_after_erasure(parties: Parties) -> None:
    """A client answers its round only after it was erased."""
    client = drawn_next(parties)
    parties.there.fault(parties.node(client)).write_text("late 150")
    error = parties.refused(*parties.train_command(*SHORT))
    assert error["exit"] == 19, error
    require_draw_informed(parties, client)
    time.sleep(90)  # by then it has sent it
    require_told(parties, client)


def answers_twice(parties: Parties) -> None:
    """Every node answers each message twice, and carries it out twice."""
    nodes = [parties.node(client) for client in range(CLIENTS)]
    for node in nodes:
        parties.there.fault(node).write_text("twice")
    parties.called(*parties.train_command())
    parties.called("forget", parties.run, "--client", drawn_first(parties), "--basis", "exogenous", *THERE)
    assert any("the second answer was" in parties.there.log(node) for node in nodes)


def sends(kind: str, says: str) -> Fault:
    """A client sends a model that cannot be averaged: it is named; once repaired it trains."""

    def fault(parties: Parties) -> None:
        client = drawn_next(parties)
        parties.called(*parties.train_command("--until-round", 1))
        parties.there.fault(parties.node(client)).write_text(kind)
        error = parties.refused(*parties.train_command())
        assert says in error["message"], error
        assert f"client {client} " in error["message"], error
        parties.there.fault(parties.node(client)).unlink()

    return fault


# A client that lost its state


def lost(parties: Parties) -> int:
    """Let a client that took part have a new state directory: it is named, and both ways out are offered."""
    parties.called(*parties.train_command("--until-round", 2))
    client = int(drawn_first(parties))
    shutil.copytree(parties.state_dir(client), backup(parties, client))
    parties.make_state(client, seed=99)
    error = parties.refused("verify", parties.run, *THERE)
    assert str(client) in error["message"], error
    with suppress(AssertionError):  # the next round may not draw it
        parties.refused(*parties.train_command("--until-round", 2, *SHORT))
    return client


def backup(parties: Parties, client: int) -> Any:
    return parties.there.folder / f"backup-{client}"


def lost_and_restored(parties: Parties) -> None:
    client = lost(parties)
    shutil.rmtree(parties.state_dir(client))
    backup(parties, client).rename(parties.state_dir(client))


def lost_and_erased(parties: Parties) -> None:
    client = lost(parties)
    shutil.rmtree(backup(parties, client))
    erase = ("forget", parties.run, "--client", client, "--basis", "model-informed", *THERE, *SHORT)
    [receipt] = parties.asked(*erase)["receipts"]
    assert (receipt["state"], receipt["guarantee"]) == ("purged", "path")


FAULTS: dict[str, Fault] = {
    "kill -9 of the command": kill_command,
    "kill -9 of a SuperNode in a round, started again after 75 s": kill_node,
    "kill -9 of a ClientApp process": kill_client_app,
    "kill -9 of the SuperLink, started again": kill_superlink,
    "kill -9 during a recomputation": kill_recompute,
    "a client is away when it is drawn, and comes back": back_again,
    "a client stays away, and is erased; it is told when it is back": stays_away,
    "a client answers its round after it was erased": late_after_erasure,
    "every node carries out each message twice, and answers twice": answers_twice,
    "a client sends NaN": sends("nan", "not finite"),
    "a client sends another shape": sends("shape", "in another shape"),
    "a client lost its state, and it is restored": lost_and_restored,
    "a client lost its state, and is erased": lost_and_erased,
}


def lived(name: str, parties: Parties) -> tuple[bool, float]:
    """Live through a fault, train to the end, and compare with the undisturbed run. Return the seconds, too."""
    parties.renew()
    began = time.monotonic()
    FAULTS[name](parties)
    parties.called(*parties.train_command())
    seconds = time.monotonic() - began
    with run_directory.reading(parties.run) as run:
        gone = [{"client": each} for each in range(CLIENTS) if each not in run.server.roster]
        receipts = run.record.book.receipts()
    parties.forget_inline("undisturbed")
    equal = parties.digest() == parties.inline("undisturbed", gone)
    return equal and [each.state for each in receipts] == ["purged"] * len(gone), seconds
