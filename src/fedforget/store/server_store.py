"""The server's memory on disk: ``server.db`` and ``models/``."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.first_use import NEVER, FirstUse
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import State
from fedforget.algorithm.seeds import Seed
from fedforget.disk.column_checks import check, is_blob, is_digest, is_id, is_one_of, is_text, is_whole
from fedforget.disk.database import Database
from fedforget.disk.parsing import parse_object
from fedforget.errors import RunDamaged
from fedforget.store import roster
from fedforget.store.model_files import ModelFiles
from fedforget.store.roster import Roster

SCHEMA = f"""
CREATE TABLE server (
    key TEXT PRIMARY KEY, value ANY NOT NULL,
    CHECK (CASE key
        WHEN 'seed' THEN {is_blob("value", SEED_BYTES)}
        WHEN 'nonce' THEN {is_blob("value", SEED_BYTES)}
        WHEN 'tree_key' THEN {is_blob("value", SEED_BYTES)}
        WHEN 'seed_origin' THEN {is_one_of("value", "given", "system")}
        WHEN 'plan_digest' THEN {is_digest("value")}
        WHEN 'rounds_done' THEN {is_whole("value")}
        WHEN 'work' THEN {is_text("value")}
        ELSE 0 END)
) STRICT, WITHOUT ROWID;
{roster.SCHEMA}
CREATE TABLE first_rounds (
    client ANY PRIMARY KEY {check(is_id("client"))},
    round INTEGER NOT NULL {check(is_whole("round", 1))}
) STRICT, WITHOUT ROWID;
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY {check(is_whole("round"))},
    model TEXT NOT NULL {check(is_digest("model"))}
) STRICT;
"""


WORK = "work"  # progress of the batches being carried out; absent from a closed run
BEGUN, REWOUND = "begun", "rewound"


def _nothing_else(_: IdSet) -> None: ...


class Beside(Protocol):
    """Rows that are written in the same transactions as those of the server."""

    def taken(self) -> Callable[[IdSet], None]:
        """Take the pending rows. Return the function that writes those of the clients in a roster."""

    def drop(self, leaving: Collection[Id]) -> None:
        """Delete the rows of clients that leave."""


class ServerStore:
    """A ``ServerMemory`` in SQLite. The roster and its first rounds are mirrored in memory, from their first use on."""

    def __init__(self, database: Database, models: ModelFiles, plan: Plan) -> None:
        self.database = database
        self.models = models
        self.plan = plan
        self.commit_to: Callable[[bytes], str] | None = None  # writes a commitment into the plan; returns its digest
        self.beside: Beside | None = None
        self._known_roster: Roster | None = None
        self._known_uses: FirstUse | None = None
        self.rounds_done = self.stored_rounds_done()

    @staticmethod
    def create(
        database: Database,
        models: ModelFiles,
        *,
        seed: Seed,
        seed_origin: str,
        tree_key: bytes,
        plan_digest: str,
        commitments: Mapping[Id, bytes],
        initial: State,
    ) -> None:
        """Write the rows of a server before its first round."""
        name = models.write(initial)
        values = {
            "nonce": seed.nonce,
            "plan_digest": plan_digest,
            "rounds_done": 0,
            "seed": seed.value,
            "seed_origin": seed_origin,
            "tree_key": tree_key,
        }
        with database.transaction():
            database.run_many("INSERT INTO server VALUES (?, ?)", values.items())
            Roster.of(commitments).write(database)
            database.run("INSERT INTO rounds VALUES (0, ?)", (name,))

    @property
    def _roster(self) -> Roster:
        if self._known_roster is None:
            self._known_roster = Roster.read(self.database)
        return self._known_roster

    @property
    def _first_use(self) -> FirstUse:
        if self._known_uses is None:
            try:
                self._known_uses = FirstUse(self.roster, dict(self.stored_first_rounds()))
            except KeyError as error:
                raise RunDamaged(
                    f"{self.database.path} is damaged: it names a round that drew a client which is not in its roster"
                ) from error
        return self._known_uses

    def require_readable(self) -> None:
        """Raise RunDamaged if the roster or its first rounds are damaged."""
        _ = self._first_use

    def _value(self, key: str) -> Any:
        rows = self.database.rows("SELECT value FROM server WHERE key = ?", (key,))
        if not rows:
            raise RunDamaged(f"{self.database.path} lacks its {key}")
        return rows[0][0]

    def stored_rounds_done(self) -> int:
        """Return the rounds done on disk, which can differ from ``rounds_done`` after an interruption."""
        return int(self._value("rounds_done"))

    @property
    def roster(self) -> IdSet:
        return self._roster.ids

    @property
    def members(self) -> Roster:
        """The roster with the commitments."""
        return self._roster

    @property
    def seed(self) -> Seed:
        return Seed(self._value("seed"), self._value("nonce"))

    @property
    def seed_origin(self) -> str:
        return str(self._value("seed_origin"))

    @property
    def tree_key(self) -> bytes:
        """The key of the labels in the tree over the data. New seeds leave it as it is."""
        return bytes(self._value("tree_key"))

    @property
    def plan_digest(self) -> str:
        return str(self._value("plan_digest"))

    def commitments(self) -> dict[Id, bytes]:
        return self._roster.as_dict()

    def first_round(self, client: Id) -> int | None:
        return self._first_use.of(client)

    def first_rounds(self) -> dict[Id, int]:
        return self._first_use.known()

    def stored_first_rounds(self) -> list[tuple[Id, int]]:
        """Return the clients that took part, with their first rounds, in the order of the ids on disk."""
        return self.database.rows("SELECT client, round FROM first_rounds")

    def kept(self) -> dict[int, str]:
        """Return the rounds whose models are kept, with the digests of the models."""
        return dict(self.database.rows("SELECT round, model FROM rounds ORDER BY round"))

    def model_digest(self, round_: int | None = None) -> str:
        wanted = self.rounds_done if round_ is None else round_
        rows = self.database.rows("SELECT model FROM rounds WHERE round = ?", (wanted,))
        if not rows:
            raise RunDamaged(f"{self.database.path} has no model of round {wanted}")
        return str(rows[0][0])

    def load(self, round_: int) -> State:
        return self.models.read(self.model_digest(round_))

    def kept_at_or_before(self, round_: int) -> int:
        return int(self.database.rows("SELECT max(round) FROM rounds WHERE round <= ?", (round_,))[0][0])

    def commit(self, round_: int, state: State, drawn: Sequence[Id]) -> None:
        known = self._first_use.look_up(drawn)
        fresh = [client for client, round_known in zip(drawn, known.tolist(), strict=True) if round_known == NEVER]
        also = self._also()
        self.database.write(lambda: self._commit(round_, state, fresh, also))
        self._first_use.note(self.roster.places_of(fresh), round_)
        self.rounds_done = round_

    def _also(self) -> Callable[[IdSet], None]:
        return _nothing_else if self.beside is None else self.beside.taken()

    def _commit(
        self, round_: int, state: State, fresh: Sequence[Id], also: Callable[[IdSet], None] = _nothing_else
    ) -> None:
        name = self.models.write(state)
        dropped = [] if self.plan.is_kept(round_ - 1, round_) else [self.model_digest(round_ - 1)]
        with self.database.transaction():
            self.database.run("INSERT INTO rounds VALUES (?, ?)", (round_, name))
            if dropped:
                self.database.run("DELETE FROM rounds WHERE round = ?", (round_ - 1,))
            self.database.run_many("INSERT INTO first_rounds VALUES (?, ?)", ((client, round_) for client in fresh))
            also(self.roster)
            self._set("rounds_done", round_)
        if dropped:
            self._unlink_unless_referenced(dropped)

    def work(self) -> dict[str, str]:
        """Return the progress of each batch that was begun. The record must know all of them."""
        rows = self.database.rows("SELECT value FROM server WHERE key = ?", (WORK,))
        try:
            return {str(batch): str(how_far) for batch, how_far in parse_object(rows[0][0]).items()} if rows else {}
        except ValueError as error:
            raise RunDamaged(f"{self.database.path} is damaged: its {WORK} cannot be read: {error}") from error

    def begin(self, batch_id: str) -> None:
        if batch_id not in self.work():
            with self.database.transaction():
                self._note_work(batch_id, BEGUN)

    def end_work(self) -> None:
        with self.database.transaction():
            self.database.run("DELETE FROM server WHERE key = ?", (WORK,))

    def _note_work(self, batch: str, how_far: str) -> None:
        noted = json.dumps({**self.work(), batch: how_far}, sort_keys=True)
        self.database.run("INSERT OR REPLACE INTO server VALUES (?, ?)", (WORK, noted))

    def steps_of(self, rounds: int) -> int:
        return rounds * self.plan.local_steps

    def rewind(self, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:
        back_to = min(rounds_done, self.rounds_done)
        with self.database.transaction():
            if batch_id:
                self._note_work(batch_id, REWOUND)
            staying = self._roster.without(leaving) if leaving else None
            if self.beside is not None:
                self._also()((staying or self._roster).ids)
            if staying is not None:
                staying.write(self.database, self._roster)
            if leaving and self.beside is not None:
                self.beside.drop(leaving)
            self.database.run_many("DELETE FROM first_rounds WHERE client = ?", ((client,) for client in leaving))
            self.database.run("DELETE FROM first_rounds WHERE round > ?", (back_to,))
            self.database.run("DELETE FROM rounds WHERE round > ?", (back_to,))
            self._set("rounds_done", back_to)
        self.models.keep_only(self.kept().values())
        self._rewound(back_to, leaving, staying)

    def _rewound(self, back_to: int, leaving: Sequence[Id], staying: Roster | None) -> None:
        uses, self._known_uses = self._known_uses, None
        if uses is not None and staying is not None:
            uses = uses.without(leaving, staying.ids)
        if uses is not None and back_to < self.rounds_done:
            uses.rewind(back_to)
        self._known_roster = staying or self._known_roster
        self._known_uses, self.rounds_done = uses, back_to

    def join(self, commitments: Mapping[Id, bytes]) -> None:
        """Add new clients to the roster. Idempotent."""
        with self.database.transaction():
            joined = self._roster.joined_by(commitments)
            joined.write(self.database, self._roster)
            self._also()(joined.ids)
        self._known_roster, self._known_uses = joined, None

    def reseed(self, seed: Seed, commitments: Mapping[Id, bytes]) -> None:
        """Store the server's new seed and the clients' new commitments, after updating the plan file. Idempotent."""
        plan_digest = self.plan_digest if self.commit_to is None else self.commit_to(seed.commitment)
        with self.database.transaction():
            for key, value in (
                ("seed", seed.value),
                ("nonce", seed.nonce),
                ("seed_origin", "system"),
                ("plan_digest", plan_digest),
            ):
                self._set(key, value)
            committed = self._roster.committed_to(commitments)
            committed.write(self.database, self._roster)
        self._known_roster = committed

    def _set(self, key: str, value: Any) -> None:
        self.database.run("UPDATE server SET value = ? WHERE key = ?", (value, key))

    def _unlink_unless_referenced(self, names: Sequence[str]) -> None:
        self.models.drop(set(names) - set(self.kept().values()))
