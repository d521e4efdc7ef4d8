"""Targets of requests: which are present, and which receipt names which target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fedforget.algorithm.forget import Request
from fedforget.errors import UnknownTarget, shown
from fedforget.requests.lifecycle import Receipt


class Membership(Protocol):
    """The clients of a run and their samples."""

    @property
    def path(self) -> Path: ...

    def has(self, target: Request) -> bool:
        """Return whether a client, or a sample of a client, is in the run."""


class Erasures(Protocol):
    """The erased targets, and the request that erased each."""

    def id_of(self, target: Request) -> str | None: ...

    def was_erased_by(self, identifier: str, target: Request) -> bool: ...


def present_targets(members: Membership, erased: Erasures, wanted: Sequence[Request]) -> list[Request]:
    """Return the requests whose target is present. Refuse all if a target is neither present nor erased."""
    present = []
    for request in wanted:
        if members.has(request):
            present.append(request)
        elif erased.id_of(request) is None:
            require_target(members, request)
    return present


def require_target(members: Membership, request: Request) -> None:
    """Raise UnknownTarget unless the run has the target."""
    if not members.has(request):
        where = f" --client {shown(request.client)}" if members.has(Request(request.client)) else ""
        raise UnknownTarget(
            f"there is no {request} in {members.path}", hint=f"see `fedforget clients {members.path}{where}`"
        )


def attach_targets(receipts: Sequence[Receipt], requests: Sequence[Request]) -> list[Receipt]:
    """Add the caller's ids to its receipts. The record keeps no ids."""
    return [
        replace(receipt, client=request.client, sample=request.sample)
        for receipt, request in zip(receipts, requests, strict=True)
    ]


def attach_known_targets(erased: Erasures, receipts: Sequence[Receipt], requests: Sequence[Request]) -> list[Receipt]:
    """Add the caller's ids to its receipts, where another request may have erased a target.

    The receipt is then that of the other request (for example for the whole client), and names no sample.
    """
    return [
        replace(receipt, client=request.client, sample=request.sample if own else None)
        for receipt, request in zip(receipts, requests, strict=True)
        for own in (receipt.is_open or erased.was_erased_by(receipt.id, request),)
    ]
