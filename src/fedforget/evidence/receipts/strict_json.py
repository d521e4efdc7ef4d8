"""JSON that can be read in one way only: UTF-8, each key once, no numbers beyond JSON's, neither long nor deep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

LONGEST = 2**20  # bytes; a receipt has about 2,000
_DEEPEST = 32


def read_at_most(path: Path, limit: int) -> bytes:
    """A file that another person handed over; ValueError if it is longer. It may be endless."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it has more than {limit} bytes")
    return data


def parse(data: bytes) -> Any:
    """The value; ValueError says what is wrong."""
    if len(data) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark")
    _require_shallow(text)
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)


def _require_shallow(text: str) -> None:
    """Counted before parsing; brackets within texts count as well, and no receipt holds any."""
    depth = 0
    for each in text:
        if each in "{[":
            depth += 1
        elif each in "}]":
            depth -= 1
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
