"""The clients' books: whatever happened to the data, the files are those of a run that never had what is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from fedforget import Plan, Request, Run
from fedforget.algorithm.contents import ContentsOf, one_by_one
from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.ports import Newcomer, RemoveOrder
from fedforget.algorithm.seeds import Seed, SeedSource
from fedforget.algorithm.tree import BUCKET, beside, joined, labels_of, path_of, salts_of, value_of
from fedforget.algorithm.tree import Path as TreePath
from fedforget.disk.files import write_durably
from fedforget.errors import RunDamaged, StorageFailed
from fedforget.health.doctor import examine
from fedforget.store import run_directory
from fedforget.store.books import books as books_module
from fedforget.store.books.books import Books
from fedforget.store.books.file import are_in_books
from fedforget.store.books.tree import DEPTH, PARTS, number_of, sample_key
from fedforget.store.names import BOOKS, USES
from tests.helpers import function_files
from tests.requests.world import DATA, opened
from tests.store.book_sql import edit_book

SEEDS = SeedSource("books")
KEY = SEEDS.tree_key()
World = Mapping[Id, Iterable[Id]]
WORLD: dict[Id, tuple[Id, ...]] = {
    **{client: tuple(range(1 + client % 3)) for client in range(300)},  # some files have several buckets
    "ward": ("a", "b", 7),
    7000: tuple(range(60)),  # its samples have several buckets
}


def content(client: Id, sample: Id) -> bytes:
    return blake2b(f"{client!r} {sample!r}".encode(), digest_size=16).digest()


def digests(world: World, client: Id) -> dict[Id, bytes]:
    return {sample: content(client, sample) for sample in world[client]}


def contents(world: World) -> ContentsOf:
    def of(client: Id) -> tuple[IdSet, bytes]:
        ids = IdSet(world[client])
        return ids, b"".join(content(client, sample) for sample in ids)

    return one_by_one(of)


def create(path: Path, world: World = WORLD, seeds: SeedSource = SEEDS) -> Books:
    path.mkdir()
    made = Books(path, KEY)
    made.create({client: seeds.client(client) for client in world}, contents(world))
    return made


def client_path(books: Books, client: Id) -> tuple[bytes, TreePath]:
    """The label of a client, and the path that shows whether it is in the tree over all data."""
    [label] = labels_of(books.key, IdSet([client]))
    number = number_of(label)
    way = path_of(books.client_leaves(number).values(), label, DEPTH)
    return label, way.below(beside(list(books.roots().values()), number))


def sample_path(books: Books, client: Id, sample: Id) -> tuple[bytes, TreePath]:
    """The label of a sample, and the path that shows whether it is in its client's tree."""
    [label] = labels_of(sample_key(books.key, id_block(client)), IdSet([sample]))
    return label, path_of(books.sample_leaves(client), label)


def files(path: Path) -> dict[str, bytes]:
    """Every file of the directory: there is no log and no temporary file beside the books."""
    return {each.name: each.read_bytes() for each in path.iterdir()}


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with contextlib.closing(create(tmp_path / "books")) as made:
        yield made


@pytest.fixture
def path(books: Books) -> Path:
    return books.path_of(0).parent


def like(path: Path, world: World, seeds: SeedSource = SEEDS) -> None:
    """Require the bytes of books that were made for this world."""
    with contextlib.closing(create(path.with_name("fresh"), world, seeds)) as fresh:
        assert files(path) == files(path.with_name("fresh"))
        with contextlib.closing(Books(path, KEY)) as found:
            assert found.root() == fresh.root()
            for number in range(PARTS):
                found.require_tree(number)


# -------------------------------------------------------------------------------------------------------------- reading


def test_books_hold_the_seeds_and_samples_of_creation(books: Books, path: Path) -> None:
    assert set(files(path)) == set(BOOKS)
    assert set(books.clients()) == set(WORLD)
    assert books.sizes() == {client: len(samples) for client, samples in WORLD.items()}
    assert books.commitments() == {client: SEEDS.client(client).commitment for client in WORLD}
    for client in ("ward", 7000, 5):
        assert books.contents(client) == digests(WORLD, client)
        assert set(books.samples(client)) == set(WORLD[client])
        assert books.seed(client) == SEEDS.client(client)
    assert books.contents(7000, [3, 59, 60]) == {3: content(7000, 3), 59: content(7000, 59)}
    assert books.contents("ward", []) == {}
    assert [books.has("ward", sample) for sample in ("a", 7, "c", 0)] == [True, True, False, False]


