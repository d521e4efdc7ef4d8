"""The encrypted part of the record: pending requests, intents, and proofs and digests until the next erasure.

Rows are deleted like any others, but a page may keep their bytes. They are gone once the key that encrypted them is
dropped, before a request is called ``purged``. The keys are in a file of their own (``disk.key_file``).

Pending requests share a key in groups, so that dropping one re-encrypts at most one group, however many are pending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedforget.disk.database import Database
from fedforget.disk.key_file import KeyFile
from fedforget.errors import RunDamaged

KEYS = "record.keys"  # beside the database
GROUP = 256  # pending requests that share a key
MODEL, STATE, LEAVES = "model", "state", "leaves"  # kinds of data that are valid until the next erasure
_USED = (
    "SELECT value FROM record WHERE key = 'pseudonym_key'",
    "SELECT key FROM waiting_keys",
    "SELECT key FROM intents",
    "SELECT key FROM (SELECT key FROM standing LIMIT 1)",  # all rows share one key
)


class Vault:
    """The encrypted columns of a record, and the file of their keys.

    ``also``: queries for the keys that other tables refer to.
    """

    def __init__(self, database: Database, also: Sequence[str] = ()) -> None:
        self._database, self._also = database, also
        self.keys = KeyFile(database.path.with_name(KEYS))

    def used(self) -> set[int]:
        """Return the keys that the record refers to."""
        return {number for (number,) in self._database.rows(" UNION ".join((*_USED, *self._also)))}

    def require_keys(self) -> None:
        """Raise RunDamaged if a key is missing, unless an interrupted purge has dropped it."""
        missing = self.used() - self.keys.keys.keys()
        if missing - {key for (key,) in self._database.rows("SELECT key FROM intents WHERE stage = 'completed'")}:
            raise RunDamaged(
                f"{self.keys.path} does not belong to {self._database.path}: it lacks a key",
                hint="restore both from the same backup",
            )

    def take(self) -> int:
        """Return the number of an unused key."""
        return self.keys.take()

    def begin(self) -> None:
        """Record which keys are unused. Call before the first change, and not after a crash."""
        self.keys.begin(self.used())

    def drop_unused(self, *, finishing: bool = False) -> None:
        """Drop every unused key. The caller keeps readers out.

        ``finishing``: the batches at work are about to be purged, so the keys of their intents are dropped, too.
        """
        used = self.used()
        if finishing:
            used -= {key for (key,) in self._database.rows("SELECT key FROM intents")}
        self.keys.keep_only(used)

    def purge(self, last: Callable[[], None] | None) -> None:
        """Drop unused keys, and only then call ``last``, which records what is purged by that.

        The caller keeps readers out.
        """
        self.renew_spent()
        self.drop_unused(finishing=last is not None)
        if last is not None:
            last()

    # Pending requests

    def key_for_waiting(self) -> tuple[int, int]:
        """Return the key of the open group, and how many more requests it takes. Call inside a transaction."""
        rows = self._database.rows(
            "SELECT key, entered FROM waiting_keys WHERE entered < ? AND NOT spent LIMIT 1", (GROUP,)
        )
        if rows:
            return rows[0][0], GROUP - rows[0][1]
        key = self.take()
        self._database.run("INSERT INTO waiting_keys VALUES (?, 0, 0)", (key,))
        return key, GROUP

    def entered(self, key: int, count: int) -> None:
        self._database.run("UPDATE waiting_keys SET entered = entered + ? WHERE key = ?", (count, key))

    def leaves(self, numbers: Sequence[int]) -> None:
        """Delete pending requests. Their keys are dropped when the run is closed."""
        one = [(number,) for number in numbers]
        self._database.run_many(
            "UPDATE waiting_keys SET spent = 1 WHERE NOT spent AND key = (SELECT key FROM waiting WHERE number = ?)",
            one,
        )
        self._database.run_many("DELETE FROM waiting WHERE number = ?", one)

    def renew_spent(self) -> None:
        """Re-encrypt pending requests whose group key also encrypted a deleted request."""
        if not self._database.rows("SELECT 1 FROM waiting_keys WHERE spent LIMIT 1"):
            return
        rows = self._database.rows(
            "SELECT number, key, body FROM waiting WHERE key IN (SELECT key FROM waiting_keys WHERE spent) "
            "ORDER BY number"
        )
        with self._database.transaction():
            for start in range(0, len(rows), GROUP):
                some = rows[start : start + GROUP]
                new = self.take()
                self._database.run("INSERT INTO waiting_keys VALUES (?, ?, 0)", (new, len(some)))
                self._database.run_many(
                    "UPDATE waiting SET key = ?, body = ? WHERE number = ?",
                    ((new, self._renewed(key, new, body, waiting(number)), number) for number, key, body in some),
                )
            self._database.run("DELETE FROM waiting_keys WHERE spent")

    # Data valid until the next erasure

    def put(self, kind: str, about: str, data: bytes, round_: int = 0) -> None:
        """Store data about a state until the next erasure. Call inside a transaction."""
        rows = self._database.rows("SELECT key FROM standing LIMIT 1")
        key = rows[0][0] if rows else self.take()
        sealed = self.keys.encrypt(key, data, f"{kind} {about}")
        self._database.run("INSERT OR REPLACE INTO standing VALUES (?, ?, ?, ?, ?)", (kind, about, round_, key, sealed))

    def get(self, kind: str, about: str) -> bytes | None:
        """Return the data about a state; None once they are superseded."""
        rows = self._database.rows("SELECT key, body FROM standing WHERE kind = ? AND about = ?", (kind, about))
        return self.keys.decrypt(rows[0][0], rows[0][1], f"{kind} {about}") if rows else None

    def text(self, kind: str, about: str) -> str | None:
        """Return a digest of a state; None once it is superseded."""
        found = self.get(kind, about)
        try:
            return None if found is None else found.decode("ascii")
        except UnicodeDecodeError as error:
            raise RunDamaged(f"{self._database.path} is damaged: the {kind} of {about} is not a digest") from error

    def of_round(self, kind: str, round_: int) -> list[tuple[str, bytes]]:
        """Return the data about the state after a round, each with the name it was stored under."""
        rows = self._database.rows("SELECT about, key, body FROM standing WHERE kind = ? AND round = ?", (kind, round_))
        return [(about, self.keys.decrypt(key, body, f"{kind} {about}")) for about, key, body in rows]

    def supersede(self, rounds_left: int) -> None:
        """Delete what an erasure supersedes: all but models up to round ``rounds_left``. Call inside a transaction."""
        self._database.run("DELETE FROM standing WHERE kind <> ? OR round > ?", (MODEL, rounds_left))
        self._renew_standing()

    def drop(self, kind: str) -> None:
        """Delete all data of a kind. Call inside a transaction."""
        self._database.run("DELETE FROM standing WHERE kind = ?", (kind,))
        self._renew_standing()

    def _renew_standing(self) -> None:
        rows = self._database.rows("SELECT kind, about, key, body FROM standing")
        if rows:
            new = self.take()
            self._database.run_many(
                "UPDATE standing SET key = ?, body = ? WHERE kind = ? AND about = ?",
                (
                    (new, self._renewed(key, new, body, f"{kind} {about}"), kind, about)
                    for kind, about, key, body in rows
                ),
            )

    def _renewed(self, old: int, new: int, body: bytes, about: str) -> bytes:
        return self.keys.encrypt(new, self.keys.decrypt(old, body, about), about)

    # Intents

    def key_for_intents(self) -> int:
        """Return the key of the batches at work, which are purged together.

        After an interrupted purge, the key of a batch may already be dropped.
        """
        rows = self._database.rows("SELECT DISTINCT key FROM intents")
        return next((key for (key,) in rows if self.keys.key(key) is not None), None) or self.take()

    def require_readable(self) -> None:
        """Raise RunDamaged if anything cannot be decrypted."""
        self.require_keys()
        waits = "SELECT 'request ' || number, key, body FROM waiting"
        stands = "SELECT kind || ' ' || about, key, body FROM standing"
        for query in (waits, stands):
            for about, key, body in self._database.rows(query):
                self.keys.decrypt(key, body, about)


def waiting(number: int) -> str:
    return f"request {number}"
