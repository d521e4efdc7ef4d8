"""Seals: digests of a run's databases at its last closing. Absent while a process writes the run, and after a crash.

They are in a small file of their own, which is written last and moved aside before any other byte changes. It also
holds the signatures of the files (``disk.seen``): a file that the file system says is unchanged since FedForget wrote
or read it as a whole is not read as a whole again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedforget.disk.door import Door
from fedforget.disk.files import digest, storage_errors, sync_directory, write_durably
from fedforget.disk.parsing import parse_object
from fedforget.disk.seen import Signature, boot, is_only_ours, signature
from fedforget.errors import RunDamaged
from fedforget.store.names import BOOKS, BROKEN_SEALS, CONTACTS, METRICS, RECORD, SEALS, SERVER, USES

SEALED = (SERVER, USES, METRICS, *BOOKS, RECORD)
SEALED_REMOTE = (SERVER, CONTACTS, METRICS, RECORD)  # of a run whose clients are on other machines
_LARGEST = 2**16  # bytes
_HEX = frozenset("0123456789abcdef")
_LENGTH = 64
_HINT = "restore it from a backup; without it the next command examines the run as after a crash"


@dataclass(frozen=True, slots=True)
class Seal:
    """The digest of a file. ``root``: of a clients' book, its root. ``seen``: the signature of the file."""

    digest: str
    root: bytes | None = None
    seen: Signature | None = None


class Seals:
    """The file ``seals``."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._door = Door(run)

    def all(self) -> dict[str, Seal]:
        """Return the seals by file; none if a process is writing the run, or was killed."""
        return self._read(SEALS)

    def trusts(self, name: str, seal: Seal | None) -> bool:
        """Return whether a file is, by its signature, the one that was sealed."""
        return seal is not None and seal.seen is not None and signature(self._door, name) == seal.seen

    def set(self, seals: Mapping[str, Seal]) -> None:
        """Write the seals, durably."""
        about = {
            name: [seal.digest, None if seal.root is None else seal.root.hex(), seal.seen]
            for name, seal in seals.items()
        }
        text = json.dumps({"boot": boot(), "files": about}).encode()
        with storage_errors(self._run / BROKEN_SEALS):
            (self._run / BROKEN_SEALS).unlink(missing_ok=True)  # first: a sealed run has no leftovers
        write_durably(self._run / SEALS, digest(text).encode() + b"\n" + text, mode=0o600)

    def break_all(self) -> None:
        """Move the seals aside, durably. A reader still recognises by them the files that have not changed."""
        with storage_errors(self._run / SEALS):
            if self._door.status(SEALS) is not None:
                (self._run / SEALS).replace(self._run / BROKEN_SEALS)
                sync_directory(self._run)

    def broken(self) -> dict[str, Seal]:
        """Return the seals that the process at work moved aside; none if there are none, or if they are damaged."""
        try:
            return self._read(BROKEN_SEALS)
        except RunDamaged:
            return {}

    def forget_broken(self) -> None:
        """Delete the seals that were moved aside, durably: they hold digests of what is about to be purged."""
        with storage_errors(self._run / BROKEN_SEALS):
            if self._door.status(BROKEN_SEALS) is not None:
                (self._run / BROKEN_SEALS).unlink()
                sync_directory(self._run)

    def _read(self, name: str) -> dict[str, Seal]:
        try:
            found = self._door.read(name, _LARGEST)
        except FileNotFoundError:
            return {}
        known, _, text = found.partition(b"\n")
        try:
            raw = parse_object(text if digest(text).encode() == known else b"")
            seals = {str(file): _seal(*about) for file, about in raw["files"].items()}
            here = raw["boot"] is not None and raw["boot"] == boot() and is_only_ours(self._door, name)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunDamaged(f"{self._run / name} is damaged: it is not what was written", hint=_HINT) from error
        if seals.keys() not in (set(SEALED), set(SEALED_REMOTE)):
            raise RunDamaged(f"{self._run / name} is damaged: its seals are not those of a run", hint=_HINT)
        return seals if here else {file: replace(seal, seen=None) for file, seal in seals.items()}


def _seal(found: Any, root: Any, seen: Any) -> Seal:
    if not isinstance(found, str) or len(found) != _LENGTH or not _HEX.issuperset(found):
        raise ValueError("it is not a digest")
    signed = None if seen is None else tuple(seen)
    if signed is not None and not all(type(each) is int for each in signed):
        raise ValueError("it is not a signature")
    return Seal(found, None if root is None else bytes.fromhex(root), signed)


def roots_in(seals: Mapping[str, Seal], names: Collection[str] = BOOKS) -> dict[str, bytes]:
    """Return the roots of the clients' books in these seals."""
    return {name: seal.root for name, seal in seals.items() if name in names and seal.root is not None}
