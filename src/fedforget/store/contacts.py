"""``contacts.db``: how the clients of a deployment are reached, and which notifications are pending.

It is not part of the run's function. An erased client has no row in it once it was notified.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, MutableSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.tree import LABEL_BYTES
from fedforget.disk.column_checks import check, is_blob, is_id, is_name, is_one_of, is_text, is_whole
from fedforget.disk.database import Database
from fedforget.errors import FedForgetError, RunDamaged
from fedforget.requests.lifecycle import as_written

KEY_BYTES = 32  # of an Ed25519 public key
WITHDRAWN, LEAVES, ADDED = KINDS = ("withdrawal", "client", "addition")

SCHEMA = f"""
CREATE TABLE epoch (
    number INTEGER PRIMARY KEY {check(is_whole("number", 1, 1))},
    epoch INTEGER NOT NULL {check(is_whole("epoch"))}
) STRICT;
CREATE TABLE enrolled (
    client ANY PRIMARY KEY {check(is_id("client"))},
    public_key BLOB {check(is_blob("public_key", KEY_BYTES), optional="public_key")},
    commitment BLOB NOT NULL {check(is_blob("commitment", SEED_BYTES))},
    root BLOB NOT NULL {check(is_blob("root", LABEL_BYTES))},
    time TEXT NOT NULL {check(is_name("time"))},
    joins INTEGER NOT NULL {check(is_whole("joins", 0, 1))}
) STRICT, WITHOUT ROWID;
CREATE TABLE nodes (
    client ANY PRIMARY KEY {check(is_id("client"))},
    node TEXT NOT NULL {check(f"{is_text('node')} AND length(node) BETWEEN 1 AND 20 AND node NOT GLOB '*[^0-9]*'")}
) STRICT, WITHOUT ROWID;
CREATE TABLE untold (
    client ANY NOT NULL {check(is_id("client"))},
    handle TEXT NOT NULL {check(is_name("handle"))},
    kind TEXT NOT NULL {check(is_one_of("kind", *KINDS))},
    PRIMARY KEY (client, handle)
) STRICT, WITHOUT ROWID;
CREATE TABLE undelivered (
    client ANY PRIMARY KEY {check(is_id("client"))}
) STRICT, WITHOUT ROWID;
CREATE TABLE silent (
    client ANY PRIMARY KEY {check(is_id("client"))},
    round INTEGER NOT NULL {check(is_whole("round"))},
    since TEXT NOT NULL {check(is_name("since"))}
) STRICT, WITHOUT ROWID;
CREATE TABLE problems (
    client ANY PRIMARY KEY {check(is_id("client"))},
    problem TEXT NOT NULL {check(is_text("problem"))},
    remedy TEXT NOT NULL {check(is_text("remedy"))},
    since TEXT NOT NULL {check(is_name("since"))}
) STRICT, WITHOUT ROWID;
"""
_LONGEST = 1000  # characters of a problem: a part of it may come from a node


@dataclass(frozen=True, slots=True)
class EnrolledClient:
    """The content of a client's enrolment: its commitment, the root of its samples, and its key."""

    client: Id
    commitment: bytes
    root: bytes
    public_key: bytes | None = None  # None: its answers are not signed (tests in one process)


@dataclass(frozen=True, slots=True)
class Silence:
    """A client that does not answer: the round that is blocked, and since when."""

    client: Id
    round: int
    since: str

    def as_dict(self) -> dict[str, Any]:
        return {"client": self.client, "round": self.round, "since": self.since}


@dataclass(frozen=True, slots=True)
class Problem:
    """What was wrong with a client at the last contact, what helps, and since when."""

    client: Id
    problem: str
    remedy: str
    since: str

    def as_dict(self) -> dict[str, Any]:
        return {"client": self.client, "problem": self.problem, "remedy": self.remedy, "since": self.since}


