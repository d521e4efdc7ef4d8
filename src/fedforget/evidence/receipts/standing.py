"""The proofs that a run gives for a request until its data change again: absence now, presence before.

The record keeps the leaves of the targets of the last batches. Inserted into the tree over the present data, they give
the tree before the request. When data leave or join, the leaves are deleted, and no proof can be made any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from fedforget.algorithm.ids import Id
from fedforget.algorithm.tree import Path, beside, joined, path_of, root_of
from fedforget.errors import RunDamaged
from fedforget.evidence.receipts.proofs import VALUE_BYTES, Proof, Target
from fedforget.requests.leaves import TargetLeaves
from fedforget.store.books.tree import DEPTH, PARTS, number_of
from fedforget.store.clients_part import DataTree
from fedforget.store.run_directory import OpenRun


@dataclass(frozen=True, slots=True)
class StandingProof:
    """The proofs for a request. ``before`` and ``presence`` are None if the run cannot give them."""

    target: Target
    after: bytes
    absence: Proof
    before: bytes | None = None
    presence: Proof | None = None


def standing_proof(run: OpenRun, identifier: str) -> StandingProof | None:
    """Return the proofs for a request; None if the data have changed since, or the record lost its target."""
    known = run.record.batches.standing()
    own = next(((number, leaves) for request, number, leaves in known if request == identifier), None)
    if own is None:
        return None
    tree_now, target = run.part.tree(), target_of(own[1])
    now = _Tree(tree_now)
    client = now.client_with(target.client)
    absence = _absence(tree_now, now, target, client)
    batches = [leaves for _, number, leaves in known if number >= own[0]]  # its own batch, and those that joined it
    tree = _Tree(tree_now, {leaves.client[0]: leaves.client[1] for leaves in batches})  # the earliest batch is last
    root = tree.root()
    if not _is_root_before(run, identifier, root):
        return StandingProof(target, now.root(), absence)
    presence = _presence(tree_now, tree, target, client, batches)
    return StandingProof(target, now.root(), absence, root, presence)


def target_of(leaves: TargetLeaves) -> Target:
    return Target(leaves.client[0], None if leaves.sample is None else leaves.sample[0])


class _Tree:
    """The tree over the data of a run, with the former values of some clients' leaves."""

    def __init__(self, data: DataTree, put_back: Mapping[bytes, bytes] | None = None) -> None:
        self._data, self._put_back = data, put_back or {}
        self._clients = cache(data.client_leaves)

    def client_with(self, label: bytes) -> Id | None:
        """Return the client that has this label now; None if no client has."""
        leaves = self._clients(number_of(label))
        return next((client for client, (found, _) in leaves.items() if found == label), None)

    def root(self) -> bytes:
        return joined(self._roots())

    def path(self, label: bytes) -> Path:
        number = number_of(label)
        return path_of(self._leaves(number).items(), label, DEPTH).below(beside(self._roots(), number))

    def _leaves(self, number: int) -> dict[bytes, bytes]:
        changed = {label: value for label, value in self._put_back.items() if number_of(label) == number}
        return {**dict(self._clients(number).values()), **changed}

    def _roots(self) -> list[bytes]:
        known, changed = list(self._data.roots().values()), {number_of(label) for label in self._put_back}
        return [
            root_of(self._leaves(number).items(), DEPTH) if number in changed else known[number]
            for number in range(PARTS)
        ]


def _absence(books: DataTree, tree: _Tree, target: Target, client: Id | None) -> Proof:
    sample = None
    if client is not None and target.sample is not None:
        sample = path_of(books.sample_leaves(client), target.sample)
    if client is not None and (sample is None or target.sample is None or sample.value(target.sample) is not None):
        raise RunDamaged(f"{books.path_of(client)} is damaged: it holds an erased target")
    return Proof(tree.path(target.client), sample)


def _presence(books: DataTree, tree: _Tree, target: Target, client: Id | None, batches: list[TargetLeaves]) -> Proof:
    """Return the paths before the request.

    That of a sample is missing if its whole client left by a request: what else the client had is not known any more.
    """
    path = tree.path(target.client)
    if target.sample is None:
        return Proof(path, None)
    samples: dict[bytes, bytes] = dict(books.sample_leaves(client)) if client is not None else {}
    samples |= dict(each.sample for each in batches if each.sample is not None and each.client[0] == target.client)
    whole = path.value(target.client) or b""
    known = root_of(samples.items()) == whole[VALUE_BYTES:]
    return Proof(path, path_of(samples.items(), target.sample) if known else None)


def _is_root_before(run: OpenRun, identifier: str, root: bytes) -> bool:
    """Return whether this is the root of the data before a request's batch.

    If the batch changed more than it erased (new seeds, or an addition that was interrupted), it is not, and the run
    cannot give that root.
    """
    chain = run.record.chain
    begun = next(event for event in chain.about([identifier]) if event.kind == "begun")
    if run.record.pseudonyms.mac("data root", root).hex() == begun.body.get("data_root_before"):
        return True
    if chain.last_of("reseeded", "added") < begun.sequence:
        raise RunDamaged(
            f"{run.record.database.path} is damaged: the proof of request {identifier} does not fit the data"
        )
    return False
