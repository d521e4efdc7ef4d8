"""Accuracy measurements. Rewound together with the models, and deleted with their client."""

from __future__ import annotations

from collections.abc import Iterable

from fedforget.algorithm.ids import Id
from fedforget.disk.column_checks import check, is_id, is_whole
from fedforget.disk.database import Database

SERVER_TEST_SET = -1  # in the column ``client``, which holds no negative id: the server's own test data

SCHEMA = f"""
CREATE TABLE metrics (
    round INTEGER NOT NULL {check(is_whole("round"))},
    client NOT NULL {check(f"client = {SERVER_TEST_SET} OR {is_id('client')}")},
    correct INTEGER NOT NULL {check(is_whole("correct"))},
    count INTEGER NOT NULL {check(is_whole("count"))},
    PRIMARY KEY (round, client)
) WITHOUT ROWID;
"""


class Metrics:
    """The table ``metrics``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def measured(self, round_: int, correct: int, count: int) -> None:
        with self._database.transaction():
            self._database.run(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?)", (round_, SERVER_TEST_SET, correct, count)
            )

    def accuracy(self, round_: int) -> float | None:
        return self.accuracies().get(round_)

    def accuracies(self) -> dict[int, float]:
        """Return the accuracy on the server's test set of each measured round."""
        rows = self._database.rows(
            "SELECT round, correct, count FROM metrics WHERE client = ? ORDER BY round", (SERVER_TEST_SET,)
        )
        return {round_: correct / count for round_, correct, count in rows if count}

    def rewind(self, rounds_left: int, leaving: Iterable[Id]) -> None:
        """Delete the measurements of later rounds and of leaving clients. Call inside a transaction."""
        self._database.run_many("DELETE FROM metrics WHERE client = ?", ((client,) for client in leaving))
        self._database.run("DELETE FROM metrics WHERE round > ?", (rounds_left,))
