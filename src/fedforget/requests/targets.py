"""What requests are about: which targets are present, and which receipt names which target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fedforget.algorithm.forget import Request
from fedforget.errors import UnknownTarget, shown
from fedforget.requests.lifecycle import Receipt


class Membership(Protocol):
    """Who takes part in a run, with which samples."""

    @property
    def path(self) -> Path: ...

    def has(self, target: Request) -> bool:
        """Whether a client, or a sample of a client, is in the run."""


class Erasures(Protocol):
    """What was erased, and by which request."""

    def id_of(self, target: Request) -> str | None: ...

    def was_erased_by(self, identifier: str, target: Request) -> bool: ...


def present_targets(members: Membership, erased: Erasures, wanted: Sequence[Request]) -> list[Request]:
    """Those of the requests whose target is present. Refuse all if one is neither present nor erased."""
    present = []
    for request in wanted:
        if members.has(request):
            present.append(request)
        elif erased.id_of(request) is None:
            where = f" --client {shown(request.client)}" if members.has(Request(request.client)) else ""
            raise UnknownTarget(
                f"there is no {request} in {members.path}", hint=f"see `fedforget clients {members.path}{where}`"
            )
    return present


def attach_targets(receipts: Sequence[Receipt], requests: Sequence[Request]) -> list[Receipt]:
    """Receipts with the ids that the caller asked for. The record keeps none."""
    return [
        replace(receipt, client=request.client, sample=request.sample)
        for receipt, request in zip(receipts, requests, strict=True)
    ]


def attach_known_targets(erased: Erasures, receipts: Sequence[Receipt], requests: Sequence[Request]) -> list[Receipt]:
    """The same, where a target may have been erased by a request for something else.

    Then the receipt is that of the other request (its whole client's, say), and names no sample.
    """
    return [
        replace(receipt, client=request.client, sample=request.sample if own else None)
        for receipt, request in zip(receipts, requests, strict=True)
        for own in (receipt.is_open or erased.was_erased_by(receipt.id, request),)
    ]
