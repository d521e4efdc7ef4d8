"""The sum of a database's pages: equal to a new sum whatever a log changed, and another one for any damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedforget.disk.database import Database
from fedforget.disk.page_sum import _changed, after_log, page_hash, page_sum
from fedforget.disk.pages import PAGE
from fedforget.errors import RunDamaged

SCHEMA = "CREATE TABLE things (name INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT"


def made(path: Path) -> Database:
    database = Database(path, SCHEMA, create=True)
    put(database, range(300))
    database.fold()
    return database


def put(database: Database, names: range) -> None:
    with database.transaction():
        database.run_many("INSERT OR REPLACE INTO things VALUES (?, randomblob(90))", ((name,) for name in names))


def test_sum_is_kept_up_to_date_through_any_history(tmp_path: Path) -> None:
    chance = np.random.default_rng(7)
    database = made(tmp_path / "db")
    database.page_sum = page_sum(tmp_path, "db")
    for _ in range(12):
        for _ in range(chance.integers(1, 4)):
            first = int(chance.integers(0, 3000))
            put(database, range(first, first + int(chance.integers(1, 200))))
            if chance.random() < 0.5:
                database.run("DELETE FROM things WHERE name % 7 = ?", (int(chance.integers(7)),))
        before = database.page_sum
        assert before is not None
        expected = after_log(before, tmp_path / "db")
        database.fold()
        assert database.page_sum == expected == page_sum(tmp_path, "db") != before
    put(database, range(10))
    database.close_folded()
    assert database.page_sum == page_sum(tmp_path, "db")
    assert not (tmp_path / "db-wal").exists()


def test_page_that_no_log_holds_counts_as_zeros(tmp_path: Path) -> None:
    """SQLite leaves out the page with its lock bytes, at 1 GB: in the file it is a hole."""
    (tmp_path / "db").write_bytes(bytes([1]) * PAGE)
    (tmp_path / "log").write_bytes(bytes([3]) * PAGE)
    with (tmp_path / "db").open("rb") as file, (tmp_path / "log").open("rb") as log:
        found = _changed(page_hash(1, bytes([1]) * PAGE), {3: 0}, (log.fileno(), file.fileno()), 1, 3)
    pages = (bytes([1]) * PAGE, bytes(PAGE), bytes([3]) * PAGE)
    assert found == sum(page_hash(number, page) for number, page in enumerate(pages, 1)) % 2**256


def test_unknown_sum_stays_unknown(tmp_path: Path) -> None:
    database = made(tmp_path / "db")
    put(database, range(3))
    database.fold()
    assert database.page_sum is None
    database.close()


@pytest.mark.parametrize("how", ["bit", "swap", "repeat"])
def test_damage_changes_the_sum(tmp_path: Path, how: str) -> None:
    made(tmp_path / "db").close_folded()
    before, data = page_sum(tmp_path, "db"), bytearray((tmp_path / "db").read_bytes())
    pages = [bytes(data[place : place + PAGE]) for place in range(0, len(data), PAGE)]
    if how == "bit":
        pages[3] = bytes([pages[3][0] ^ 1]) + pages[3][1:]
    elif how == "swap":
        pages[3], pages[4] = pages[4], pages[3]
    else:
        pages[3] = pages[4]
    (tmp_path / "db").write_bytes(b"".join(pages))
    assert page_sum(tmp_path, "db") != before


def test_file_of_another_length_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "db").close_folded()
    with (tmp_path / "db").open("ab") as file:
        file.write(bytes(PAGE))
    with pytest.raises(RunDamaged, match="its header says"):
        page_sum(tmp_path, "db")
