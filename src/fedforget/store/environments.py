"""The numeric environment in which each round was trained. Rewound together with the rounds."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.disk.column_checks import check, is_text, is_whole
from fedforget.disk.database import Database
from fedforget.disk.parsing import parse_names

SCHEMA = f"""
CREATE TABLE environments (
    first_round INTEGER PRIMARY KEY {check(is_whole("first_round", 1))},
    environment TEXT NOT NULL {check(is_text("environment"))}
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class TrainedRounds:
    """Consecutive rounds trained in one environment."""

    first_round: int
    last_round: int
    environment: Mapping[str, str]

    def __str__(self) -> str:
        if self.first_round == self.last_round:
            return f"round {self.first_round}"
        return f"rounds {self.first_round} to {self.last_round}"

    def as_dict(self) -> dict[str, Any]:
        return {"first_round": self.first_round, "last_round": self.last_round, **self.environment}


class Environments:
    """The table ``environments``: each row holds until the first round of the next."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, round_: int, environment: Mapping[str, str]) -> None:
        """Record the environment of all rounds from this one on. Call before the first of them is committed."""
        text = json.dumps(environment, sort_keys=True)
        rows = self._database.rows("SELECT first_round, environment FROM environments ORDER BY first_round")
        before, noted = [row for row in rows if row[0] < round_], [row for row in rows if row[0] >= round_]
        expected = [] if before and before[-1][1] == text else [(round_, text)]
        if noted != expected:  # also after a crash between this write and the round
            with self._database.transaction():
                self._database.run("DELETE FROM environments WHERE first_round >= ?", (round_,))
                self._database.run_many("INSERT INTO environments VALUES (?, ?)", expected)

    def of_rounds(self, rounds_done: int) -> list[TrainedRounds]:
        """Return the environments of all rounds up to this one, in order."""
        rows = self._rows(rounds_done)
        edges = [*(first for first, _ in rows), rounds_done + 1]
        return [
            TrainedRounds(first, after - 1, environment)
            for (first, after), (_, environment) in zip(pairwise(edges), rows, strict=True)
        ]

    def rewind(self, rounds_left: int, leaving: Collection[Id]) -> None:  # noqa: ARG002 (holds nothing per client)
        """Delete the environments of later rounds."""
        self._database.run("DELETE FROM environments WHERE first_round > ?", (rounds_left,))

    def rewind_to(self, rounds_left: int) -> None:
        """Delete the environments of later rounds. Writes nothing if there are none."""
        if self._database.rows("SELECT 1 FROM environments WHERE first_round > ? LIMIT 1", (rounds_left,)):
            with self._database.transaction():
                self.rewind(rounds_left, ())

    def _rows(self, last: int) -> list[tuple[int, dict[str, str]]]:
        sql = "SELECT first_round, environment FROM environments WHERE first_round <= ? ORDER BY first_round"
        return [(first, parse_names(text, self._database.path)) for first, text in self._database.rows(sql, (last,))]
