"""Ids, features and models carry random markers; after the purge no file of the run contains one of them.

What the record encrypted can be read as long as its key is there, so the keys that encrypted a marker are searched for,
too.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedforget import Plan, Request, Run
from fedforget.algorithm.ids import id_block
from fedforget.disk import connections
from fedforget.disk.database import Database
from fedforget.disk.key_file import KeyFile
from fedforget.requests.batches import Batches
from fedforget.requests.inbox import Inbox
from fedforget.requests.lifecycle import Submission
from fedforget.requests.vault import Vault
from fedforget.store import record, run_directory
from fedforget.store.names import BOOKS, SERVER
from fedforget.store.seals import Seals
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
        """The bytes that must not be found: ids, whole samples, and pairs of features."""
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


@dataclass
class Encrypted:
    """Everything that was encrypted meanwhile, with its key."""

    entries: list[tuple[bytes, bytes]] = field(default_factory=list)

    def keys_of(self, markers: Iterable[bytes]) -> dict[str, bytes]:
        """The keys that encrypted one of these markers, as markers."""
        known = list(markers)
        found = {key for key, data in self.entries if any(marker in data for marker in known)}
        return {f"key {key.hex()[:8]}": key for key in found}


@pytest.fixture
def encrypted(monkeypatch: pytest.MonkeyPatch) -> Encrypted:
    kept, real = Encrypted(), KeyFile.encrypt

    def encrypt(self: KeyFile, number: int, data: bytes, about: str) -> bytes:
        kept.entries.append((self.keys[number], data))
        return real(self, number, data, about)

    monkeypatch.setattr(KeyFile, "encrypt", encrypt)
    return kept


def derived_markers(run: Run) -> dict[str, bytes]:
    """What stands for the present state: its digest, the roots of the data, and every model's digest and last bytes."""
    files = {path.stem: path for path in (run.path / "models").iterdir()}
    made = {f"model {name[:8]}": name.encode() for name in files}
    for name, path in files.items():
        made[f"weights of {name[:8]}"] = path.read_bytes()[-64:]
    seals = Seals(run.path).all()
    made |= {f"digest of {name}": seals[name].digest.encode() for name in (SERVER, *BOOKS)}
    with run_directory.reading(run.path) as found:
        roots = {f"root of {name}": root for name, root in found.clients.books.roots().items()}
        roots["root of the data"] = found.clients.books.root()
    written = {f"{what}, written": root.hex().encode() for what, root in roots.items()}
    return {**made, **roots, **written, "state": run.state_digest().encode()}


def hidden_markers(run: Run, targets: list[Request]) -> dict[str, bytes]:
    """What tells of a target to a reader who guesses it: the block of its id, and the digest of its content."""
    made = dict[str, bytes]()
    with run_directory.reading(run.path) as found:
        for target in targets:
            contents = found.clients.contents(target.client, None if target.sample is None else [target.sample])
            for sample, content in contents.items():
                made |= {f"{sample}: block": id_block(sample), f"{sample}: content": content}
                made[f"{sample}: content, written"] = content.hex().encode()
            if target.sample is None:
                made[f"{target.client}: block"] = id_block(target.client)
    return made


def erase(world: World, directory: Path) -> tuple[Run, list[Request], dict[str, bytes]]:
    """Forget in every way; return the run, the erased targets, and the markers of models and states now superseded."""
    run = world.opened(directory / "run")
    run.train(4, eval_every=1)
    before = derived_markers(run)
    clients = list(world.data)
    gone = [
        Request(clients[0]),
        Request(clients[1], next(iter(world.data[clients[1]]))),
        *(Request(clients[2], sample) for sample in list(world.data[clients[2]])[:3]),
        Request(clients[3]),
    ]
    hidden = hidden_markers(run, gone)
    run.forget(gone[:2], idempotency_key=f"mail of {gone[1].sample}")
    run.forget(gone[2], defer=True)
    run.forget(gone[3], defer=True, idempotency_key=str(gone[3].sample))
    run.cancel(run.forget(Request(clients[4]), defer=True)[0].id)
    Inbox(run.path).leave(Submission.of((gone[4],), "unknown", key=str(gone[4].sample)))
    run.run_pending()
    run.train()
    between = derived_markers(run)
    run.forget(gone[5])
    still = set(derived_markers(run).values())
    superseded = {**before, **{f"later {what}": marker for what, marker in between.items()}}
    derived = {what: marker for what, marker in superseded.items() if marker not in still} | hidden
    run.export(directory / "model.safetensors")
    return run, gone, derived


