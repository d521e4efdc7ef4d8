"""The key that receipts are signed with: made on first use, readable by its owner only; its public half beside it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedforget.errors import InvalidInput, RunDamaged
from fedforget.store.files import storage_errors, write_durably

PRIVATE, PUBLIC = "receipt-key.pem", "receipt-key.pub.pem"
NAMES = (PRIVATE, PUBLIC)


def signing_key(run: Path, known: str | None = None) -> Ed25519PrivateKey:
    """The run's key, which the record knows by this id; a new one if it never had one."""
    path, public = run / PRIVATE, run / PUBLIC
    if not path.exists():
        if public.exists() or known is not None:
            raise RunDamaged(
                f"{path} is missing; receipts that were signed with it still verify",
                hint="restore it from a backup, or go on with another: `fedforget receipt show --new-key`",
            )
        _make(run)
    with storage_errors(path):
        data = path.read_bytes()
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RunDamaged(f"{path} is damaged: it is no key", hint="restore it from a backup") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RunDamaged(f"{path} is no Ed25519 key", hint="restore it from a backup")
    if known is not None and key_id(key.public_key()) != known:
        raise RunDamaged(f"{path} is not the key of this run", hint="restore it from a backup")
    pem = public_pem(key.public_key())
    if not public.exists() or public.read_bytes() != pem:
        if is_public_key(public):  # a valid other key: whichever was altered, neither may take the other's place
            raise RunDamaged(f"{path} and {public} do not belong together", hint="restore both from a backup")
        write_durably(public, pem)
    return key


def replace_lost_key(run: Path) -> None:
    """A new key where there was one, and is none."""
    if (run / PRIVATE).exists():
        raise InvalidInput(f"{run / PRIVATE} is there", hint="leave out --new-key")
    with storage_errors(run / PUBLIC):
        (run / PUBLIC).unlink(missing_ok=True)
    _make(run)


def is_public_key(path: Path) -> bool:
    try:
        read_public_key(path)
    except InvalidInput:
        return False
    return True


def _make(run: Path) -> None:
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_durably(run / PRIVATE, pem, mode=0o600)


def key_id(key: Ed25519PublicKey) -> str:
    """What a key is called in receipts and in the record."""
    return hashlib.blake2b(key.public_bytes_raw(), digest_size=16, person=b"fedforget/keyid").hexdigest()


def public_pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def read_public_key(path: Path) -> Ed25519PublicKey:
    """A public key that somebody else handed over."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", hint=f"give the run's {PUBLIC}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{path} holds no public key", hint=f"give the run's {PUBLIC}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInput(f"{path} holds another kind of key", hint=f"give the run's {PUBLIC}")
    return key


def permissions_problem(run: Path) -> str | None:
    """Whether somebody else can read the key."""
    path = run / PRIVATE
    if path.exists() and os.name == "posix" and path.stat().st_mode & 0o077:
        return f"{path} can be read by others"
    return None