def test_contents_of_many_samples_are_found(tmp_path: Path) -> None:
    world: World = {1: tuple(range(1203))}
    with contextlib.closing(create(tmp_path / "large", world)) as made:
        asked = list(range(1, 1300))
        assert made.contents(1, asked) == {sample: content(1, sample) for sample in range(1, 1203)}


def test_label_of_a_client_decides_on_its_file(books: Books, path: Path) -> None:
    for client in WORLD:
        label, _ = client_path(books, client)
        assert books.part_of(client) == label[0] >> (8 - DEPTH)
        assert books.path_of(client) == path / BOOKS[books.part_of(client)]
    assert {books.part_of(client) for client in WORLD} == set(range(PARTS))


def test_another_key_gives_other_labels_files_and_roots(tmp_path: Path, books: Books) -> None:
    other = Books(tmp_path / "other", bytes(32))
    other._run.mkdir()
    other.create({client: SEEDS.client(client) for client in WORLD}, contents(WORLD))
    assert other.root() != books.root()
    assert any(other.part_of(client) != books.part_of(client) for client in WORLD)
    other.close()


def test_files_are_opened_and_checked_on_first_use_and_once(path: Path) -> None:
    asked: list[str] = []
    with contextlib.closing(Books(path, KEY, asked.append)) as found:
        assert asked == []
        for _ in range(2):
            found.seed(5)
            assert asked == [found.path_of(5).name]
        found.sizes()
        assert sorted(asked) == sorted(BOOKS)


def test_file_that_is_not_in_order_is_refused_each_time(path: Path) -> None:
    """Not only when it is first asked for."""
    (path / BOOKS[3]).write_bytes((path / BOOKS[5]).read_bytes())
    with contextlib.closing(Books(path, KEY)) as found:
        for _ in range(2):
            with pytest.raises(RunDamaged, match="its number"):
                found.part(3)


def test_known_roots_spare_the_opening_of_files(books: Books, path: Path) -> None:
    asked: list[str] = []
    with contextlib.closing(Books(path, KEY, asked.append, books.roots())) as found:
        assert found.root() == books.root() == joined(list(books.roots().values()))
        assert asked == []
        client_path(found, 5)
        assert asked == [found.path_of(5).name]
        found.remove([RemoveOrder(5, None)])
        changed = found.root()
        assert asked == [found.path_of(5).name], "this process has written the file that was replaced"
    with contextlib.closing(Books(path, KEY)) as found:
        assert books.root() != changed == found.root()


def test_known_root_that_is_not_that_of_the_file_is_damage(books: Books, path: Path) -> None:
    known = {**books.roots(), BOOKS[4]: bytes(32)}
    with contextlib.closing(Books(path, KEY, known_roots=known)) as found:
        found.require_tree(3)
        with pytest.raises(RunDamaged, match="its roots are not those of its content"):
            found.require_tree(4)


# -------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize(
    ("orders", "gone"),
    [
        ([RemoveOrder(5, None)], {5: None}),
        ([RemoveOrder(7000, (3, 59)), RemoveOrder("ward", ("a",))], {7000: (3, 59), "ward": ("a",)}),
        ([RemoveOrder(client, None) for client in range(0, 300, 2)], dict.fromkeys(range(0, 300, 2))),
        ([RemoveOrder(client, None) for client in WORLD], dict.fromkeys(WORLD)),
    ],
    ids=["client", "samples", "many clients", "everybody"],
)
def test_removing_twice_gives_the_bytes_of_books_that_never_held_it(
    books: Books, path: Path, orders: list[RemoveOrder], gone: dict[Id, tuple[Id, ...] | None]
) -> None:
    left = {
        client: [sample for sample in samples if sample not in (gone.get(client) or ())]
        for client, samples in WORLD.items()
        if client not in gone or gone[client] is not None
    }
    books.remove(orders)
    once = files(path)
    books.remove(orders)
    assert files(path) == once
    like(path, left)


@pytest.mark.parametrize("new", [["stranger", 9000], [9001], ["ward"], [7000, "ward", "stranger"]])
def test_joining_twice_gives_the_bytes_of_books_that_always_held_it(books: Books, path: Path, new: list[Id]) -> None:
    samples = ("new", 100, 101)
    newcomers = [
        Newcomer(
            client, None if client in WORLD else SEEDS.client(client), tuple((s, content(client, s)) for s in samples)
        )
        for client in new
    ]
    books.join(newcomers)
    once = files(path)
    books.join(newcomers)
    assert files(path) == once
    like(path, {**WORLD, **{client: (*WORLD.get(client, ()), *samples) for client in new}})