@pytest.fixture
def log(tmp_path: Path) -> Iterator[None]:
    """Write the library's log into the directory that is searched."""
    (tmp_path / "all").mkdir()
    handler = logging.FileHandler(tmp_path / "all" / "log.txt")
    logger = logging.getLogger("fedforget")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    handler.close()


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("attempt", range(25 if exhaustive() else 1))
def test_purge_leaves_no_byte_of_the_erased_targets(tmp_path: Path, encrypted: Encrypted, attempt: int) -> None:
    world = World.planted()
    run, gone, derived = erase(world, tmp_path / "all")
    assert len(derived) > 5
    markers = {**world.markers(gone), **derived}
    keys = encrypted.keys_of(markers.values())
    assert len(keys) > 5
    markers |= keys
    found = traces(tmp_path / "all", markers)
    assert found == []
    tally("markers/planted", len(markers))
    tally("markers/bytes searched", sum(p.stat().st_size for p in (tmp_path / "all").rglob("*") if p.is_file()))
    tally("markers/found", len(found))
    staying = [Request(list(world.data)[4])]
    assert traces(tmp_path / "all", world.markers(staying)), "the search finds markers of data that stay"
    never = world.opened(tmp_path / "never", without=gone)
    never.train()
    assert function_files(run.path) == function_files(never.path)
    assert run.verify().ok


def skip_keys(patch: pytest.MonkeyPatch) -> None:
    """The keys stay in their file."""
    patch.setattr(KeyFile, "keep_only", lambda self, used: None)


def skip_keys_of_intents(patch: pytest.MonkeyPatch) -> None:
    """The keys of the batches at work are dropped after the record says "purged", or never."""
    real = Vault.drop_unused

    def drop(self: Vault, *, finishing: bool = False) -> None:
        real(self)

    patch.setattr(Vault, "drop_unused", drop)


def skip_new_keys_for_the_group(patch: pytest.MonkeyPatch) -> None:
    """What still waits keeps the key of what does not."""
    patch.setattr(Vault, "renew_spent", lambda self: None)


def skip_superseded(patch: pytest.MonkeyPatch) -> None:
    """Rows are deleted, and what stands keeps the key of what does not."""
    patch.setattr(Vault, "_renewed", lambda self, old, new, body, about: body)
    real = Database.run_many

    def run_many(self: Database, sql: str, values: Any) -> None:
        if not sql.startswith("UPDATE standing"):
            real(self, sql, values)

    patch.setattr(Database, "run_many", run_many)


def skip_inbox(patch: pytest.MonkeyPatch) -> None:
    """Rename the file instead of deleting it."""
    patch.setattr(Inbox, "take_away", lambda self, path: path.rename(path.with_suffix(".done")))


def skip_models(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fedforget.store.model_files.ModelFiles.keep_only", lambda self, names: None)


def skip_free_pages(patch: pytest.MonkeyPatch) -> None:
    """Neither rebuild the databases nor overwrite deleted rows, as SQLite does by default."""
    real = connections.prepare

    def prepare(connection: sqlite3.Connection) -> None:
        real(connection)
        connection.execute("PRAGMA secure_delete=OFF")

    def close(self: Database) -> None:
        self.close()

    patch.setattr(connections, "prepare", prepare)
    patch.setattr(Database, "close_canonical", close)


def skip_everything(patch: pytest.MonkeyPatch) -> None:
    """No purge at all: what it does to the databases, the models and the record is left out."""
    skip_keys(patch)
    skip_free_pages(patch)
    skip_models(patch)


def skip_function(patch: pytest.MonkeyPatch) -> None:
    """The function's databases are not rewritten before the record says "purged"."""
    patch.setattr(Database, "close_canonical", lambda self: None)


def copies_that_say_purged(
    encrypted: Encrypted,
    directory: Path,
    patch: pytest.MonkeyPatch,
    skip: Callable[[pytest.MonkeyPatch], None] | None = None,
) -> tuple[list[Path], dict[str, bytes]]:
    """The run as a kill leaves it at each moment at which its record says "purged", logs included; and the markers."""
    world = World.planted()
    run = world.opened(directory / "run")
    run.train(4)
    clients = list(world.data)
    gone = [Request(clients[0]), *(Request(clients[1], sample) for sample in list(world.data[clients[1]])[:9])]
    run.forget(gone[3], defer=True)
    copies: list[Path] = []
    if skip is not None:
        skip(patch)

    def copied_after(real: Callable[..., None]) -> Callable[..., None]:
        def spied(*arguments: Any) -> None:
            real(*arguments)
            copy = directory / f"killed{len(copies)}"
            shutil.copytree(run.path, copy)
            copies.append(copy)

        return spied

    patch.setattr(Batches, "purged", copied_after(Batches.purged))
    patch.setattr(Database, "close_canonical", copied_after(Database.close_canonical))
    run.forget(gone)
    markers = world.markers(gone)
    return [copy for copy in copies if says_purged(copy)], {**markers, **encrypted.keys_of(markers.values())}


def says_purged(copy: Path) -> bool:
    found = Database(copy / "record.db", record.SCHEMA)
    states = found.rows("SELECT DISTINCT state FROM requests")
    found.close()
    return states == [("purged",)]


def test_no_marker_is_left_whenever_the_record_says_purged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: Encrypted
) -> None:
    """Not only when the command ends: a reader that finds "purged" relies on it, whatever happens next."""
    copies, markers = copies_that_say_purged(encrypted, tmp_path, monkeypatch)
    assert copies
    assert [traces(copy, markers) for copy in copies] == [[]] * len(copies)


