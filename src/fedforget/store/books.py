"""The clients' books on disk: each client's seed, and its sample ids with content digests, in 16 files.

A book changes when data leave or join, never in a round. Its file is then replaced as a whole, in canonical form, so it
has no log, and after a crash it is the old file or the new one. The label of a client decides which file holds its
book, and the files' roots join to the root of the tree over all data.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.ports import Newcomer, RemoveOrder
from fedforget.algorithm.seeds import Seed
from fedforget.algorithm.tree import Path as TreePath
from fedforget.algorithm.tree import beside, joined, labels_of, leaves_of, path_of, root_of
from fedforget.disk import wal
from fedforget.disk.column_checks import check, is_blob, is_id, is_whole
from fedforget.disk.database import VERSION, Database
from fedforget.disk.files import write_durably
from fedforget.disk.lock import exclusive_section
from fedforget.disk.pages import PAGE, canonical_header
from fedforget.errors import RunDamaged, shown
from fedforget.store.names import BOOKS
from fedforget.store.row_checks import validate_book

PARTS = len(BOOKS)
DEPTH = PARTS.bit_length() - 1
_LONGEST_CONTENT, _ROOT_BYTES = 64, 32
_AT_ONCE = 500  # values in one query
_PERSON = b"fedforget/book/1"

SCHEMA = f"""
CREATE TABLE clients (
    client ANY PRIMARY KEY {check(is_id("client"))},
    seed BLOB NOT NULL {check(is_blob("seed", SEED_BYTES))},
    nonce BLOB NOT NULL {check(is_blob("nonce", SEED_BYTES))},
    root BLOB NOT NULL {check(is_blob("root", _ROOT_BYTES))}
) STRICT, WITHOUT ROWID;
CREATE TABLE samples (
    client ANY NOT NULL {check(is_id("client"))},
    sample ANY NOT NULL {check(is_id("sample"))},
    content BLOB NOT NULL {check(is_blob("content", 1, _LONGEST_CONTENT))},
    PRIMARY KEY (client, sample)
) STRICT, WITHOUT ROWID;
CREATE TABLE part (
    number INTEGER PRIMARY KEY {check(is_whole("number", 0, PARTS - 1))},
    root BLOB NOT NULL {check(is_blob("root", _ROOT_BYTES))}
) STRICT;
"""

Contents = Iterable[tuple[Id, bytes]]


class Books:
    """The books of all clients. ``key`` is a secret of the run: it makes labels that reveal nothing about ids.

    Files are opened on first use. ``check`` is called with the name of a file before it is opened. ``known_roots``:
    the roots of files that need not be opened to know them.
    """

    def __init__(
        self,
        run: Path,
        key: bytes,
        check: Callable[[str], None] = lambda _: None,
        known_roots: Mapping[str, bytes] | None = None,
    ) -> None:
        self._run, self._key, self._check = run, key, check
        self._known_roots = dict(known_roots or {})
        self._open: dict[int, Database] = {}
        self.before_write: Callable[[], None] = lambda: None
        self.changed: set[str] = set()  # names of files, since the run was opened or sealed

    # Reading

    def part_of(self, client: Id) -> int:
        return _number_of(self._label(client))

    def _label(self, client: Id) -> bytes:
        return labels_of(self._key, IdSet([client]))[0]

    def path_of(self, client: Id) -> Path:
        """Return the file that holds a client's book."""
        return self._run / BOOKS[self.part_of(client)]

    def part(self, number: int) -> Database:
        if number not in self._open:
            self._check(BOOKS[number])
            _refuse_log(self._run / BOOKS[number])
            found = Database(self._run / BOOKS[number], SCHEMA)
            try:
                validate_book(found, number)
            except BaseException:
                found.close()
                raise
            self._open[number] = found
        return self._open[number]

    def _of(self, client: Id) -> Database:
        return self.part(self.part_of(client))

    def _all(self, query: str) -> Iterator[tuple[object, ...]]:
        for number in range(PARTS):
            yield from self.part(number).rows(query)

    def clients(self) -> Iterator[Id]:
        return (client for (client,) in self._all("SELECT client FROM clients"))  # type: ignore[misc]

    def commitments(self) -> dict[Id, bytes]:
        """Return each client's commitment, computed from its seed and nonce."""
        rows = self._all("SELECT client, seed, nonce FROM clients")
        return {client: Seed(seed, nonce).commitment for client, seed, nonce in rows}  # type: ignore[misc, arg-type]

    def sizes(self) -> dict[Id, int]:
        return dict(self._all("SELECT client, count(*) FROM samples GROUP BY client"))  # type: ignore[arg-type]

    def has(self, client: Id, sample: Id) -> bool:
        return bool(self._of(client).rows("SELECT 1 FROM samples WHERE client = ? AND sample = ?", (client, sample)))

    def samples(self, client: Id) -> IdSet:
        return IdSet.of_canonical([sample for (sample,) in self._of(client).rows(_SAMPLES, (client,))])

    def contents(self, client: Id, samples: Sequence[Id] | None = None) -> dict[Id, bytes]:
        """Return the content digest of each sample of a client, or of some of its samples."""
        database = self._of(client)
        if samples is None:
            return dict(database.rows(_CONTENTS, (client,)))
        found: dict[Id, bytes] = {}
        for start in range(0, len(samples), _AT_ONCE):
            some = samples[start : start + _AT_ONCE]
            found.update(database.rows(f"{_CONTENTS} AND sample IN ({', '.join('?' * len(some))})", (client, *some)))
        return found

    def seed(self, client: Id) -> Seed:
        database = self._of(client)
        rows = database.rows("SELECT seed, nonce FROM clients WHERE client = ?", (client,))
        if not rows:
            raise RunDamaged(f"{database.path} lacks client {shown(client)}")
        return Seed(*rows[0])

    # The tree

    def roots(self) -> dict[str, bytes]:
        """Return the root of each file."""
        return {
            name: self._known_roots.get(name) or bytes(self.part(number).rows("SELECT root FROM part")[0][0])
            for number, name in enumerate(BOOKS)
        }

    def root(self) -> bytes:
        """Return the root of the tree over all clients and samples."""
        return joined(list(self.roots().values()))

    def require_tree(self, number: int) -> None:
        """Raise RunDamaged if the roots in a file are not those of its content."""
        database = self.part(number)
        with contextlib.closing(_copy_of(database)) as part:
            stored = part.execute("SELECT root FROM part").fetchone()[0]
            wrong = stored != root_of(self._client_leaves(number, part), DEPTH)
            wrong = wrong or stored != self._known_roots.get(BOOKS[number], stored)
            for client, root in part.execute("SELECT client, root FROM clients").fetchall():
                wrong = wrong or root != self._root_of_samples(part, client)
        if wrong:
            raise RunDamaged(f"{database.path} is damaged: its roots are not those of its content")

    def client_path(self, client: Id) -> tuple[bytes, TreePath]:
        """Return the label of a client, and the path that shows whether it is in the tree."""
        label = self._label(client)
        number = _number_of(label)
        with contextlib.closing(_copy_of(self.part(number))) as part:
            leaves = self._client_leaves(number, part)
        return label, path_of(leaves, label, DEPTH).below(beside(list(self.roots().values()), number))

    def sample_path(self, client: Id, sample: Id) -> tuple[bytes, TreePath]:
        """Return the label of a sample, and the path that shows whether it is in its client's tree."""
        label = labels_of(self._sample_key(client), IdSet([sample]))[0]
        return label, path_of(self._sample_leaves(client, self.contents(client)), label)

    def _sample_key(self, client: Id) -> bytes:
        return blake2b(b"samples" + id_block(client), key=self._key, digest_size=32, person=_PERSON).digest()

    def _sample_leaves(self, client: Id, contents: Mapping[Id, bytes]) -> list[tuple[bytes, bytes]]:
        ids = IdSet.of_canonical(contents)
        return leaves_of(self._sample_key(client), ids, [contents[sample] for sample in ids])

    def _client_leaves(self, number: int, part: sqlite3.Connection) -> list[tuple[bytes, bytes]]:
        rows = {client: (seed, nonce, root) for client, seed, nonce, root in part.execute("SELECT * FROM clients")}
        ids = IdSet.of_canonical(rows)
        leaves = []
        for label, client in zip(labels_of(self._key, ids), ids, strict=True):
            if _number_of(label) != number:
                raise RunDamaged(
                    f"{self._run / BOOKS[number]} is damaged: client {shown(client)} belongs into another file"
                )
            seed, nonce, root = rows[client]
            leaves.append((label, Seed(seed, nonce).commitment + root))
        return leaves

    # Writing

    def create(self, clients: Mapping[Id, Seed], contents: Callable[[Id], Contents]) -> None:
        """Write the books of a new run."""
        ids = IdSet.of_canonical(clients)
        parts: list[list[Id]] = [[] for _ in range(PARTS)]
        for label, client in zip(labels_of(self._key, ids), ids, strict=True):
            parts[_number_of(label)].append(client)
        for number, members in enumerate(parts):
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as part:
                part.executescript(f"PRAGMA page_size={PAGE}; BEGIN; {SCHEMA}; PRAGMA user_version={VERSION}; COMMIT;")
                part.execute("BEGIN")
                for client in members:
                    self._insert(part, client, clients[client], contents(client))
                write_durably(self._run / BOOKS[number], self._image(number, part), mode=0o600)

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        """Remove samples and clients. Idempotent."""
        for number, own in _by_part(orders, self.part_of).items():
            with self._replacing(number) as part:
                for order in own:
                    if order.samples is None:
                        part.execute("DELETE FROM clients WHERE client = ?", (order.client,))
                        part.execute("DELETE FROM samples WHERE client = ?", (order.client,))
                    else:
                        gone = ((order.client, sample) for sample in order.samples)
                        part.executemany("DELETE FROM samples WHERE client = ? AND sample = ?", gone)
                        self._set_root(part, order.client)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        """Insert new samples, of new or existing clients. Idempotent."""
        for number, own in _by_part(newcomers, self.part_of).items():
            with self._replacing(number) as part:
                for new in own:
                    known = part.execute("SELECT 1 FROM clients WHERE client = ?", (new.client,)).fetchone()
                    if new.seed is not None and not known:
                        self._insert(part, new.client, new.seed, new.samples)
                    else:
                        rows = ((new.client, sample, content) for sample, content in new.samples)
                        part.executemany("INSERT OR IGNORE INTO samples VALUES (?, ?, ?)", rows)
                        self._set_root(part, new.client)

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        """Store new seeds. Idempotent."""
        for number in range(PARTS):
            with self._replacing(number) as part:
                own = [client for (client,) in part.execute("SELECT client FROM clients").fetchall()]
                rows = ((seeds[client].value, seeds[client].nonce, client) for client in own if client in seeds)
                part.executemany("UPDATE clients SET seed = ?, nonce = ? WHERE client = ?", rows)

    def _insert(self, part: sqlite3.Connection, client: Id, seed: Seed, contents: Contents) -> None:
        known = dict(contents)
        root = root_of(self._sample_leaves(client, known))
        part.execute("INSERT INTO clients VALUES (?, ?, ?, ?)", (client, seed.value, seed.nonce, root))
        rows = ((client, sample, content) for sample, content in known.items())
        part.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)

    def _set_root(self, part: sqlite3.Connection, client: Id) -> None:
        root = self._root_of_samples(part, client)
        part.execute("UPDATE clients SET root = ? WHERE client = ?", (root, client))

    def _root_of_samples(self, part: sqlite3.Connection, client: Id) -> bytes:
        return root_of(self._sample_leaves(client, dict(part.execute(_CONTENTS, (client,)).fetchall())))

    @contextlib.contextmanager
    def _replacing(self, number: int) -> Iterator[sqlite3.Connection]:
        """Change a file: yield a copy in memory, and put it in the place of the file."""
        self.before_write()
        old = self.part(number)
        with old.errors(), contextlib.closing(_copy_of(old)) as part:
            part.execute("BEGIN")
            yield part
            image = self._image(number, part)
        self._open.pop(number).close()
        self._known_roots.pop(BOOKS[number], None)
        self.changed.add(BOOKS[number])
        with exclusive_section(self._run):
            write_durably(self._run / BOOKS[number], image, mode=0o600)
        old.reopen()  # this process has written it: it need not be checked again
        self._open[number] = old

    def _image(self, number: int, part: sqlite3.Connection) -> bytes:
        """Finish the transaction on a file in memory, and return the file in canonical form."""
        root = root_of(self._client_leaves(number, part), DEPTH)
        part.execute("INSERT OR REPLACE INTO part VALUES (?, ?)", (number, root))
        part.execute("COMMIT")
        part.execute("VACUUM")
        image = part.serialize()
        return canonical_header(image[:PAGE]) + image[PAGE:]

    def close(self) -> None:
        for part in self._open.values():
            part.close()
        self._open.clear()


def _number_of(label: bytes) -> int:
    """Return the number of the file that holds the client with this label."""
    return label[0] >> (8 - DEPTH)


def _refuse_log(path: Path) -> None:
    """Refuse a write-ahead log: books have none, and one would change what is read behind the back of the seals."""
    if wal.has_content(path):
        raise RunDamaged(
            f"{path.with_name(path.name + wal.SUFFIX)} is not a file of a run",
            hint="don't rely on this directory; restore it from a backup",
        )


def _copy_of(database: Database) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.copy_into(copy)
    return copy


def _by_part(items: Iterable[Any], part_of: Callable[[Id], int]) -> dict[int, list[Any]]:
    """Group orders or newcomers by the file that holds their client."""
    found: dict[int, list[Any]] = {}
    for item in items:
        found.setdefault(part_of(item.client), []).append(item)
    return found


_SAMPLES = "SELECT sample FROM samples WHERE client = ?"
_CONTENTS = "SELECT sample, content FROM samples WHERE client = ?"