def test_present_client_keeps_seed_and_contents_when_added_again(books: Books, path: Path) -> None:
    before = files(path)
    books.join([Newcomer("ward", SeedSource("other").client("ward"), (("a", b"another content!"),))])
    assert files(path) == before


def test_reseeding_twice_gives_the_bytes_of_books_with_these_seeds(books: Books, path: Path) -> None:
    new = SeedSource("new")
    seeds: dict[Id, Seed] = {client: new.client(client) for client in WORLD} | {"unknown": new.client("unknown")}
    books.reseed(seeds)
    once = files(path)
    books.reseed(seeds)
    assert files(path) == once
    like(path, WORLD, new)


def test_seeds_of_others_stay_when_some_are_replaced(books: Books) -> None:
    new = SeedSource("new")
    books.reseed({5: new.client(5)})
    assert books.seed(5) == new.client(5)
    assert books.seed(6) == SEEDS.client(6)


def test_change_of_one_client_replaces_its_file_alone(books: Books, path: Path) -> None:
    def identities() -> dict[str, tuple[int, int]]:
        return {name: ((path / name).stat().st_ino, (path / name).stat().st_mtime_ns) for name in BOOKS}

    own = books.path_of("ward").name
    kept = os.open(path / own, os.O_RDONLY)  # so that its inode is not given to the new file
    for change in (
        lambda: books.remove([RemoveOrder("ward", ("a",))]),
        lambda: books.join([Newcomer("ward", None, (("c", content("ward", "c")),))]),
    ):
        before, books.changed = identities(), set()
        change()
        after = identities()
        assert {name for name in BOOKS if after[name] != before[name]} == {own} == books.changed
    os.close(kept)


def test_writer_is_prepared_before_each_file_is_replaced(books: Books, path: Path) -> None:
    seen: list[dict[str, bytes]] = []
    books.before_write = lambda: seen.append(files(path))
    before = files(path)
    clients = [5, next(client for client in range(6, 300) if books.part_of(client) != books.part_of(5))]
    books.remove([RemoveOrder(client, None) for client in clients])
    assert len(seen) == 2
    assert seen[0] == before
    assert {name for name in BOOKS if seen[1][name] != before[name]} == {books.path_of(clients[0]).name}


