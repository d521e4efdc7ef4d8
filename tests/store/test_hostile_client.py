"""State directories of clients that an attacker made, opened with every command of a client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.requests.inbox import Inbox
from fedforget.requests.lifecycle import Submission
from tests.cli.commandline import Zygote, zygote_in
from tests.client_side.deployment import Deployment, samples_of
from tests.helpers import World
from tests.store.hostile import Case, one_of_each
from tests.store.hostile_client import client_cases
from tests.store.test_hostile import MEMORY, named, require_clear, seen
from tests.tally import exhaustive, tally

IDS: list[Id] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"]
WORLD: World = {"a": IDS, "b": IDS, "c": IDS}
PROGRAM = """
import numpy as np

def samples(client):
    ids = ["s2", "s4", "s5", "s6", "s7", "s8"]
    return {each: (np.frombuffer(f"{each!r}/0".encode().ljust(32), np.uint8), 1) for each in ids}
"""
READ, WRITE = ("status", "receipts", "audit"), ("forget", "enrolment", "sync", "leave", "receipt")
COMMANDS = (*READ, *WRITE)
CASES = client_cases()
CHOSEN = (
    [(case, command) for case in CASES for command in COMMANDS]
    if exhaustive()
    else [
        (case, COMMANDS[place % len(COMMANDS)]) for place, case in enumerate(one_of_each(CASES, lambda case: case.kind))
    ]
)


@dataclass(frozen=True)
class Clients:
    zygote: Zygote
    state: Path
    purged: str  # the id of a request that is carried out


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """A client that trained, erased a sample, and has a request, an addition and a submission that wait."""
    root = tmp_path_factory.mktemp("hostile-client")
    (root / "hostile_samples.py").write_text(PROGRAM)
    deployment = Deployment(root, WORLD)
    client = deployment.clients["a"]
    deployment.learn(4)
    (receipt,) = client.forget(["s0"])
    deployment.meet()
    client.sync(samples_of([*IDS[1:], "s8"]))
    client.forget(["s1"])
    Inbox(client.path).leave(Submission.of((Request("a", "s2"),), "unknown"))
    text = (client.path / "client.toml").read_text()
    assert "[dataset]" in text
    (client.path / "client.toml").write_text(text.replace("[dataset]", '[dataset]\nown = "hostile_samples:samples"'))
    with zygote_in(root) as zygote:
        yield Clients(zygote, client.path, receipt.id)


def commands(state: Path, clients: Clients) -> dict[str, tuple[str | Path, ...]]:
    def on(command: str, *options: str | Path) -> tuple[str | Path, ...]:
        return ("client", command, "--state-dir", state, *options)

    out = state.with_name("written")
    data = ("--data", "hostile_samples:samples")
    return {
        "status": on("status"),
        "receipts": on("receipt"),
        "audit": ("client", "audit", state / "client.toml", "--sample", "s3", "--commitment", "00" * 32, "--root",
                  "00" * 32, "--plan", state / "plan.toml", "--rounds", "1"),
        "forget": on("forget", "--sample", "s4", "--basis", "exogenous"),
        "enrolment": on("enrolment", "--out", out / "enrolment.json"),
        "sync": on("sync", "--confirm", "1", *data),
        "receipt": on("receipt", clients.purged, "--out", out / "receipt.json", "--opening", out / "opening.json"),
        "leave": on("leave"),
    }  # fmt: skip


def attack(case: Case, command: str, clients: Clients, place: Path) -> None:
    place.mkdir(exist_ok=True)
    state, outside = place / "state", place / "outside"
    shutil.copytree(clients.state, state)
    outside.mkdir()
    (place / "written").mkdir()
    (outside / "victim").write_text("not of this client")
    case.make(state, outside)
    before, there = seen(state), seen(outside)
    result = clients.zygote.run(*commands(state, clients)[command], memory=MEMORY)
    what = f"{case.name}, {command}"
    require_clear(result, what)
    assert {p: k[1:] for p, k in seen(outside).items()} == {p: k[1:] for p, k in there.items()}, f"{what}: outside"
    assert command not in READ or seen(state) == before, f"{what}: looking wrote"
    if not case.harmless:
        codes = [
            clients.zygote.run(*commands(state, clients)[name], memory=MEMORY).code for name in ("status", "leave")
        ]
        assert any(codes), f"{what} is not refused"
    tally("hostile/commands of a client")


def test_cases_cover_every_command_and_kind() -> None:
    assert {case.kind for case, _ in CHOSEN} == {case.kind for case in CASES}
    assert {command for _, command in CHOSEN} == {*COMMANDS}


def test_unaltered_state_directory_passes_every_command(clients: Clients, tmp_path: Path) -> None:
    state = shutil.copytree(clients.state, tmp_path / "state")
    (tmp_path / "written").mkdir()
    for name, command in commands(state, clients).items():
        before, result = seen(state), clients.zygote.run(*command, memory=MEMORY)
        assert result.code == (3 if name == "audit" else 0), f"{name}: {result}"
        assert name not in READ or seen(state) == before, f"{name}: looking wrote"


@pytest.mark.parametrize(("case", "command"), CHOSEN, ids=named)
def test_hostile_state_directory_is_opened_safely(clients: Clients, tmp_path: Path, case: Case, command: str) -> None:
    attack(case, command, clients, tmp_path / "place")


def test_function_that_a_foreign_state_directory_names_is_not_called(clients: Clients, tmp_path: Path) -> None:
    state = shutil.copytree(clients.state, tmp_path / "state")
    text = (state / "client.toml").read_text()
    (state / "client.toml").write_text(text.replace("hostile_samples:samples", "os:mkdir"))
    (state / "client.toml").chmod(0o666)  # another account may have written it
    result = clients.zygote.run("client", "sync", "--state-dir", state, "--dry-run", memory=MEMORY)
    assert not (clients.state.parent / "a").exists(), "os.mkdir(client id) was called"
    assert result.code == 3, result
    assert "another account" in result.err
