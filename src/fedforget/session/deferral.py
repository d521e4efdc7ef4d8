"""What a caller can do with requests without model and data: defer, cancel, and forget the record."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from fedforget.disk.lock import is_at_work
from fedforget.errors import InvalidInput, RunBusy
from fedforget.requests.inbox import Inbox
from fedforget.requests.intake import Intake, require_standing
from fedforget.requests.lifecycle import Basis, Receipt, Stage, Submission, require_basis
from fedforget.requests.targets import attach_known_targets, attach_targets, present_targets
from fedforget.store import run_directory
from fedforget.store.books.file import are_in_books
from fedforget.store.run_directory import OpenRun, unfinished_error

log = logging.getLogger("fedforget")

Defer = Callable[[OpenRun, Submission], list[Receipt]]


def handed_in(path: Path, submission: Submission) -> list[Receipt] | None:
    """Leave requests for the process at work, after a look at the clients' books alone.

    What that costs does not depend on the record or on the number of clients. Return None if more has to be read: no
    process is at work, a key is given, or a target is not in the books.
    """
    if submission.key is not None or submission.new_seed or not submission.requests or not is_at_work(path):
        return None
    if not are_in_books(path, submission.requests):
        return None
    Inbox(path).leave(submission)
    log.info("left %d requests in the inbox of %s", len(submission.requests), path)
    return submission.receipts()


@contextlib.contextmanager
def open_for_submission(path: Path, submission: Submission, *, defer: bool) -> Iterator[tuple[OpenRun, Defer | None]]:
    """Open a run for a submission. Yields it with the function that defers the submission, or None to carry it out now.

    Requests are deferred with ``defer``, and if the policy collects them; new seeds never are. While another process
    writes the run, deferred requests go to its inbox.
    """
    if defer and submission.new_seed:
        raise InvalidInput("new seeds cannot be deferred", hint="leave out one of --defer and --new-seed")
    with contextlib.ExitStack() as opened:
        try:
            run = opened.enter_context(run_directory.writing(path))
        except RunBusy:
            run = opened.enter_context(run_directory.reading(path, only_idle=False))
            if not _is_deferred(run, submission, defer):
                raise
            yield run, leave_in_inbox
        else:
            yield run, accept if _is_deferred(run, submission, defer) else None


def _is_deferred(run: OpenRun, submission: Submission, defer: bool) -> bool:
    return defer or (run.record.policy.collects and not submission.new_seed)


def accept(run: OpenRun, submission: Submission) -> list[Receipt]:
    """Accept requests, to be carried out later. They go to the inbox if a batch is half applied."""
    if _half_applied(run):
        return leave_in_inbox(run, submission)
    accept_inbox(run)
    book = run.record.book
    ids = Intake(run, book, run.inbox).accept(submission)
    log.info("accepted %d requests on %s", len(ids), run.path)
    return attach_known_targets(book, book.receipts_of(ids), submission.requests)


def leave_in_inbox(run: OpenRun, submission: Submission) -> list[Receipt]:
    """Leave requests for the next process that opens the run. Refuse them here if a target is unknown."""
    book = run.record.book
    known = book.ids_of_key(submission)
    present_targets(run, book, submission.requests)
    if known is not None:
        require_standing(run, book, submission, known)
    standing = [] if known is None else book.receipts_of(known)
    log.info("left %d requests in the inbox of %s", len(submission.requests), run.path)
    run.inbox.leave(submission)  # the process at work decides, also where the key is known
    return attach_targets(standing, submission.requests) if standing else submission.receipts()


def cancel(run: OpenRun, identifier: str, basis: str = Basis.UNKNOWN) -> Receipt:
    """Withdraw a pending request. The choice of what to withdraw may be informed by the draws, so it has a basis."""
    require_basis(basis)
    accept_inbox(run)
    book = run.record.book
    receipt = book.receipt(identifier)
    request = book.pending_of([receipt.id]).get(receipt.id)
    book.cancel(receipt.id, basis)
    receipt = book.receipt(receipt.id)
    return receipt if request is None else attach_targets([receipt], [request])[0]


def forget_record(run: OpenRun) -> None:
    """Destroy the key of the record. Afterwards its pseudonyms and digests cannot be linked to ids."""
    if run.record.batches.unfinished():
        raise unfinished_error(run.path)
    accept_inbox(run)
    run.record.forget_itself()


def _half_applied(run: OpenRun) -> bool:
    """Whether data of a batch are still to be removed: run and record differ until then."""
    batches = run.record.batches
    return any(batches.stage(intent) == Stage.ACCEPTED for intent in batches.unfinished())


def accept_inbox(run: OpenRun) -> None:
    """Accept the requests in the inbox, unless a batch is half applied."""
    if run.inbox and _half_applied(run):
        raise unfinished_error(run.path)
    intake = Intake(run, run.record.book, run.inbox)
    intake.clear([place for place, _ in intake.accept_inbox()])
