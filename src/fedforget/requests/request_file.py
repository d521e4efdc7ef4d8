"""Files of requests: one JSON object a line, ``{"client": 3, "sample": 17}`` or ``{"client": 5}``."""

from __future__ import annotations

import json
from pathlib import Path

from fedforget.algorithm.forget import Request
from fedforget.disk.door import unreadable_as
from fedforget.disk.parsing import unique_keys
from fedforget.errors import FedForgetError, InvalidRequests

_SHAPE = 'a line is {"client": 3, "sample": 17} or {"client": 5}'


def read_requests(path: Path) -> list[Request]:
    """Read all requests of a file. Raise an error that names the first invalid line."""
    try:
        with unreadable_as(InvalidRequests, path):
            lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequests(f"{path} is not UTF-8 text", hint=_SHAPE) from error
    return [_request(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


def requests_in(path: Path) -> list[Request]:
    """Read a file of requests, each once. Raise InvalidRequests if it has none."""
    requests = read_requests(path)
    if not requests:
        raise InvalidRequests(f"{path} has no requests", hint="give at least one line")
    return list(dict.fromkeys(requests))


def _request(line: str, place: str) -> Request:
    try:
        entry = json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise InvalidRequests(f"{place} is not JSON: {error}", hint=_SHAPE) from error
    if not isinstance(entry, dict) or "client" not in entry or not entry.keys() <= {"client", "sample"}:
        raise InvalidRequests(f"{place} is not a request", hint=_SHAPE)
    if "sample" in entry and entry["sample"] is None:
        raise InvalidRequests(f"{place} has an empty sample", hint="leave it out to forget the whole client")
    try:
        return Request(entry["client"], entry.get("sample"))
    except FedForgetError as error:
        raise InvalidRequests(f"{place}: {error.message}", hint=error.hint) from error
