"""Synchronise a client's book with its dataset: erase samples that are missing, add samples that are new.

Changed content under an id counts as another sample: the old one is erased, the new one added. A sample that was erased
before and is still in the dataset is added again only with ``returning``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.client_side.directory import OpenDirectory
from fedforget.client_side.own_requests import OwnRequests, submission_of
from fedforget.data.client_data import ClientData
from fedforget.errors import FedForgetError, InvalidInput, NotConfirmed, shown
from fedforget.requests.lifecycle import Receipt

_PER_CENT = 100


@dataclass(frozen=True, slots=True)
class Differences:
    """How a dataset differs from the book and from the pending requests."""

    vanished: tuple[Id, ...]
    changed: tuple[Id, ...]
    new: tuple[Id, ...]
    returning: tuple[Id, ...]  # erased before, and in the dataset
    arriving: Mapping[Id, bytes] = field(repr=False)  # the pending additions after this synchronisation
    of: int  # samples in the book

    @property
    def erased(self) -> tuple[Id, ...]:
        return (*self.vanished, *self.changed)

    @property
    def share(self) -> float:
        """The share of the recorded samples that would be erased."""
        return len(self.erased) / self.of if self.of else 0.0


def contents_of(client: Id, samples: Any) -> dict[Id, bytes]:
    """Read a whole dataset (a mapping of id → (x, y)) and return its content digests. Refuse one that can't be read."""
    try:
        data = ClientData(client, samples)
        return {sample: data.content(sample) for sample in data.ids}
    except (FedForgetError, MemoryError):
        raise
    except Exception as error:
        raise InvalidInput(
            f"the data of client {shown(client)} cannot be read: {type(error).__name__}: {error}",
            hint="restore the data source (is the disk mounted?); nothing was erased",
        ) from error


def differences(state: OpenDirectory, found: Mapping[Id, bytes], *, returning: bool = False) -> Differences:
    """Compare the digests of a dataset with the book. Changes nothing."""
    known = state.book.contents()
    leaving = {each.sample for each in state.record.book.pending().values()}
    if None in leaving:
        raise InvalidInput(
            f"client {shown(state.client)} is about to leave the run", hint="it cannot be synchronised any more"
        )
    vanished = [sample for sample in known if sample not in found and sample not in leaving]
    changed = [each for each in known if each in found and found[each] != known[each] and each not in leaving]
    wanted = {each: found[each] for each in found if each not in known or found[each] != known[each]}
    asked = {sample for group in state.record.arriving().values() for sample in group}
    back = [each for each in wanted if each not in {*changed, *asked} and _was_erased(state, each)]
    arriving = wanted if returning else {each: wanted[each] for each in wanted if each not in back}
    new = [each for each in arriving if each not in known and each not in asked]
    return Differences(tuple(vanished), tuple(changed), tuple(new), tuple(back), arriving, len(known))


def _was_erased(state: OpenDirectory, sample: Id) -> bool:
    """Return whether a sample was erased, or a request to erase it is pending."""
    target = Request(state.client, sample)
    book = state.record.book
    return bool(book.pending_ids([target])) or book.id_of(target) is not None


def require_confirmed(found: Differences, confirm: int | None) -> None:
    """Refuse to erase more than one per cent of the samples unless the caller names their number."""
    count = len(found.erased)
    if confirm is not None and confirm != count:
        raise NotConfirmed(
            f"{count} samples would be erased, but --confirm says {confirm}",
            hint="list them with --dry-run; nothing was changed",
        )
    if confirm is None and count * _PER_CENT > found.of:
        raise NotConfirmed(
            f"{count} of {found.of} samples would be erased, more than 1 %",
            hint=f"if that is correct (is every disk mounted?), add --confirm {count}; nothing was changed",
        )


def carry_out(
    state: OpenDirectory, found: Differences, basis: str, deadline: str | None, key: str | None
) -> list[Receipt]:
    """Accept the requests that a comparison calls for. They are durable when this returns."""
    submission = submission_of(state.client, found.erased, basis, deadline, key) if found.erased else None
    if submission is not None:
        state.record.book.ids_of_key(submission)  # raises if the key was used for other requests
    _keep_arriving(state, found.arriving)  # first: new content waits until the old content is erased
    return [] if submission is None else OwnRequests(state).accept(submission)


def _keep_arriving(state: OpenDirectory, wanted: Mapping[Id, bytes]) -> None:
    """Replace the pending additions with these samples; keep existing handles."""
    record, kept, left = state.record, dict[str, dict[Id, bytes]](), dict(wanted)
    before = record.arriving()
    for handle, group in before.items():
        stays = {sample: content for sample, content in group.items() if left.get(sample) == content}
        if stays:
            kept[handle] = stays
            left = {sample: content for sample, content in left.items() if sample not in stays}
    if kept == before and not left:
        return
    with record.book.transaction():
        record.keep_arriving([*kept.values(), *([left] if left else [])], kept)
        record.chain.append("synchronised", {"arriving": len(wanted)})