class Contacts:
    """The tables of ``contacts.db``. It is also the ``Epoch`` of the server: each change is durable at once."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.nodes: MutableMapping[Id, int] = _Nodes(database)
        self.undelivered: MutableSet[Id] = _Undelivered(database)

    def create(self) -> None:
        with self.database.transaction():
            self.database.run("INSERT INTO epoch VALUES (1, 0)")

    # The epoch

    def now(self) -> int:
        rows = self.database.rows("SELECT epoch FROM epoch")
        if not rows:
            raise RunDamaged(f"{self.database.path} is damaged: it has no epoch")
        return int(rows[0][0])

    def raise_to(self, epoch: int) -> None:
        with self.database.transaction():
            self.database.run("UPDATE epoch SET epoch = ?", (epoch,))

    # Enrolment

    def enrolled(self) -> dict[Id, EnrolledClient]:
        rows = self.database.rows("SELECT client, commitment, root, public_key FROM enrolled")
        return {row[0]: EnrolledClient(*row) for row in rows}

    def enrolment(self, client: Id) -> EnrolledClient | None:
        sql = "SELECT client, commitment, root, public_key FROM enrolled WHERE client = ?"
        rows = self.database.rows(sql, (client,))
        return EnrolledClient(*rows[0]) if rows else None

    def enroll(self, *new: EnrolledClient, joins: bool = True) -> None:
        """Insert or replace enrolments. ``joins``: the clients are to be added to the roster."""
        rows = ((each.client, each.public_key, each.commitment, each.root, _now(), int(joins)) for each in new)
        with self.database.transaction():
            self.database.run_many("INSERT OR REPLACE INTO enrolled VALUES (?, ?, ?, ?, ?, ?)", rows)

    def waiting(self, roster: IdSet) -> list[EnrolledClient]:
        """Return the enrolled clients that are not yet in the roster, in the order of their ids."""
        known, joining = self.enrolled(), self._joining()
        return [known[client] for client in IdSet.of_canonical([each for each in joining if each not in roster])]

    def _joining(self) -> set[Id]:
        return {client for (client,) in self.database.rows("SELECT client FROM enrolled WHERE joins = 1")}

    def tidy(self, roster: IdSet) -> None:
        """Delete the rows of erased clients, except of those that were not yet notified."""
        joining = self._joining()
        joined = [(client,) for client in joining if client in roster]
        known = (
            "SELECT client FROM enrolled UNION SELECT client FROM nodes UNION SELECT client FROM silent "
            "UNION SELECT client FROM problems"
        )
        others = {client for (client,) in self.database.rows(known) if client not in roster}
        gone = [(client,) for client in others - joining - set(self.undelivered)]
        if joined or gone:
            with self.database.transaction():
                self.database.run_many("UPDATE enrolled SET joins = 0 WHERE client = ?", joined)
                for table in ("enrolled", "nodes", "silent", "untold", "problems"):
                    self.database.run_many(f"DELETE FROM {table} WHERE client = ?", gone)  # noqa: S608 (our own names)

    # Requests made at clients

    def untold(self) -> dict[tuple[Id, str], str]:
        """Return the kind of each client's request of whose end the client was not yet notified."""
        rows = self.database.rows("SELECT client, handle, kind FROM untold")
        return {(client, handle): kind for client, handle, kind in rows}

    def asked(self, client: Id, handle: str, kind: str) -> None:
        """Record a client's request, until the client is notified of its end."""
        with self.database.transaction():
            self.database.run("INSERT OR REPLACE INTO untold VALUES (?, ?, ?)", (client, handle, kind))

    def told(self, client: Id, handles: Collection[str]) -> None:
        """Record that a client was notified of the end of these requests."""
        with self.database.transaction():
            rows = ((client, handle) for handle in handles)
            self.database.run_many("DELETE FROM untold WHERE client = ? AND handle = ?", rows)

    # Silence

    def silences(self) -> list[Silence]:
        """Return the clients that do not answer, the longest silence first."""
        return [Silence(*row) for row in self.database.rows("SELECT client, round, since FROM silent ORDER BY since")]

    def fell_silent(self, client: Id, round_: int, since: str | None = None) -> None:
        """Record that a client does not answer. A known silence keeps its beginning."""
        with self.database.transaction():
            row = (client, round_, since or _now())
            self.database.run(
                "INSERT INTO silent VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET round = excluded.round", row
            )

    def answered(self, *clients: Id) -> None:
        """Record that clients answered. Writes nothing unless one of them was silent."""
        silent = {silence.client for silence in self.silences()} & set(clients)
        if silent:
            with self.database.transaction():
                self.database.run_many("DELETE FROM silent WHERE client = ?", ((client,) for client in silent))

    # Problems

    def problems(self) -> list[Problem]:
        """Return what was wrong with clients at their last contacts, the oldest problem first."""
        rows = self.database.rows("SELECT client, problem, remedy, since FROM problems ORDER BY since")
        return [Problem(*row) for row in rows]

    def note_problems(self, examined: Collection[Id], found: Mapping[Id, FedForgetError]) -> None:
        """Note the problems of clients that were examined. Those without one are in order again."""
        known = {each.client: each for each in self.problems()}
        gone = [(client,) for client in examined if client in known and client not in found]
        new = [
            (client, error.message[:_LONGEST], error.hint[:_LONGEST], _now())
            for client, error in found.items()
            if client not in known or known[client].problem != error.message[:_LONGEST]
        ]
        if gone or new:
            with self.database.transaction():
                self.database.run_many("DELETE FROM problems WHERE client = ?", gone)
                self.database.run_many("INSERT OR REPLACE INTO problems VALUES (?, ?, ?, ?)", new)

    def validate(self) -> None:
        """Raise RunDamaged if the values of some rows are impossible."""
        times = self.database.rows(
            "SELECT time FROM enrolled UNION SELECT since FROM silent UNION SELECT since FROM problems"
        )
        try:
            self.now()
            _ = [as_written(time) for (time,) in times]
        except (ValueError, OverflowError) as error:
            raise RunDamaged(f"{self.database.path} is damaged: {error}") from error


