"""Issue receipts: build the statement of a finished request and sign it with the run's key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedforget.algorithm.forget import Request
from fedforget.errors import InvalidInput, shown
from fedforget.evidence.receipts.envelope import Envelope, seal
from fedforget.evidence.receipts.opening import Opening
from fedforget.evidence.receipts.receipt_key import get_or_create_key, has_public_half, key_id, known_key, replaced_key
from fedforget.evidence.receipts.shape import Statement
from fedforget.evidence.receipts.statement import Ending, build_statement
from fedforget.requests.lifecycle import Receipt, Stage
from fedforget.store import hints, run_directory
from fedforget.store.books.leaves import salts_of_target
from fedforget.store.run_directory import OpenRun


@dataclass(frozen=True, slots=True)
class Issued:
    """A signed receipt, and facts that it does not state."""

    envelope: Envelope
    seeds_tainted_now: bool
    superseded: bool  # the data have changed since: the receipt holds no proofs


def issue(path: Path, identifier: str, *, public: bool = False, new_key: bool = False) -> Issued:
    """Return the signed receipt of a finished request.

    The public form does not reveal whether anything was recomputed: it omits the steps, the exact times, the digest of
    the previous state and the number of events. While another request is unfinished, the receipt holds no proofs: the
    data are about to change. ``new_key``: replace a lost signing key.
    """
    with run_directory.reading(path, unfinished=True) as run:
        statement, known = _statement(run, identifier, public), run.record.receipt_key
        tainted = run.record.book.tainted
        key = known_key(path, known) if known is not None and not new_key else None
        if key is not None and not has_public_half(path, key):
            key = None  # restoring the public half needs the lock
    if key is None:
        with run_directory.writing(path) as run:
            key = _agreed_key(run, new_key)
    return Issued(seal(statement, key), tainted, bool(statement["predicate"].get("superseded")))


def open_target(path: Path, identifier: str, target: Request) -> Opening:
    """Return the ids and salts behind the labels of a receipt, given what its request was for.

    The record keeps no ids: the caller names the target, and it is compared with the record.
    """
    with run_directory.reading(path) as run:
        receipt = _finished(run, identifier)
        if receipt.state != Stage.PURGED:
            raise InvalidInput(
                f"nothing was erased for request {shown(identifier)}: it was {receipt.state}",
                hint="only the receipt of an erasure has an opening",
            )
        if not run.record.book.was_erased_by(receipt.id, target):
            raise _not_its_target(run, receipt, target)
        client, sample = salts_of_target(run.server.tree_key, target)
    opened = None if target.sample is None or sample is None else (target.sample, sample)
    return Opening(receipt.id, (target.client, client), opened)


def _not_its_target(run: OpenRun, receipt: Receipt, target: Request) -> InvalidInput:
    if run.record.book.pseudonym_of(receipt.id) is None:
        return InvalidInput(
            f"the record no longer knows the target of request {receipt.id}, or another request erased it",
            hint="an opening that was written earlier still opens the archived receipt",
        )
    return InvalidInput(
        f"request {receipt.id} was not for {target}: it was for another {receipt.level}",
        hint="name the client with --opening, and the sample with --sample, if the request was for one",
    )


def _finished(run: OpenRun, identifier: str) -> Receipt:
    receipt = run.record.book.receipt(identifier)
    receipt.require_closed(f"carry it out with {hints.run_pending(run.path)}")
    return receipt


def _statement(run: OpenRun, identifier: str, public: bool) -> Statement:
    receipt = _finished(run, identifier)
    return build_statement(run, Ending.read(run, receipt), public=public)


def _agreed_key(run: OpenRun, new_key: bool) -> Ed25519PrivateKey:
    """Return the signing key. Its files are written and it is recorded before it signs."""
    known, last = run.record.receipt_key, run.record.chain.last()  # another process may have created one
    if new_key:
        key = replaced_key(run.path, known, fresh=last is not None and last.body.get("key") == known)
    else:
        key = get_or_create_key(run.path, known)
    if key_id(key.public_key()) != known:
        run.record.note_receipt_key(key_id(key.public_key()))
    return key
