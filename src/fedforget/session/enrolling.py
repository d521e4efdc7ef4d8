"""Enter clients of a deployment into a run: their public keys, commitments and roots."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fedforget.algorithm.forget import Request
from fedforget.errors import InvalidInput, shown
from fedforget.store import run_directory
from fedforget.store.contacts import Enrolment
from fedforget.store.run_directory import OpenRun

log = logging.getLogger("fedforget")


def enroll(path: Path, enrolments: Sequence[Enrolment], *, returning: bool = False) -> list[Enrolment]:
    """Open a run and enter clients, all or none. Return those that are new."""
    with run_directory.writing(path) as run:
        return enter(run, enrolments, returning=returning)


def enter(run: OpenRun, enrolments: Sequence[Enrolment], *, returning: bool = False) -> list[Enrolment]:
    """Enter clients, all or none. They join the roster with the next contact. Return those that are new.

    ``returning``: also clients that were erased. A client that is there already keeps its key.
    """
    new = [each for each in enrolments if _is_new(run, each, returning=returning)]
    if new:
        run.remote.contacts.enroll(*new)
    for each in new:
        run.remote.contacts.undelivered.discard(each.client)  # it is another state directory than the erased one
    log.info("enrolled %d clients in %s", len(new), run.path)
    return new


def enter_not_erased(run: OpenRun, enrolments: Sequence[Enrolment]) -> None:
    """Enter the clients that were not erased: an enrolment file may outlast its client."""
    book = run.record.book
    enter(run, [each for each in enrolments if book.id_of_exactly(Request(each.client)) is None])


def _is_new(run: OpenRun, each: Enrolment, *, returning: bool) -> bool:
    known = run.remote.contacts.enrolment(each.client)
    there = known is not None and each.client not in run.remote.contacts.undelivered
    if known is not None and there and known.public_key == each.public_key and known.commitment == each.commitment:
        return False
    if there:
        raise InvalidInput(
            f"client {shown(each.client)} is enrolled in {run.path} with another key or another seed",
            hint="if its state is lost, restore it from a backup; or erase the client, then enroll it with --returning",
        )
    if not returning and run.record.book.id_of(Request(each.client)) is not None:
        raise InvalidInput(
            f"client {shown(each.client)} was erased from {run.path}", hint="to bring it back, say so: --returning"
        )
    return True
