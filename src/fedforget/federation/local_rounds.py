"""Local rounds as parcels: what the server sends a stateless node that computes for any client, and what it returns.

A node is sent the samples that the round draws and no others, so its memory does not grow with the number of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedforget.algorithm.ids import Id, canonical_id
from fedforget.algorithm.plan import LocalOptimizer
from fedforget.algorithm.ports import LocalRound, Trained
from fedforget.errors import InvalidInput
from fedforget.federation.parcels import Parcel, broken

INTRODUCTION, LOCAL_ROUND = "introduction", "local-round"

ContentsOf = Callable[[Id, Sequence[Id]], Mapping[Id, bytes]]  # the content digests of some samples of a client


@dataclass(frozen=True, slots=True)
class NodeWork:
    """What a node reads out of a parcel: the local round, and the content digests of its samples, if the run has some.

    ``problem`` says how to build the module and find the data; a user's own app ignores it.
    """

    work: LocalRound
    local: LocalOptimizer
    contents: Mapping[Id, bytes]
    problem: Mapping[str, Any]


def introduction() -> Parcel:
    """Return the message that asks a node which partition it is."""
    return Parcel({"kind": INTRODUCTION})


def asked(
    work: LocalRound, local: LocalOptimizer, problem: Mapping[str, Any], contents_of: ContentsOf | None = None
) -> Parcel:
    """Return the message that asks a node to compute a local round."""
    drawn, rows = np.unique(work.rows, return_inverse=True)
    samples = [work.samples[place] for place in drawn.tolist()]
    body: dict[str, Any] = {
        "kind": LOCAL_ROUND,
        "round": work.round,
        "client": work.client,
        "samples": samples,
        "rows": rows.reshape(work.rows.shape).tolist(),
        "streams": [stream.hex() for stream in work.streams],
        "witness_after": work.witness_after,
        "local": {"lr": local.lr, "momentum": local.momentum, "weight_decay": local.weight_decay, "prox": local.prox},
        "problem": dict(problem),
    }
    if contents_of is not None:
        known = contents_of(work.client, samples)
        body["contents"] = [known[sample].hex() for sample in samples]
    return Parcel(body, work.model)


def work_in(parcel: Parcel) -> NodeWork:
    """Return what a node is asked to compute. Raise InvalidInput if it cannot be read."""
    body = parcel.body
    try:
        samples = tuple(canonical_id(sample) for sample in body["samples"])
        work = LocalRound(
            int(body["round"]),
            canonical_id(body["client"]),
            dict(parcel.model or {}),
            samples,
            np.asarray(body["rows"], np.intp),
            tuple(bytes.fromhex(stream) for stream in body["streams"]),
            int(body["witness_after"]),
        )
        digests = [bytes.fromhex(content) for content in body.get("contents", ())]
        contents = dict(zip(samples, digests, strict=True)) if digests else {}
        return NodeWork(work, LocalOptimizer(**body["local"]), contents, dict(body["problem"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"a node cannot read a local round: {type(error).__name__}: {error}",
            hint="run the same version of FedForget on both sides",
        ) from error


def answer(trained: Trained, arithmetic: str = "") -> Parcel:
    """Return a node's answer. ``arithmetic``: a digest of what can change the bits of a result there."""
    checksum = None if trained.checksum is None else trained.checksum.hex()
    return Parcel({"checksum": checksum, "first_step": trained.first_step, "arithmetic": arithmetic}, trained.model)


def trained_in(answered: Parcel, client: Id) -> Trained:
    """Return the result that a node sent for a client."""
    try:
        checksum = answered.body["checksum"]
        first_step = tuple(float(number) for number in answered.body["first_step"])
        return Trained(answered.model, None if checksum is None else bytes.fromhex(checksum), first_step)
    except (KeyError, TypeError, ValueError) as error:
        raise broken(client, "a local round that cannot be read") from error
