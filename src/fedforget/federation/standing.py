"""The report that a client attaches to every answer: its root, its notes, its environment, and its requests.

A request that is made at a client gets a handle, a random name. The server carries it out by that handle: it never
learns which samples the handle stands for, nor how many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.federation.parcels import Parcel, broken

_WITHDRAWAL, _ADDITION = "withdrawal:", "addition:"
_HANDLE = re.compile(r"[0-9a-f]{32}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_BASES = ("exogenous", "model-informed", "unknown")


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request made at a client: to erase the samples behind a handle, or (``whole``) the client."""

    handle: str
    basis: str
    deadline: str | None
    received: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Addition:
    """Samples that a client has found in its data and that are to join."""

    handle: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A client's report. The digests are None if its data have left the run."""

    root: bytes | None = None
    notes: bytes | None = None
    commitment: bytes | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    withdrawals: tuple[ClientRequest, ...] = ()
    additions: tuple[Addition, ...] = ()

    def seed_problem(self, committed: bytes) -> str | None:
        """Return what is wrong if the client's seed is not the one of its commitment in the roster."""
        return None if self.commitment == committed else "it has another seed than the one it is committed to"

    def fields(self) -> dict[str, Any]:
        """Return what JSON can hold, as ``now`` of an answer."""
        digests = {"root": self.root, "notes": self.notes, "commitment": self.commitment}
        return {
            **{name: None if digest is None else digest.hex() for name, digest in digests.items()},
            "environment": dict(self.environment),
            "withdrawals": [asdict(each) for each in self.withdrawals],
            "additions": [asdict(each) for each in self.additions],
        }


def standing_in(answer: Parcel, client: Id) -> Standing:
    """Return the report in an answer."""
    try:
        found = answer.body["now"]
        return Standing(
            _digest(found["root"]),
            _digest(found["notes"]),
            _digest(found["commitment"]),
            {str(key): _text(value) for key, value in found["environment"].items()},
            tuple(map(_withdrawal, found["withdrawals"])),
            tuple(Addition(_handle(each["handle"])) for each in found["additions"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise broken(client, "a description of itself that cannot be read") from error


def _withdrawal(found: Mapping[str, Any]) -> ClientRequest:
    deadline, basis, whole = found["deadline"], found["basis"], found["whole"]
    if basis not in _BASES or type(whole) is not bool:
        raise ValueError("it is not a withdrawal")
    deadline = None if deadline is None else _text(deadline)
    return ClientRequest(_handle(found["handle"]), basis, deadline, _text(found["received"]), whole)


def _handle(found: Any) -> str:
    if not isinstance(found, str) or not _HANDLE.fullmatch(found):
        raise ValueError("it is not a handle")
    return found


def _digest(found: Any) -> bytes | None:
    if found is not None and not _DIGEST.fullmatch(found):
        raise ValueError("it is not a digest")
    return None if found is None else bytes.fromhex(found)


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError("it is not a text")
    return found


# The ids that stand for handles where a message or a request names samples


def withdrawal_id(handle: str) -> str:
    """Return the id that stands for a withdrawal's samples in the server's requests and messages."""
    return _WITHDRAWAL + handle


def addition_id(handle: str) -> str:
    """Return the id that stands for an addition's samples in the server's messages."""
    return _ADDITION + handle


def withdrawal_in(given: Id) -> str | None:
    """Return the handle of a withdrawal in an id; None for any other id."""
    return _handle_in(given, _WITHDRAWAL)


def addition_in(given: Id) -> str | None:
    """Return the handle of an addition in an id; None for any other id."""
    return _handle_in(given, _ADDITION)


def _handle_in(given: Id, prefix: str) -> str | None:
    if not isinstance(given, str) or not given.startswith(prefix):
        return None
    handle = given.removeprefix(prefix)
    return handle if _HANDLE.fullmatch(handle) else None