def test_book_that_cannot_be_written_stays_as_it_was(books: Books, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageFailed("no space left", hint="")

    before = files(path)
    monkeypatch.setattr(books_module, "write_durably", fail)
    with pytest.raises(StorageFailed):
        books.remove([RemoveOrder(5, None)])
    assert files(path) == before
    assert books.seed(5) == SEEDS.client(5), "what is read is what is on disk"
    monkeypatch.undo()
    books.remove([RemoveOrder(5, None)])
    like(path, {client: samples for client, samples in WORLD.items() if client != 5})


def test_books_are_private(path: Path) -> None:
    assert {each.stat().st_mode & 0o777 for each in path.iterdir()} == {0o600}


# ------------------------------------------------------------------------------------------------------------- the tree


def test_path_shows_the_presence_of_every_client(books: Books) -> None:
    root = books.root()
    sizes = [sum(books.part_of(client) == number for client in WORLD) for number in range(PARTS)]
    assert min(sizes) <= BUCKET < max(sizes), "files with one bucket, and with more"
    for client, samples in WORLD.items():
        label, way = client_path(books, client)
        assert way.root(label) == root
        value = way.value(label)
        assert value is not None
        assert value[:32] == SEEDS.client(client).commitment
        for sample in samples:
            own, below = sample_path(books, client, sample)
            assert below.root(own) == value[32:], "the root of its samples"
            salt = salts_of(sample_key(books.key, id_block(client)), IdSet([sample]))[0]
            assert below.value(own) == value_of(salt, content(client, sample))


def test_paths_of_samples_hold_no_content_digest(books: Books) -> None:
    """A path shows other samples of its bucket: their contents must not be open to guesses."""
    digests = {content(client, sample) for client, samples in WORLD.items() for sample in samples}
    for sample in (0, 59, "x"):
        _, way = sample_path(books, 7000, sample)
        assert way.bucket
        assert not [value for _, value in way.bucket if any(digest in value for digest in digests)]


@pytest.mark.parametrize("client", ["stranger", 301, 2**63 - 1, "005"])
def test_path_shows_the_absence_of_a_client(books: Books, client: Id) -> None:
    label, way = client_path(books, client)
    assert way.root(label) == books.root()
    assert way.value(label) is None


def test_path_shows_the_absence_of_a_sample(books: Books) -> None:
    _, there = client_path(books, 7000)
    label, _ = client_path(books, 7000)
    value = there.value(label)
    for sample in ("x", 60, 3000):
        own, way = sample_path(books, 7000, sample)
        assert value is not None
        assert way.root(own) == value[32:]
        assert way.value(own) is None


def test_path_after_a_removal_shows_absence_against_the_new_root_only(books: Books) -> None:
    before = books.root()
    books.remove([RemoveOrder(5, None), RemoveOrder(7000, (3,))])
    assert books.root() != before
    label, way = client_path(books, 5)
    assert way.root(label) == books.root()
    assert way.value(label) is None
    client_label, client_way = client_path(books, 7000)
    value = client_way.value(client_label)
    own, below = sample_path(books, 7000, 3)
    assert value is not None
    assert below.root(own) == value[32:]
    assert below.value(own) is None


def test_path_with_another_value_has_another_root(books: Books) -> None:
    label, way = client_path(books, 5)
    forged = tuple((each, bytes(64) if each == label else value) for each, value in way.bucket)
    assert replace(way, bucket=forged).root(label) != books.root()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE part SET root = zeroblob(32)",
        "UPDATE clients SET root = zeroblob(32)",
        "UPDATE clients SET nonce = zeroblob(32)",
        "UPDATE samples SET content = zeroblob(16)",
    ],
)
def test_roots_that_are_not_those_of_the_content_are_damage(books: Books, path: Path, sql: str) -> None:
    assert edit_book(path / BOOKS[4], sql)
    with contextlib.closing(Books(path, KEY)) as found:
        for number in range(PARTS):
            if number == 4:
                with pytest.raises(RunDamaged, match=rf"{BOOKS[4]} is damaged: its roots are not those of its content"):
                    found.require_tree(number)
            else:
                found.require_tree(number)


# ------------------------------------------------------------------------------------------------------- books of a run

PLAN = Plan(2, 2, 1, 2)  # few draws: some clients and samples are never used
FEW = {client: dict(list(DATA[4].items())[:6]) for client in range(6)}


def free_request(path: Path, level: str) -> Request:
    """A client, or a sample of one that took part, that no draw has held."""
    with run_directory.reading(path) as run:
        for client in run.server.roster:
            used = run.clients.first_steps(client)
            if level == "client" and run.server.first_round(client) is None:
                return Request(client)
            if level == "sample" and used:
                return Request(client, next(sample for sample in run.clients.samples(client) if sample not in used))
    raise AssertionError("every draw holds everything")


@pytest.mark.parametrize("level", ["sample", "client"])
def test_free_request_replaces_one_book_and_leaves_the_others_and_the_notes_alone(tmp_path: Path, level: str) -> None:
    run = opened(tmp_path / "run", PLAN, data=FEW)
    run.train()
    target = free_request(run.path, level)
    with run_directory.reading(run.path) as found:
        own = found.clients.books.path_of(target.client).name

    def identities() -> dict[str, tuple[int, int, int]]:
        found = {name: (run.path / name).stat() for name in (USES, *BOOKS)}
        return {name: (each.st_ino, each.st_mtime_ns, each.st_ctime_ns) for name, each in found.items()}

    before = identities()
    (receipt,) = run.forget(target)
    assert receipt.recomputed_steps == 0
    after = identities()
    assert {name for name, known in after.items() if known != before[name]} == {own}
    never = opened(tmp_path / "never", PLAN, data=FEW, without=[target])
    never.train()
    assert function_files(run.path) == function_files(never.path)
    assert not [each.name for each in run.path.iterdir() if each.name.endswith(("-wal", "-shm", ".tmp"))]


# ------------------------------------------------------------------------------------------------------- between books


@dataclass(frozen=True)
class Change:
    """Something that replaces several books of a trained run, and what is missing before and after it."""

    act: Callable[[Run], object]
    before: list[Request] = field(default_factory=list)
    after: list[Request] = field(default_factory=list)
    replaced: int = 3