@pytest.mark.parametrize("skip", [skip_function, skip_keys_of_intents, skip_new_keys_for_the_group])
def test_purge_without_one_of_its_steps_leaves_markers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encrypted: Encrypted,
    skip: Callable[[pytest.MonkeyPatch], None],
) -> None:
    copies, markers = copies_that_say_purged(encrypted, tmp_path, monkeypatch, skip)
    assert any(traces(copy, markers) for copy in copies), "the search would not notice a purge without this step"
    tally("markers/purges with a step left out, noticed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "skip",
    [skip_keys, skip_inbox, skip_models, skip_free_pages],
)
def test_search_finds_markers_when_one_step_of_the_purge_is_skipped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encrypted: Encrypted,
    skip: Callable[[pytest.MonkeyPatch], None],
) -> None:
    require_found(tmp_path, monkeypatch, encrypted, skip)


def test_search_finds_markers_when_the_whole_purge_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: Encrypted
) -> None:
    require_found(tmp_path, monkeypatch, encrypted, skip_everything)


@pytest.mark.parametrize("skipped", [False, True])
def test_superseded_digest_is_found_only_if_its_key_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: Encrypted, skipped: bool
) -> None:
    """Samples that no step used: the model stands, and the digests of the state before do not."""
    if skipped:
        skip_superseded(monkeypatch)
    run = World.planted().opened(tmp_path / "run")
    run.train(1)
    with run_directory.reading(run.path) as opened:
        used = {client: opened.clients.first_steps(client) for client in run.clients()}
    first, second = [Request(c, s) for c in used for s in run.samples(c) if s not in used[c]][:2]
    run.forget(first)
    state = run.state_digest().encode()
    run.forget(second)
    found = traces(run.path, encrypted.keys_of([state]))
    assert bool(found) == skipped, found
    tally("markers/purges with a step left out, noticed")


def require_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encrypted: Encrypted,
    skip: Callable[[pytest.MonkeyPatch], None],
) -> None:
    world = World.planted()
    skip(monkeypatch)
    with monkeypatch.context():
        run = world.opened(tmp_path / "run")
        run.train(3)
        run.forget(Request(list(world.data)[4], next(iter(world.data[list(world.data)[4]]))))
        run.train(4)
        before = derived_markers(run)
        clients = list(world.data)
        gone = [Request(clients[0]), *(Request(clients[1], sample) for sample in list(world.data[clients[1]])[:9])]
        Inbox(run.path).leave(Submission.of(tuple(gone), "unknown"))
        run.run_pending()
    kept = {path.stem.encode() for path in (run.path / "models").iterdir()} if skip is not skip_models else set()
    derived = {what: marker for what, marker in before.items() if marker not in kept and not what.startswith("weights")}
    markers = {**world.markers(gone), **derived}
    found = traces(run.path, {**markers, **encrypted.keys_of(markers.values())})
    assert found, "the search would not notice a purge without this step"
    tally("markers/purges with a step left out, noticed")
