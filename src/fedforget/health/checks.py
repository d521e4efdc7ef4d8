"""Examine every file of a run independently: whether it is intact, and a remedy if it is not."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedforget.disk.door import Door
from fedforget.errors import FedForgetError, RunDamaged, StorageFailed
from fedforget.evidence.receipts import receipt_key
from fedforget.requests import inbox
from fedforget.requests.inbox import Inbox
from fedforget.requests.selection import OPEN, Selection
from fedforget.store import hints, plan_file, record_audit
from fedforget.store.checks import AFTER_CRASH, SEEDS, Parts
from fedforget.store.model_files import SUFFIX, ModelFiles
from fedforget.store.names import (
    BOOKS,
    CONTACTS,
    KEYS,
    METRICS,
    MODELS,
    PRIVATE_KEY,
    PUBLIC_KEY,
    RECORD,
    SEALS,
    SERVER,
    USES,
)
from fedforget.store.record import Record
from fedforget.store.run_directory import unfinished_error
from fedforget.store.seals import SEALED, SEALED_REMOTE

_MACHINE_ERRORS = (
    errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE,
    errno.ENOMEM,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    rebuildable: bool = False  # ``fedforget.evidence.rebuild`` can derive it from the other files

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Examination:
    """Examines every file of a run independently, so that damage to one does not hide damage to another."""

    def __init__(self, path: Path, opened: contextlib.ExitStack) -> None:
        self._path = path
        self._parts = Parts(path, opened, trusting=False)

    def checks(self) -> Iterator[Check]:
        found: dict[str, Check] = {}
        for fact in self._parts.facts(every_book=True):
            if fact.name not in found or found[fact.name].ok:
                found[fact.name] = _examined(fact.name, fact.check, _REMEDIES[fact.name])
        yield from found.values()
        whole = all(check.ok for name, check in found.items() if name in _FILES)
        trail = self._parts.record
        yield from self._models(replayable=whole)
        if trail is not None:
            yield _examined("event chain", partial(_chain, trail), f"the record was altered: {_LOST_RECORD}")
            yield self._requests(trail)
        yield from self._receipt_key()
        yield from self._inbox()

    # Models

    def _models(self, *, replayable: bool) -> Iterator[Check]:
        server = self._parts.server
        if server is None:
            yield from self._models_by_name()
            return
        kept, start = server.kept(), None
        for round_, name in kept.items():
            check = _examined(f"model of round {round_}", partial(_whole, server.models, name), "")
            if check.ok:
                start = round_
                continue
            can = replayable and start is not None
            yield replace(check, rebuildable=can, remedy=_lost_model(self._path, round_, start, replayable))
        yield Check("models", True, f"{len(kept)} files referred to")

    def _models_by_name(self) -> Iterator[Check]:
        """Check model files by name alone: without the server database their rounds are unknown, not their digests."""
        models = self._parts.models()
        names = models.door.names(SUFFIX)
        for name in names:
            look = partial(_whole, models, name.removesuffix(SUFFIX))
            check = _examined(f"{MODELS}/{name}", look, _lost_model(self._path, None, None, False))
            if not check.ok:
                yield check
        yield Check("models", True, f"{len(names)} files, compared with their names only")

    # Receipt key, requests and inbox

    def _receipt_key(self) -> Iterator[Check]:
        private, public = (self._path / name for name in receipt_key.NAMES)
        known = None if self._parts.record is None else self._parts.record.receipt_key
        if not any(map(os.path.lexists, (private, public))) and known is None:
            yield Check(PRIVATE_KEY, True, "none was made yet")
            return
        found = list[Ed25519PrivateKey]()
        whole = _examined(PRIVATE_KEY, lambda: _private_half(self._path, known, found), _LOST_KEY)
        yield whole
        problem = receipt_key.permissions_problem(self._path) if whole.ok else None
        if problem is not None:
            yield Check("receipt key permissions", False, problem, f"give it to its owner only: chmod 600 {private}")
        if found:
            again = f"{_LOST_PUBLIC} {hints.rebuild_now(self._path)}"
            lost = _examined(PUBLIC_KEY, lambda: _public_half(self._path), again, rebuildable=True)
            pair = partial(_pair, self._path, found[0])
            yield lost if not lost.ok else _examined(PUBLIC_KEY, pair, _ODD_PAIR)
        else:
            yield _examined(PUBLIC_KEY, lambda: _public_half(self._path), _LOST_KEY)

    def _requests(self, trail: Record) -> Check:
        """Report pending and overdue requests, including those still in the inbox."""
        check = _examined("requests", partial(_unfinished, trail, self._path), unfinished_error(self._path).hint)
        if not check.ok:
            return check
        with contextlib.suppress(FedForgetError):  # ``_inbox`` reports unreadable files
            waiting = inbox.open_requests(trail.book.chosen(Selection((OPEN,))), Inbox(self._path))
            overdue = [receipt for receipt in waiting if receipt.is_overdue()]
            if overdue:
                since = min(receipt.deadline or "" for receipt in overdue)
                remedy = f"carry them out with {hints.run_pending(self._path)}"
                return Check("requests", False, f"{len(overdue)} overdue, the first since {since}", remedy)
            if waiting:
                return Check("requests", True, f"{len(waiting)} pending, none overdue")
        return check

    def _inbox(self) -> Iterator[Check]:
        box, whole = Inbox(self._path), 0
        listed = _examined(inbox.NAME, lambda: f"{len(box.names())} files", _LOST_SUBMISSION)
        if not listed.ok:
            yield listed
        for name in box.names() if listed.ok else ():
            check = _examined(f"{inbox.NAME}/{name}", partial(_submission, box, name), _LOST_SUBMISSION)
            whole += check.ok
            if not check.ok:
                yield check
        if whole:
            yield Check(inbox.NAME, True, f"{whole} submissions; the next process that opens the run accepts them")


_LOST_PLAN = "restore it from a backup: it cannot be rebuilt, no other file holds the plan"
_LOST_SERVER = "restore it from a backup: it cannot be rebuilt, no other file holds the server's seed and the roster"
_LOST_CLIENTS = "restore it from a backup: it cannot be rebuilt, no other file holds the clients' seeds and sample ids"
_LOST_USES = "restore it from a backup: it cannot be rebuilt, no other file holds the clients' first uses"
_LOST_CONTACTS = "restore it from a backup: it cannot be rebuilt, no other file holds the clients' public keys"
_LOST_COMMITS = "restore the whole run directory from a backup: the lost commits cannot be rebuilt"
_LOST_SEEDS = "restore the named files from a backup: seeds cannot be rebuilt"
_LOST_RECORD = "restore it from a backup: it cannot be rebuilt, no other file holds the audit trail"
_LOST_KEYS = "restore the whole run directory from a backup: keys cannot be rebuilt"
_LOST_KEY = (
    "restore it from a backup: it cannot be rebuilt; receipts that were signed with it still verify with the public "
    f"key, so keep {PUBLIC_KEY} elsewhere; to sign with a new one, `fedforget receipt show --new-key`"
)
_LOST_PUBLIC = "it can be derived again from the private key:"
_ODD_PAIR = (
    "restore both halves from a backup: neither shows which one is right; a receipt issued earlier verifies with the "
    "right public key; to sign with a new one, `fedforget receipt show --new-key`"
)
_FILES = (plan_file.NAME, *SEALED, *SEALED_REMOTE)
_REMEDIES = {
    plan_file.NAME: _LOST_PLAN,
    MODELS: "restore it from a backup, with the models that were in it",
    SERVER: _LOST_SERVER,
    USES: _LOST_USES,
    CONTACTS: _LOST_CONTACTS,
    **dict.fromkeys(BOOKS, _LOST_CLIENTS),
    METRICS: "restore it from a backup, or make it anew with `train --eval-every`: no other file holds measurements",
    SEALS: "restore it from a backup, or delete it: the next command examines the run as after a crash",
    RECORD: _LOST_RECORD,
    KEYS: _LOST_KEYS,
    SEEDS: _LOST_SEEDS,
    AFTER_CRASH: _LOST_COMMITS,
}
_MEND = "it may be intact: fix the cause and give the same command again"
_LOST_SUBMISSION = "it cannot be rebuilt: delete this file, then submit the request again"


def _lost_model(run: Path, round_: int | None, start: int | None, replayable: bool) -> str:
    if round_ == 0:
        return "restore it from a backup: it cannot be rebuilt, nothing else determines the initial model"
    if round_ is not None and replayable and start is None:
        return "restore it, or the model of a round before it, from a backup: no earlier model is left to replay from"
    if not replayable:
        return "restore the other files first, then it may be rebuilt by replay; or restore it from a backup as well"
    return f"it can be rebuilt by replay from round {start}: {hints.rebuild_now(run)}; or restore it from a backup"


def _examined(name: str, look: Callable[[], str], remedy: str, *, rebuildable: bool = False) -> Check:
    try:
        return Check(name, True, look())
    except Exception as error:  # noqa: BLE001 (a doctor reports every problem)
        unreadable = f"{name} cannot be read: {type(error).__name__}: {error}"
        detail, hint = (error.message, error.hint) if isinstance(error, FedForgetError) else (unreadable, "")
        if _is_machine_error(error):
            return Check(name, False, detail, hint if isinstance(error, StorageFailed) else _MEND)
        return Check(name, False, detail, remedy, rebuildable)


def _is_machine_error(error: Exception) -> bool:
    """Return whether the operating system refused access: the file itself may be intact."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(error, StorageFailed) or (isinstance(cause, OSError) and cause.errno in _MACHINE_ERRORS)


