"""Parse JSON and TOML from files of a run. Every malformed, oversized or deeply nested text raises ValueError.

JSON is UTF-8, gives no key twice, and has no NaN or Infinity.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from fedforget.errors import RunDamaged

LONGEST = 2**25  # bytes or characters of JSON; parsed, it can take twenty times as much memory
_MOST_PARTS = 2**21  # lists and objects in one text


def parse_json(text: str | bytes) -> Any:
    marks: tuple[Any, Any] = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if len(text) > LONGEST or sum(map(text.count, marks)) > _MOST_PARTS:
        raise ValueError("it is too long")
    try:
        unicode = text if isinstance(text, str) else text.decode()
        return json.loads(unicode, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The ``object_pairs_hook`` that raises ValueError if a key is given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def refuse_constant(constant: str) -> NoReturn:
    """The ``parse_constant`` that raises ValueError for NaN and Infinity."""
    raise ValueError(f"{constant} is not a JSON number")


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; ValueError for any other value."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 (every bad text raises ValueError)
    return found


def parse_names(text: str, path: Path) -> dict[str, str]:
    """Parse a JSON object of strings from the database at ``path``; anything else raises RunDamaged."""
    try:
        found = parse_object(text)
    except ValueError as error:
        raise RunDamaged(f"{path} is damaged: {error}") from error
    if not all(isinstance(value, str) for value in found.values()):
        raise RunDamaged(f"{path} is damaged: a value is not a text")
    return found


def parse_toml(data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
