"""``metrics.db``: accuracy measurements on the test set of the server or of each client.

They are rewound together with the models. Those of an erased client are deleted, so no accuracy includes them. They are
in a file of their own that is rebuilt when one is deleted, because they name clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedforget.algorithm.ids import Id
from fedforget.disk.column_checks import check, is_id, is_whole
from fedforget.disk.database import Database

SERVER_TEST_SET = -1  # in the column ``client``, which holds no negative id: the server's own test data

SCHEMA = f"""
CREATE TABLE metrics (
    round INTEGER NOT NULL {check(is_whole("round"))},
    client ANY NOT NULL {check(f"client = {SERVER_TEST_SET} OR {is_id('client')}")},
    correct INTEGER NOT NULL {check(is_whole("correct"))},
    count INTEGER NOT NULL {check(is_whole("count"))},
    PRIMARY KEY (round, client)
) STRICT, WITHOUT ROWID;
"""


class Metrics:
    """The table ``metrics``."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def measured(self, round_: int, counts: Mapping[Id | None, tuple[int, int]]) -> None:
        """Note correct and counted test samples of a round, by client; None stands for the server's test set."""
        with self.database.transaction():
            self.database.run_many(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?)",
                (
                    (round_, SERVER_TEST_SET if client is None else client, correct, count)
                    for client, (correct, count) in counts.items()
                ),
            )

    def clients_of(self, round_: int) -> set[Id | None]:
        """Return the clients that are measured for a round; None for the server's test set."""
        rows = self.database.rows("SELECT client FROM metrics WHERE round = ?", (round_,))
        return {None if client == SERVER_TEST_SET else client for (client,) in rows}

    def accuracy(self, round_: int) -> float | None:
        return self.accuracies().get(round_)

    def accuracies(self) -> dict[int, float]:
        """Return the accuracy of each measured round over all of its test samples."""
        rows = self.database.rows("SELECT round, sum(correct), sum(count) FROM metrics GROUP BY round ORDER BY round")
        return {round_: correct / count for round_, correct, count in rows if count}

    def rewind(self, rounds_left: int, leaving: Collection[Id]) -> None:
        """Delete the measurements of later rounds and of leaving clients. Writes nothing if there are none."""
        named = "SELECT DISTINCT client FROM metrics WHERE client <> ?"
        measured = {client for (client,) in self.database.rows(named, (SERVER_TEST_SET,))} if leaving else set[Id]()
        gone = sorted(measured & set(leaving), key=repr)
        if not gone and not self.database.rows("SELECT 1 FROM metrics WHERE round > ? LIMIT 1", (rounds_left,)):
            return
        with self.database.transaction():
            self.database.run_many("DELETE FROM metrics WHERE client = ?", ((client,) for client in gone))
            self.database.run("DELETE FROM metrics WHERE round > ?", (rounds_left,))