def _whole(models: ModelFiles, name: str) -> str:
    models.check(name)
    return "whole"


def _chain(trail: Record) -> str:
    problem = record_audit.find_problem(trail)
    if problem is not None:
        raise RunDamaged(problem)
    return "unbroken"


def _unfinished(trail: Record, run: Path) -> str:
    if trail.batches.unfinished():
        raise unfinished_error(run)
    return "none pending"


def _private_half(run: Path, known: str | None, found: list[Ed25519PrivateKey]) -> str:
    key = receipt_key.known_key(run, known)
    if receipt_key.private_pem(key) != Door(run).read(PRIVATE_KEY, receipt_key.MOST):
        raise RunDamaged(f"{run / PRIVATE_KEY} is damaged: it holds a key, but not as it was written")
    found.append(key)
    return "whole"


def _public_half(run: Path) -> str:
    path, size = run / PUBLIC_KEY, Door(run).size(PUBLIC_KEY)
    if size is not None and size > receipt_key.MOST:
        raise RunDamaged(f"{path} has {size} bytes; at most {receipt_key.MOST} are expected")
    receipt_key.read_public_key(path)
    return "whole"


def _pair(run: Path, key: Ed25519PrivateKey) -> str:
    receipt_key.require_pair(run, key)
    return "whole"


def _submission(box: Inbox, name: str) -> str:
    box.read(name)
    return "whole"