CLIENTS, SAMPLES = [Request(0), Request(1), Request(3)], [Request(1, 0), Request(2, 1), Request(4, 2)]
SOME = [Request(0), Request(3, 1), Request(4, 2)]
CHANGES = {
    "forget clients": Change(lambda run: run.forget(CLIENTS), after=CLIENTS),
    "forget samples": Change(lambda run: run.forget(SAMPLES), after=SAMPLES),
    "add": Change(lambda run: run.add(SOME, seed=1), before=SOME),
    "new seeds": Change(lambda run: run.forget(Request(1), new_seed=True), after=[Request(1)], replaced=1 + PARTS),
}
MOMENTS = [
    (name, number)
    for name, change in CHANGES.items()
    for number in range(1, change.replaced + 1)
    if number < 4 or number % 6 == 0
]


@pytest.fixture(autouse=True)
def the_same_new_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """New seeds come from the system. Here they are always the same, so that results can be compared."""
    monkeypatch.setattr("fedforget.requests.processor.token_bytes", lambda size: b"\x5e" * size)


def wanted(change: Change, path: Path) -> dict[str, bytes]:
    """The files of a run that never had the data; with new seeds, of one that was not interrupted."""
    run = opened(path, without=change.before if change.replaced > PARTS else change.after)
    run.train()
    if change.replaced > PARTS:
        change.act(run)
    return function_files(path)


def at_replacement(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> list[str]:
    """Do something after so many books were replaced. Return their names."""
    names: list[str] = []

    def write(path: Path, data: bytes, **more: Any) -> None:
        write_durably(path, data, **more)
        names.append(path.name)
        if len(names) == number:
            act()

    patch.setattr(books_module, "write_durably", write)
    return names


@pytest.mark.parametrize("how", ["killed", "interrupted"])
@pytest.mark.parametrize(("name", "number"), MOMENTS)
def test_change_that_ended_between_two_books_is_finished_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int, how: str
) -> None:
    change = CHANGES[name]
    run = opened(tmp_path / "run", without=change.before)
    run.train()
    before = function_files(run.path)
    left = tmp_path / "killed" if how == "killed" else run.path

    def kill() -> None:
        shutil.copytree(run.path, left)
        (left / "lock").unlink(missing_ok=True)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        names = at_replacement(patch, number, kill if how == "killed" else interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            change.act(run)
    assert len(set(names[: change.replaced])) == min(change.replaced, PARTS) or how == "interrupted"
    half = function_files(left)
    changed = {book for book in BOOKS if half[book] != before[book]}
    assert changed <= set(names[:number]), "no other one"
    assert names[0] in changed
    assert {check.name for check in examine(left) if not check.ok} == {"requests"}
    again = opened(left, plan=None, seed=None)
    again.train()
    assert function_files(left) == wanted(change, tmp_path / "wanted")
    assert not [each.name for each in left.iterdir() if each.name.endswith(("-wal", "-shm", ".tmp"))]
    assert again.verify().ok


# -------------------------------------------------------------------------------------------------------- two processes


def test_books_made_by_two_processes_are_those_of_one(
    tmp_path: Path, books: Books, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books_module, "_MANY", 1)
    monkeypatch.setattr(books_module, "_AT_ONCE", 7)
    monkeypatch.setattr(books_module, "can_help", lambda: True)
    made = Books(tmp_path / "two", KEY)
    (tmp_path / "two").mkdir()
    made.create({client: SEEDS.client(client) for client in WORLD}, contents(WORLD), in_memory=True)
    assert files(tmp_path / "two") == files(path)
    for number in range(PARTS):
        made.require_tree(number)


# ------------------------------------------------------------------------------------------------------------- glancing


def test_are_in_books_looks_up_without_full_check(books: Books, path: Path) -> None:
    asked: list[str] = []
    with contextlib.closing(Books(path, KEY, asked.append)) as found:
        assert found.count() == (len(WORLD), sum(len(samples) for samples in WORLD.values()))
        assert asked == []
        assert sorted(found.sample_counts().tolist()) == sorted(map(len, WORLD.values()))
    there = [Request(client, sample) for client, samples in WORLD.items() for sample in (None, *samples)]
    assert are_in_books(path, there)
    strangers = [Request(client, "stranger") for client in WORLD]
    for strange in (*strangers, Request("stranger"), Request(301, 0)):
        assert not are_in_books(path, [*there, strange])
