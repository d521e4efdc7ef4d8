"""SQL conditions for the CHECK constraints of our tables.

They refuse a value of the wrong type, a NULL, a text that contains a NUL character, and a number out of range.
``read_only`` evaluates them on every opening, so they also protect against files made by other programs.
"""

from __future__ import annotations

_LARGEST = 2**63 - 1


def check(condition: str, *, optional: str = "") -> str:
    """Return a CHECK constraint. If ``optional`` names a column, that column may also be NULL."""
    return f"CHECK ({optional} IS NULL OR ({condition}))" if optional else f"CHECK ({condition})"


def is_whole(column: str, least: int = 0, most: int = _LARGEST) -> str:
    return f"typeof({column}) = 'integer' AND {column} BETWEEN {least} AND {most}"


def is_blob(column: str, least: int, most: int | None = None) -> str:
    return f"typeof({column}) = 'blob' AND length({column}) BETWEEN {least} AND {most or least}"


def is_text(column: str) -> str:
    return f"typeof({column}) = 'text'"


def is_name(column: str) -> str:
    """Require a short ASCII text without NUL: length() stops at a NUL and counts characters; of a blob, bytes."""
    length = f"length({column}) BETWEEN 1 AND 64 AND length({column}) = length(CAST({column} AS BLOB))"
    return f"typeof({column}) = 'text' AND {length}"


def is_digest(column: str) -> str:
    """Require 64 hexadecimal digits."""
    return f"{is_name(column)} AND length({column}) = 64 AND {column} NOT GLOB '*[^0-9a-f]*'"


def is_one_of(column: str, *values: str) -> str:
    return f"typeof({column}) = 'text' AND {column} IN ({', '.join(repr(str(value)) for value in values)})"


def is_id(column: str) -> str:
    """Require a canonical id: a whole number from 0 to 2^63-1 is stored as a number, never as text."""
    as_number = f"CAST({column} AS INTEGER)"
    spelled = f"(CAST({as_number} AS TEXT) <> {column} OR {as_number} < 0)"
    return f"({is_whole(column)}) OR ({is_text(column)} AND {spelled})"
