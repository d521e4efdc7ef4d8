"""The Ed25519 key pair that signs receipts: generated on first use, readable only by its owner."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedforget.disk.door import Door, read_named
from fedforget.disk.ed25519 import load_honest_key
from fedforget.disk.files import storage_errors, write_durably
from fedforget.errors import InvalidInput, RunDamaged
from fedforget.store.names import PRIVATE_KEY, PUBLIC_KEY

NAMES = (PRIVATE_KEY, PUBLIC_KEY)
MOST = 2**16  # bytes
_GIVE = f"give the run's {PUBLIC_KEY}"
_ANOTHER = "restore both halves from a backup, or continue with a new key: `fedforget receipt show --new-key`"


def signing_key(run: Path, known: str | None = None) -> Ed25519PrivateKey:
    """Return the run's key and restore a lost public half. ``known``: its id in the record. Needs the run's lock."""
    key = known_key(run, known)
    if is_public_key(run):
        require_pair(run, key)
    if not has_public_half(run, key):
        write_durably(run / PUBLIC_KEY, public_pem(key.public_key()), mode=0o600)
    return key


def require_pair(run: Path, key: Ed25519PrivateKey) -> None:
    """Raise RunDamaged if the public half belongs to another pair: it is unknown which half was altered."""
    if not has_public_half(run, key):
        raise RunDamaged(f"{run / PRIVATE_KEY} and {run / PUBLIC_KEY} do not belong together", hint=_ANOTHER)


def known_key(run: Path, known: str | None) -> Ed25519PrivateKey:
    """Return the private half; raise RunDamaged if it is not the recorded one. Writes nothing."""
    if Door(run).status(PRIVATE_KEY) is None:
        raise RunDamaged(
            f"{run / PRIVATE_KEY} is missing; receipts that were signed with it still verify", hint=_ANOTHER
        )
    key = read_private_key(run)
    if known is not None and key_id(key.public_key()) != known:
        raise RunDamaged(f"{run / PRIVATE_KEY} is not the key of this run", hint=_ANOTHER)
    return key


def has_public_half(run: Path, key: Ed25519PrivateKey) -> bool:
    """Return whether the public half on disk belongs to this key."""
    door = Door(run)
    with storage_errors(run / PUBLIC_KEY):
        return door.size(PUBLIC_KEY) is not None and door.read(PUBLIC_KEY, MOST) == public_pem(key.public_key())


def get_or_create_key(run: Path, known: str | None) -> Ed25519PrivateKey:
    """Return the run's key, or generate one if the run never had one. Needs the run's lock.

    The caller records the key before it signs, so a key unknown to the record has signed nothing.
    """
    never = known is None and all(Door(run).status(name) is None for name in NAMES)
    return _make(run) if never else signing_key(run, known)


def replaced_key(run: Path, known: str | None, *, fresh: bool) -> Ed25519PrivateKey:
    """Generate a new key in place of a lost one. Needs the run's lock; the caller records the key before it signs.

    ``fresh``: the record's last event is this key, so the same command may have been killed after generating it; it
    then continues with that key.
    """
    try:
        key = signing_key(run, known)
    except RunDamaged:
        return _make(run)
    if known is not None and not fresh:
        raise InvalidInput(
            f"{run / PRIVATE_KEY} is not lost: it is the key of this run",
            hint="leave out --new-key; to replace a key that is not lost, move both its files away first",
        )
    return key


def is_public_key(run: Path) -> bool:
    """Return whether the run's public half is a valid key, of this or another pair."""
    if (Door(run).size(PUBLIC_KEY) or 0) > MOST:
        return False
    try:
        read_public_key(run / PUBLIC_KEY)
    except InvalidInput:
        return False
    return True


def _make(run: Path) -> Ed25519PrivateKey:
    """Generate and write a key pair, private half first: a lone public half means that a key was lost."""
    key = Ed25519PrivateKey.generate()
    write_pair(run, key)
    return key


def write_pair(run: Path, key: Ed25519PrivateKey) -> None:
    """Write both halves of a key, the private one first."""
    write_durably(run / PRIVATE_KEY, private_pem(key), mode=0o600)
    write_durably(run / PUBLIC_KEY, public_pem(key.public_key()), mode=0o600)


def key_id(key: Ed25519PublicKey) -> str:
    """Return the id of a key in receipts and in the record."""
    return hashlib.blake2b(key.public_bytes_raw(), digest_size=16, person=b"fedforget/keyid").hexdigest()


def private_pem(key: Ed25519PrivateKey) -> bytes:
    kind = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, *kind)


def public_pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def read_private_key(run: Path) -> Ed25519PrivateKey:
    path = run / PRIVATE_KEY
    with storage_errors(path):
        data = Door(run).read(PRIVATE_KEY, MOST)
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RunDamaged(f"{path} is damaged: it is not a key", hint=_ANOTHER) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RunDamaged(f"{path} is not an Ed25519 key", hint=_ANOTHER)
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read an untrusted public key; raise InvalidInput if the file holds anything but one valid Ed25519 key."""
    try:
        data = read_named(path, MOST, _GIVE)
    except ValueError as error:
        raise InvalidInput(f"{path} holds no public key, or more than that: {error}", hint=_GIVE) from error
    try:
        return load_honest_key(data)
    except ValueError as error:
        raise InvalidInput(f"{path} holds {error}", hint=f"{_GIVE}; don't trust another one") from error


def permissions_problem(run: Path) -> str | None:
    """Return a problem if other users can read the private key, else None."""
    path, found = run / PRIVATE_KEY, Door(run).status(PRIVATE_KEY)
    if found is not None and found.st_mode & 0o077:
        return f"other users can read {path}"
    return None
