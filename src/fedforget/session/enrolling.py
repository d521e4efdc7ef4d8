"""Enter clients of a deployment into a run: their public keys, commitments and roots."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.errors import InvalidInput, shown
from fedforget.store import run_directory
from fedforget.store.contacts import EnrolledClient
from fedforget.store.run_directory import OpenRun

log = logging.getLogger("fedforget")


def enroll(path: Path, enrolments: Sequence[EnrolledClient], *, returning: bool = False) -> list[EnrolledClient]:
    """Open a run and enter clients, all or none. Return those that are new."""
    with run_directory.writing(path) as run:
        for each in enrolments:
            if _names_other_samples(run, each) and not _may_begin_again(run, each.client):
                raise InvalidInput(
                    f"the file of client {shown(each.client)} names other samples than those that it takes part with",
                    hint="samples can be read anew only before the first round and the first request; afterwards the "
                    "client gives `fedforget client sync`",
                )
        return enter(run, enrolments, returning=returning)


def enter(run: OpenRun, enrolments: Sequence[EnrolledClient], *, returning: bool = False) -> list[EnrolledClient]:
    """Enter clients, all or none. They join the roster with the next contact. Return those that are new.

    Before the first round a client may also replace its samples (``client init --again``).
    ``returning``: also clients that were erased. A client that is there already keeps its key.
    """
    again = [each for each in enrolments if _names_other_samples(run, each) and _may_begin_again(run, each.client)]
    new = [each for each in enrolments if _is_new(run, each, returning=returning)]
    if new or again:
        run.remote.contacts.enroll(*new, *again)
    run.remote.held.replace_roots({each.client: each.root for each in again if each.client in run.server.roster})
    for each in new:
        run.remote.contacts.undelivered.discard(each.client)  # it is another state directory than the erased one
    log.info("enrolled %d clients in %s", len(new), run.path)
    return new


def enter_not_erased(run: OpenRun, enrolments: Sequence[EnrolledClient]) -> None:
    """Enter the clients that were not erased: an enrolment file may outlast its client."""
    book = run.record.book
    enter(run, [each for each in enrolments if book.id_of_exactly(Request(each.client)) is None])


def _names_other_samples(run: OpenRun, each: EnrolledClient) -> bool:
    """Return whether the file of a client that is enrolled names other samples than the run knows of."""
    known = run.remote.contacts.enrolment(each.client)
    if known is None or (known.public_key, known.commitment) != (each.public_key, each.commitment):
        return False
    takes_part = each.client in run.server.roster
    return each.root not in {known.root, run.remote.held.of(each.client)[0] if takes_part else known.root}


def _may_begin_again(run: OpenRun, client: Id) -> bool:
    """Return whether a client may read its samples anew: before the first round and the first request."""
    return client not in run.server.roster or not (run.server.rounds_done or run.record.book.counts())


def _is_new(run: OpenRun, each: EnrolledClient, *, returning: bool) -> bool:
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
