"""Results survive a kill at any byte: finished cells stay, everything else is computed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedforget.errors import InvalidInput
from fedforget.experiments.rows import COLUMNS, CSV_COLUMNS, ResultsFile, read_rows

ROWS = [{"dataset": "digits", "seed": 1, "accuracy": 0.5, "round": number} for number in range(3)]
ISSUE = (
    "dataset,scale,method,level,seed,M,N,K,b,E,R,rho_c,rho_s,requests,rounds_computed,round,accuracy,steps,theory_steps,"
    "bytes_up,bytes_down,model_digest"
)


def test_the_columns_begin_with_the_agreed_ones() -> None:
    assert ",".join(CSV_COLUMNS) == ISSUE
    assert COLUMNS[: len(CSV_COLUMNS)] == CSV_COLUMNS


def filled(path: Path) -> Path:
    file = ResultsFile(path)
    file.append("a", ROWS)
    file.append("b", ROWS[:1])
    return path


def test_finished_cells_are_found_again(tmp_path: Path) -> None:
    path = filled(tmp_path / "r.csv")
    again = ResultsFile(path)
    assert again.finished == {"a", "b"}
    assert [row["round"] for row in again.rows] == [0, 1, 2, 0]
    assert again.rows[0]["accuracy"] == 0.5
    assert again.rows[0]["steps"] is None


def test_a_file_cut_at_any_byte_keeps_whole_cells_only(tmp_path: Path) -> None:
    whole = filled(tmp_path / "r.csv").read_bytes()
    header = whole.index(b"\n") + 1
    end_of_a = whole.index(b"\n", whole.rindex(b",a,")) + 1
    for cut in range(header, len(whole)):
        path = tmp_path / "cut.csv"
        path.write_bytes(whole[:cut])
        expected = {"a"} if cut >= end_of_a else set()
        assert ResultsFile(path).finished == expected, cut
        assert ResultsFile(path).finished == expected
        assert path.read_bytes() == (whole[:end_of_a] if expected else whole[:header])


def test_a_reader_that_trusts_every_line_would_keep_half_a_cell(tmp_path: Path) -> None:
    """The wrong variant: without the number of rows, two of three rows look like a finished cell."""
    path = filled(tmp_path / "r.csv")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    assert "a" in path.read_text()
    assert ResultsFile(path).finished == set()


def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "r.csv")
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    assert {row["cell"] for row in read_rows(path)} == {"a"}
    assert path.read_bytes() == torn


def test_a_file_of_an_earlier_version_gets_the_later_columns(tmp_path: Path) -> None:
    path = filled(tmp_path / "r.csv")
    rows = [line.rsplit(",", 1)[0] for line in path.read_text().splitlines()]  # without the last column
    path.write_text("\n".join(rows) + "\n")
    assert read_rows(path)[0]["optimizer"] is None
    file = ResultsFile(path)
    assert file.finished == {"a", "b"}
    file.append("c", [{**ROWS[0], "optimizer": "lr 0.1"}])
    assert [row["optimizer"] for row in ResultsFile(path).rows] == [None] * 4 + ["lr 0.1"]
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)


def test_a_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("dataset,accuracy\ndigits,1\n")
    with pytest.raises(InvalidInput, match="other columns"):
        ResultsFile(path)
    assert path.read_text() == "dataset,accuracy\ndigits,1\n"
