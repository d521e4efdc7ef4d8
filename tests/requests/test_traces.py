"""Nothing left behind: random markers in ids, features and models; after the purge no byte of them is anywhere."""

from __future__ import annotations

import logging
import secrets
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedforget import Plan, Request, Run
from fedforget.disk import database
from fedforget.disk.database import Database
from fedforget.requests.batches import Batches
from fedforget.requests.inbox import Inbox
from fedforget.requests.lifecycle import Submission
from fedforget.store.run_directory import OpenRun
from tests.helpers import function_files
from tests.requests.world import CLASSES, FEATURES, model
from tests.tally import exhaustive, tally

PLAN = Plan(3, 4, 2, 6)
SEED = 5


@dataclass
class World:
    """Clients and samples whose ids and features are random 64-bit markers."""

    data: dict[str, dict[str, Any]]

    @classmethod
    def planted(cls) -> World:
        def sample() -> tuple[np.ndarray, int]:
            marked = np.frombuffer(secrets.token_bytes(2 * FEATURES), np.uint16).astype(np.float32) + 0.5
            return marked / 65536, secrets.randbelow(CLASSES)

        clients = [f"ward-{secrets.token_hex(8)}" for _ in range(5)]
        return cls({client: {f"patient-{secrets.token_hex(8)}": sample() for _ in range(10)} for client in clients})

    def opened(self, path: Path, **changes: Any) -> Run:
        return Run(path, PLAN, model=model(), data=self.data, seed=SEED, **changes)

    def markers(self, requests: list[Request]) -> dict[str, bytes]:
        """The bytes that must not be found: ids, features as they are stored and as text, content digests."""
        found: dict[str, bytes] = {}
        for request in requests:
            client = str(request.client)
            samples = self.data[client] if request.sample is None else {str(request.sample): None}
            if request.sample is None:
                found[client] = client.encode()
            for sample in samples:
                x = self.data[client][sample][0]
                found[sample] = sample.encode()
                found[f"{sample}: x"] = x.tobytes()
                found[f"{sample}: a feature"] = struct.pack("<f", x[0]) + struct.pack("<f", x[1])
        return found


def traces(directory: Path, markers: dict[str, bytes]) -> list[str]:
    contents = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    names = "\n".join(str(path) for path in directory.rglob("*")).encode()
    return [
        f"{what} in {path.relative_to(directory)}"
        for what, marker in markers.items()
        for path, content in [*contents.items(), (directory / "names", names)]
        if marker in content
    ]


def superseded(run: Run) -> dict[str, bytes]:
    """The digests of every model and of the state as they are now."""
    files = {path.stem: path for path in (run.path / "models").iterdir()}
    made = {f"model {name[:8]}": name.encode() for name in files}
    for name, path in files.items():
        made[f"weights of {name[:8]}"] = path.read_bytes()[-64:]
    return {**made, "state": run.state_digest().encode()}


def erase(world: World, directory: Path) -> tuple[Run, list[Request], dict[str, bytes]]:
    """A life with every way of asking; returns the run, what it forgot, and everything derived that must be gone."""
    run = world.opened(directory / "run")
    run.train(4, eval_every=1)
    before = superseded(run)
    clients = list(world.data)
    gone = [
        Request(clients[0]),
        Request(clients[1], next(iter(world.data[clients[1]]))),
        *(Request(clients[2], sample) for sample in list(world.data[clients[2]])[:3]),
        Request(clients[3]),
    ]
    run.forget(gone[:2], idempotency_key=f"mail of {gone[1].sample}")
    run.forget(gone[2], defer=True)
    run.forget(gone[3], defer=True, idempotency_key=str(gone[3].sample))
    run.cancel(run.forget(Request(clients[4]), defer=True)[0].id)
    Inbox(run.path).leave(Submission.of((gone[4],), "unknown", key=str(gone[4].sample)))
    run.run_pending()
    run.train()
    between = superseded(run)
    run.forget(gone[5])
    kept = {path.stem.encode() for path in (run.path / "models").iterdir()}
    still = {path.read_bytes()[-64:] for path in (run.path / "models").iterdir()}
    derived = {what: marker for what, marker in {**before, **between}.items() if marker not in kept | still}
    run.export(directory / "model.safetensors")
    return run, gone, derived


@pytest.fixture
def log(tmp_path: Path) -> Iterator[None]:
    """What the library logs goes where the search looks."""
    (tmp_path / "all").mkdir()
    handler = logging.FileHandler(tmp_path / "all" / "log.txt")
    logger = logging.getLogger("fedforget")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    handler.close()


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("attempt", range(25 if exhaustive() else 1))
def test_no_byte_of_what_was_forgotten_is_left(tmp_path: Path, attempt: int) -> None:
    world = World.planted()
    run, gone, derived = erase(world, tmp_path / "all")
    assert len(derived) > 5
    markers = {**world.markers(gone), **derived}
    found = traces(tmp_path / "all", markers)
    assert found == []
    tally("markers/planted", len(markers))
    tally("markers/bytes searched", sum(p.stat().st_size for p in (tmp_path / "all").rglob("*") if p.is_file()))
    tally("markers/found", len(found))
    staying = [Request(list(world.data)[4])]
    assert traces(tmp_path / "all", world.markers(staying)), "the search finds what is there"
    never = world.opened(tmp_path / "never", without=gone)
    never.train()
    assert function_files(run.path) == function_files(never.path)
    assert run.verify().ok


