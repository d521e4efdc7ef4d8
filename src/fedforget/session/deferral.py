"""What a caller can do with requests without model and data: defer and cancel them, set the policy."""

from __future__ import annotations

from pathlib import Path

from fedforget.errors import RunBusy, UnfinishedRequest
from fedforget.requests.inbox import Inbox
from fedforget.requests.intake import Intake, require_standing
from fedforget.requests.lifecycle import Basis, Receipt, Stage, Submission, require_basis
from fedforget.requests.policy import Policy
from fedforget.requests.targets import attach_known_targets, attach_targets, present_targets
from fedforget.store import hints, run_directory
from fedforget.store.run_directory import OpenRun


def defer(path: Path, submission: Submission) -> list[Receipt]:
    """Take requests in, to be carried out later.

    They go to the inbox while another process is at work, or a batch is half applied.
    """
    try:
        with run_directory.writing(path) as run:
            if not _half_applied(run):
                _accept_inbox(run)
                book = run.record.book
                ids = Intake(run, book, run.inbox).accept(submission)
                return attach_known_targets(book, book.receipts_of(ids), submission.requests)
    except RunBusy:
        pass
    return hand_in(path, submission)


def hand_in(path: Path, submission: Submission) -> list[Receipt]:
    """Leave requests in the inbox for the next process at work. Refuse them here if a target is unknown."""
    with run_directory.reading(path, only_idle=False) as run:
        book = run.record.book
        known = book.ids_of_key(submission)
        present_targets(run, book, submission.requests)
        if known is not None:
            require_standing(run, book, submission, known)
        standing = [] if known is None else book.receipts_of(known)
    Inbox(path).leave(submission)  # the process at work decides, also where the key is known
    return attach_targets(standing, submission.requests) if standing else submission.receipts()


def cancel(path: Path, identifier: str, basis: str = Basis.UNKNOWN) -> Receipt:
    """Withdraw a pending request. The choice of what to withdraw may be informed by the draws, so it has a basis."""
    require_basis(basis)
    with run_directory.writing(path) as run:
        _accept_inbox(run)
        book = run.record.book
        receipt = book.receipt(identifier)
        request = book.waiting().get(receipt.id)
        book.cancel(receipt.id, basis)
        receipt = book.receipt(receipt.id)
        return receipt if request is None else attach_targets([receipt], [request])[0]


def set_policy(path: Path, policy: Policy) -> None:
    with run_directory.writing(path) as run:
        run.record.set_policy(policy)


def forget_record(path: Path) -> None:
    """Destroy the key of the record, if no request is pending or unfinished."""
    with run_directory.writing(path) as run:
        _accept_inbox(run)
        run.record.forget_itself()


def collects(path: Path, submission: Submission) -> bool:
    """Whether the run's policy collects requests. New seeds are drawn at once under any policy."""
    with run_directory.reading(path, only_idle=False) as run:
        return run.record.policy.collects and not submission.new_seed


def _half_applied(run: OpenRun) -> bool:
    """Whether data of a batch are still to be removed: the run doesn't hold what its record says."""
    batches = run.record.batches
    return any(batches.stage(intent) == Stage.ACCEPTED for intent in batches.pending())


def _accept_inbox(run: OpenRun) -> None:
    if run.inbox and _half_applied(run):
        raise UnfinishedRequest(
            f"a request on {run.path} was interrupted and is not finished",
            hint=f"finish it with {hints.train(run.path)}",
        )
    intake = Intake(run, run.record.book, run.inbox)
    intake.clear([place for place, _ in intake.accept_inbox()])
