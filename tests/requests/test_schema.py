"""The tables of requests and events, as format 5 has them: what each column accepts."""

from __future__ import annotations

from pathlib import Path

from fedforget.requests import chain, schema


def test_tables_are_those_of_the_format() -> None:
    """Runs on disk were checked by these texts; another text needs a new format."""
    written = Path(__file__).with_name("format-5.sql").read_text(encoding="utf-8")
    assert (schema.SCHEMA + chain.SCHEMA).strip() + "\n" == written
