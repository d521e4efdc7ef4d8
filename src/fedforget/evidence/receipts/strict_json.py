"""Strict JSON without ambiguity: UTF-8, unique keys, no NaN or Infinity, no lone surrogates, bounded length, depth."""

from __future__ import annotations

import json
from typing import Any

from fedforget.disk.parsing import refuse_constant, unique_keys

LONGEST = 2**20  # bytes; a receipt has about 2,000
_DEEPEST = 32


def parse(data: bytes) -> Any:
    """Return the parsed value; raise ValueError with the reason if the JSON is not strict."""
    if len(data) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark")
    _require_shallow(text)
    value = json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("it has a lone surrogate") from error
    return value


def _require_shallow(text: str) -> None:
    """Bound the nesting before parsing. Brackets inside strings count too; receipts contain none."""
    depth = 0
    for each in text:
        if each in "{[":
            depth += 1
        elif each in "}]":
            depth -= 1
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