def leave_the_intent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Batches, "purged", lambda record, intent: None)


def leave_the_waiting(patch: pytest.MonkeyPatch) -> None:
    real = Database.run

    def run(self: Database, sql: str, values: Any = ()) -> int:
        return 0 if sql.startswith("DELETE FROM waiting") else real(self, sql, values)

    patch.setattr(Database, "run", run)


def leave_the_inbox(patch: pytest.MonkeyPatch) -> None:
    """Put aside instead of taken away."""
    patch.setattr(Inbox, "take_away", lambda self, path: path.rename(path.with_suffix(".done")))


def leave_the_models(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fedforget.store.model_files.ModelFiles.keep_only", lambda self, names: None)


def leave_free_pages(patch: pytest.MonkeyPatch) -> None:
    """Neither rebuilt nor overwritten: what SQLite does unless it is told otherwise."""
    real = database._prepare

    def prepare(connection: sqlite3.Connection) -> None:
        real(connection)
        connection.execute("PRAGMA secure_delete=OFF")

    def close(self: Database) -> None:
        self._connection.close()

    patch.setattr(database, "_prepare", prepare)
    patch.setattr(Database, "close_canonical", close)


def leave_everything(patch: pytest.MonkeyPatch) -> None:
    """No purge at all: what it does to the databases, the models and the record is left out."""
    patch.setattr(OpenRun, "purge_function", lambda run: None)
    leave_the_intent(patch)
    leave_free_pages(patch)
    leave_the_models(patch)


def leave_the_function_as_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OpenRun, "purge_function", lambda run: None)


def leave_the_record_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """Its database is not rebuilt before the word is given."""
    real = Database.rebuild
    patch.setattr(Database, "rebuild", lambda self: None if self.path.name == "record.db" else real(self))


def copied_when_purged(world: World, directory: Path, patch: pytest.MonkeyPatch) -> tuple[Path, dict[str, bytes]]:
    """A run as a kill leaves it that comes with the very commit of ``purged``, logs included; and what to look for."""
    run = world.opened(directory / "run")
    run.train(4)
    clients = list(world.data)
    gone = [Request(clients[0]), *(Request(clients[1], sample) for sample in list(world.data[clients[1]])[:9])]
    real = Batches.purged

    def spied(self: Batches, intent: Any) -> None:
        real(self, intent)
        shutil.copytree(run.path, directory / "killed", dirs_exist_ok=True)

    patch.setattr(Batches, "purged", spied)
    run.forget(gone)
    return directory / "killed", world.markers(gone)


def test_nothing_is_left_at_the_moment_at_which_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when the command ends: whoever is told "purged" may rely on it, whatever happens next."""
    killed, markers = copied_when_purged(World.planted(), tmp_path, monkeypatch)
    assert traces(killed, markers) == []


@pytest.mark.parametrize("leave", [leave_the_function_as_it_is, leave_the_record_as_it_is])
def test_each_step_of_the_purge_is_needed_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: Callable[[pytest.MonkeyPatch], None]
) -> None:
    leave(monkeypatch)
    killed, markers = copied_when_purged(World.planted(), tmp_path, monkeypatch)
    assert traces(killed, markers), "a purge that leaves this out would not be noticed"
    tally("markers/purges with a step left out, noticed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "leave",
    [leave_the_intent, leave_the_waiting, leave_the_inbox, leave_the_models, leave_free_pages],
)
def test_the_search_finds_each_thing_that_a_purge_would_have_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: Callable[[pytest.MonkeyPatch], None]
) -> None:
    require_found(tmp_path, monkeypatch, leave)


def test_the_search_finds_what_is_left_without_a_purge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_found(tmp_path, monkeypatch, leave_everything)


def require_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: Callable[[pytest.MonkeyPatch], None]) -> None:
    world = World.planted()
    leave(monkeypatch)
    with monkeypatch.context():
        run = world.opened(tmp_path / "run")
        run.train(4)
        before = superseded(run)
        clients = list(world.data)
        gone = [Request(clients[0]), *(Request(clients[1], sample) for sample in list(world.data[clients[1]])[:9])]
        Inbox(run.path).leave(Submission.of(tuple(gone), "unknown"))
        run.run_pending()
    kept = {path.stem.encode() for path in (run.path / "models").iterdir()} if leave is not leave_the_models else set()
    derived = {what: marker for what, marker in before.items() if marker not in kept and not what.startswith("weights")}
    found = traces(run.path, {**world.markers(gone), **derived})
    assert found, "a purge that leaves this out would not be noticed"
    tally("markers/purges with a step left out, noticed")
