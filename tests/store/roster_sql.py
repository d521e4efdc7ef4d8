"""SQL that changes one client of the roster in ``server.db``. ``place`` is the client's position in it."""

from __future__ import annotations


def commitment_becomes(place: int, value: str = "zeroblob(32)") -> str:
    return f"UPDATE roster SET commitments = {_spliced('commitments', 32, place, value)}"


def client_becomes(place: int, block: str) -> str:
    return f"UPDATE roster SET clients = {_spliced('clients', 16, place, block)}"


def client_goes(place: int) -> str:
    clients, commitments = (_spliced(name, width, place) for name, width in (("clients", 16), ("commitments", 32)))
    return f"UPDATE roster SET clients = {clients}, commitments = {commitments}"


def client_comes(number: int) -> str:
    """A client whose id is larger than all others."""
    block = f"clients || x'{number:032x}'"
    return f"UPDATE roster SET clients = CAST({block} AS BLOB), commitments = CAST(commitments || zeroblob(32) AS BLOB)"


def _spliced(column: str, width: int, place: int, value: str = "x''") -> str:
    before, after = f"substr({column}, 1, {width * place})", f"substr({column}, {width * (place + 1) + 1})"
    return f"CAST({before} || {value} || {after} AS BLOB)"
