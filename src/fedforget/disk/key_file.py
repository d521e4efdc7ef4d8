"""A file of keys for what a database holds only for a time.

A page of a database may keep old bytes for long: in free space, or in what a log leaves behind. What must go is
therefore encrypted. Dropping its key replaces this file, and with that destroys every copy that any page still holds.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedforget.disk.door import Door
from fedforget.disk.files import write_durably
from fedforget.errors import RunDamaged

KEY_BYTES = 32
_MAGIC = b"fedforget/keys/1"
_ID_BYTES, _NONCE_BYTES, _DIGEST_BYTES = 8, 12, 32
_ENTRY = _ID_BYTES + KEY_BYTES
_LARGEST = 2**24  # bytes
_LAST = 2**62  # number of a key
_SPARE = 3  # unused keys in the file, so that taking one does not write it
_LOST = "restore the whole run directory from a backup: keys cannot be rebuilt"


class KeyFile:
    """The keys in a file, by their numbers. It is read on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: dict[int, bytes] | None = None
        self._unused: set[int] = set()  # keys that nothing was ever encrypted with, as far as that is known

    def create(self) -> None:
        self._write({}, _SPARE)

    def begin(self, used: Collection[int]) -> None:
        """Record which keys are unused: those that the database does not refer to. Call before changes.

        Not after a crash: what was encrypted with a key may have been lost before it was committed.
        """
        self._unused = self.keys.keys() - set(used)

    @property
    def keys(self) -> dict[int, bytes]:
        if self._keys is None:
            self._keys = self._read()
        return self._keys

    def take(self) -> int:
        """Return the number of a key that nothing is encrypted with yet. It is on disk already."""
        if not self._unused:
            self._write(self.keys, _SPARE)
        return self._unused.pop()

    def keep_only(self, used: Collection[int]) -> None:
        """Drop every key that something was encrypted with and that is not ``used`` any more.

        Returns after the new file is durable. Writes nothing if there is nothing to drop.
        """
        kept = {number: key for number, key in self.keys.items() if number in used or number in self._unused}
        if kept != self.keys:
            self._write(kept, _SPARE - len(self._unused))

    def key(self, number: int) -> bytes | None:
        return self.keys.get(number)

    def encrypt(self, number: int, data: bytes, about: str) -> bytes:
        """Encrypt data. ``about`` must be the same when they are decrypted."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(self.keys[number]).encrypt(nonce, data, about.encode())

    def decrypt(self, number: int, sealed: bytes, about: str) -> bytes:
        """Return the data; raise RunDamaged if the key is not here or is another one, or if the data were altered."""
        key = self.keys.get(number)
        if key is None:
            raise RunDamaged(f"{self.path} lacks a key that {self.path.parent} needs", hint=_LOST)
        try:
            return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about.encode())
        except (InvalidTag, ValueError) as error:
            raise RunDamaged(
                f"{self.path.parent} is damaged: {about} cannot be decrypted with {self.path.name}", hint=_LOST
            ) from error

    def _write(self, kept: Mapping[int, bytes], fresh: int) -> None:
        """Replace the file by one with these keys and some fresh ones."""
        made = {secrets.randbelow(_LAST) + 1: secrets.token_bytes(KEY_BYTES) for _ in range(fresh)}
        keys = {**kept, **made}
        data = _MAGIC + b"".join(number.to_bytes(_ID_BYTES, "big") + key for number, key in keys.items())
        write_durably(self.path, data + _digest(data), mode=0o600)
        self._keys = keys
        self._unused |= made.keys()

    def _read(self) -> dict[int, bytes]:
        try:
            found = Door(self.path.parent).read(self.path.name, _LARGEST)
        except FileNotFoundError as error:
            raise RunDamaged(f"{self.path} is missing", hint=_LOST) from error
        data, body = found[:-_DIGEST_BYTES], found[len(_MAGIC) : -_DIGEST_BYTES]
        if not data.startswith(_MAGIC) or found[-_DIGEST_BYTES:] != _digest(data) or len(body) % _ENTRY:
            raise RunDamaged(f"{self.path} is damaged: it is not what was written", hint=_LOST)
        entries = (body[place : place + _ENTRY] for place in range(0, len(body), _ENTRY))
        keys = {int.from_bytes(entry[:_ID_BYTES], "big"): entry[_ID_BYTES:] for entry in entries}
        if len(keys) * _ENTRY != len(body) or not all(0 < number <= _LAST for number in keys):
            raise RunDamaged(f"{self.path} is damaged: the numbers of its keys are missing or invalid", hint=_LOST)
        return keys


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, person=b"fedforget/keys").digest()