class _Nodes(MutableMapping[Id, int]):
    """The Flower node of each client. Each change is durable at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getitem__(self, client: Id) -> int:
        rows = self._database.rows("SELECT node FROM nodes WHERE client = ?", (client,))
        if not rows:
            raise KeyError(client)
        return int(rows[0][0])

    def __setitem__(self, client: Id, node: int) -> None:
        if self.get(client) != node:
            with self._database.transaction():
                self._database.run("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (client, str(node)))

    def __delitem__(self, client: Id) -> None:
        with self._database.transaction():
            if not self._database.run("DELETE FROM nodes WHERE client = ?", (client,)):
                raise KeyError(client)

    def __iter__(self) -> Iterator[Id]:
        return (client for (client,) in self._database.rows("SELECT client FROM nodes"))

    def __len__(self) -> int:
        return int(self._database.rows("SELECT count(*) FROM nodes")[0][0])


class _Undelivered(MutableSet[Id]):
    """The erased clients that were not yet notified. Each change is durable at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __contains__(self, client: object) -> bool:
        return bool(self._database.rows("SELECT 1 FROM undelivered WHERE client = ?", (client,)))

    def __iter__(self) -> Iterator[Id]:
        return (client for (client,) in self._database.rows("SELECT client FROM undelivered"))

    def __len__(self) -> int:
        return int(self._database.rows("SELECT count(*) FROM undelivered")[0][0])

    def add(self, value: Id) -> None:
        self._write("INSERT OR IGNORE INTO undelivered VALUES (?)", value)

    def discard(self, value: Id) -> None:
        if value in self:
            self._write("DELETE FROM undelivered WHERE client = ?", value)

    def _write(self, sql: str, client: Id) -> None:
        with self._transaction():
            self._database.run(sql, (client,))

    def _transaction(self) -> AbstractContextManager[None]:
        return self._database.transaction()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
