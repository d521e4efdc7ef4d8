"""A client that is killed at any write: the same message or command again ends in the same bytes; nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedforget.client_side import ClientState
from fedforget.client_side.directory import reading
from fedforget.client_side.sync import contents_of
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.federation.standing import addition_id, withdrawal_id
from tests.client_side.deployment import RUN, answer, plan_file, samples_of
from tests.client_side.killed import run_killed
from tests.helpers import scratch
from tests.tally import exhaustive

FUNCTION = ("client.toml", "client.book", "uses.db", "plan.toml")
IDS = tuple(range(6))
Step = Callable[[ClientState], object]


def message(kind: str, epoch: int = 0, **fields: Any) -> Step:
    model = {"history": np.frombuffer(b"[]", np.uint8)} if kind == parcels.TRAIN else None

    def told(state: ClientState) -> Parcel:
        found = answer(state, parcels.request(RUN, epoch, kind, state.client, model, **fields))
        assert "error" not in found.body, found.body
        return found

    return told


def withdrawal_of(state: ClientState) -> str:
    """The handle of the latest request."""
    sql = "SELECT handle FROM withdrawals JOIN requests ON request = id ORDER BY number DESC LIMIT 1"
    with reading(state.path) as found:
        [(handle,)] = found.record.database.rows(sql)
    return str(handle)


def addition_of(state: ClientState) -> str:
    with reading(state.path) as found:
        [(handle,)] = found.record.database.rows("SELECT handle FROM additions")
    return str(handle)


def remove(state: ClientState) -> None:
    message(parcels.REMOVE, 1, samples=[withdrawal_id(withdrawal_of(state))])(state)


def done(state: ClientState) -> None:
    facts: dict[str, Any] = {"rounds_done": 0, "model_digest": "ab" * 32, "receipt": "r-1"}
    message(parcels.DONE, 1, handles=[withdrawal_of(state)], facts=facts)(state)


def add(state: ClientState) -> None:
    message(parcels.JOIN, 2, samples=[[addition_id(addition_of(state)), ""]])(state)


def initialise(state: ClientState) -> None:
    if not (state.path / "client.toml").exists():
        ClientState.init(state.path, 3, samples_of(IDS), seed=4)


def synchronise(state: ClientState) -> None:
    """One sample is new, one has other content. A second time there may be nothing left to confirm."""
    data = {**samples_of([0, 3, 4, 5, "new"]), **samples_of([4], version=1)}
    state.sync(data, confirm=len(state.sync(data, dry_run=True).found.erased))


STEPS: dict[str, Step] = {
    "init": initialise,
    "plan": message(parcels.PLAN, plan=plan_file().encode().decode()),
    "train": message(parcels.TRAIN, round=1),
    "train again": message(parcels.TRAIN, round=2),
    "forget": lambda state: state.forget([1, 2], basis="exogenous"),
    "remove": remove,
    "rewind": message(parcels.REWIND, 1, rounds_done=0),
    "done": done,
    "sync": synchronise,
    "remove what changed": remove,
    "done with what changed": done,
    "join": add,
    "new seed": message(parcels.RESEED, 3, key="b-1"),
    "leave": lambda state: state.leave(),
    "gone": message(parcels.REMOVE, 4, samples=None),
    "the end": message(parcels.DONE, 4, handles=[], facts={}),
}


def opened(path: Path) -> ClientState:
    """A state directory whose making may have been interrupted."""
    state = ClientState.__new__(ClientState)
    state.path, state.client = path, 3
    return state


def look(state: ClientState) -> dict[str, Any]:
    """What a step leaves, apart from what is drawn from the system."""
    status = state.status()
    requests = [(each.level, each.state, each.basis) for each in state.receipts()]
    with reading(state.path) as found:
        assert found.record.chain.problem() is None
        found.record.vault.require_readable()
        unfinished = len(found.record.batches.unfinished())
    assert not [path.name for path in state.path.iterdir() if path.name.endswith(("-wal", ".tmp", "-journal"))]
    return {"requests": requests, "unfinished": unfinished, "arriving": status.arriving, "left": status.left}


def function_of(state: ClientState) -> dict[str, bytes]:
    return {name: (state.path / name).read_bytes() for name in FUNCTION if (state.path / name).exists()}


PURGED = {"done", "done with what changed", "the end"}
GONE = [content for sample, content in contents_of(3, samples_of(IDS)).items() if sample in (1, 2)]


def traces(state: ClientState) -> list[str]:
    """The files that hold the digest of a sample that was erased in the first request."""
    return [path.name for path in state.path.iterdir() if any(digest in path.read_bytes() for digest in GONE)]


@pytest.fixture(scope="module")
def before() -> Iterator[dict[str, Path]]:
    """The state directory before each step, and at the end."""
    with scratch() as place:
        state, found = opened(place / "now"), dict[str, Path]()
        for number, (name, step) in enumerate(STEPS.items()):
            found[name] = place / f"{number}"
            if state.path.exists():
                shutil.copytree(state.path, found[name])
            step(state)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_killed_at_every_write_ends_as_if_undisturbed(before: dict[str, Path], name: str) -> None:
    check(before, name, every=1 if exhaustive() else 5)


@pytest.mark.parametrize("name", ["forget", "remove", "sync"])
def test_killed_at_some_writes_ends_as_if_undisturbed(before: dict[str, Path], name: str) -> None:
    check(before, name, every=11)


def check(before: dict[str, Path], name: str, every: int) -> None:
    step, random = STEPS[name], name == "new seed"
    with scratch() as place:

        def fresh(number: object) -> ClientState:
            if before[name].exists():
                shutil.copytree(before[name], place / f"{number}")
            return opened(place / f"{number}")

        undisturbed = fresh("undisturbed")
        touches = run_killed(lambda: step(undisturbed))
        assert touches, "nothing was written"
        expected, function = look(undisturbed), function_of(undisturbed)
        for moment in range(1, touches + 1, every):
            state = fresh(moment)
            assert run_killed(lambda: step(state), moment) is None, moment  # noqa: B023 (it is called at once)
            step(state)
            assert look(state) == expected, moment
            assert random or function_of(state) == function, moment
            assert name not in PURGED or not traces(state), moment
            shutil.rmtree(state.path)
