"""Encode the port's messages for a network: each becomes a parcel.

A parcel has a body that JSON can hold and, where a model travels, its arrays. Neither side trusts what it unpacks.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.ids import Id, canonical_id
from fedforget.algorithm.ports import ForgetReply, JoinReply, Newcomer, Presence
from fedforget.algorithm.seeds import Seed
from fedforget.errors import FedForgetError, InvalidInput, NonFiniteLoss, TrainingFailed, shown

Arrays = Mapping[str, NDArray[Any]]

PRESENCE, TRAIN, REPEAT = "presence", "train", "repeat"
WOULD_CHANGE, WOULD_JOIN = "what-would-change", "what-would-join"
REMOVE, JOIN, RESEED, REWIND = "remove", "join", "reseed", "rewind"
PLAN, DONE, REPLAY = "plan", "done", "replay"
_NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message or its answer."""

    body: Mapping[str, Any]
    model: Arrays | None = field(default=None, repr=False)


def request(run: str, epoch: int, kind: str, client: Id | None, model: Arrays | None = None, **fields: Any) -> Parcel:
    """Return the server's message to a client; to any client if ``client`` is None.

    Its nonce is fresh: a signed answer to another message is not an answer to this one.
    """
    nonce = secrets.token_hex(_NONCE_BYTES)
    return Parcel({"run": run, "epoch": epoch, "kind": kind, "client": client, "nonce": nonce, **fields}, model)


def failure(error: FedForgetError) -> Parcel:
    """Return the answer of a client that raised an error."""
    return Parcel({"error": {"code": error.code, "message": error.message, "hint": error.hint}})


def error_in(answer: Parcel, client: Id) -> FedForgetError | None:
    """Return the error in an answer as the client raised it, or None."""
    found = answer.body.get("error")
    if found is None:
        return None
    if not isinstance(found, Mapping):
        return broken(client, "an error without words")
    kind = _KINDS.get(str(found.get("code")), TrainingFailed)
    return kind(str(found.get("message", "")), hint=str(found.get("hint", "")))


def _kinds(of: type[FedForgetError]) -> dict[str, type[FedForgetError]]:
    found = {of.code: of}
    for each in of.__subclasses__():
        found |= _kinds(each)
    return found


_KINDS = _kinds(FedForgetError)


def broken(client: Id, what: str) -> TrainingFailed:
    """Return the error for a malformed answer."""
    return TrainingFailed(
        f"client {shown(client)} sent {what}", hint="update FedForget there, and give the same command again"
    )


# Answers, as the server reads them


def client_in(answer: Parcel) -> Id:
    """Return the client that a node answers for, also if its data have left the run."""
    try:
        return canonical_id(answer.body["client"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("a node does not say which client it answers for", hint="see its log") from error


def presence_in(answer: Parcel) -> Presence | None:
    """Return who a client says it is; None if its data have left the run."""
    client = client_in(answer)
    try:
        return None if answer.body["gone"] else Presence(client, bytes.fromhex(answer.body["commitment"]))
    except (KeyError, TypeError, ValueError) as error:
        raise broken(client, "a commitment that cannot be read") from error


def forget_reply_in(answer: Parcel, client: Id, count: int) -> ForgetReply:
    """Return the first step that used each of so many samples, and whether the client would be empty."""
    steps, empty = answer.body.get("first_steps"), answer.body.get("now_empty")
    if not isinstance(steps, list) or len(steps) != count or not all(map(_is_step, steps)) or type(empty) is not bool:
        raise broken(client, "first steps that cannot be read")
    return ForgetReply(client, tuple(steps), now_empty=empty)


def join_reply_in(answer: Parcel, client: Id) -> JoinReply:
    step = answer.body.get("first_step")
    if not _is_step(step):
        raise broken(client, "a first step that cannot be read")
    return JoinReply(client, step)


def agreement_in(answer: Parcel, client: Id) -> bool | None:
    agrees = answer.body.get("agrees")
    if agrees is not None and type(agrees) is not bool:
        raise broken(client, "neither yes nor no")
    return agrees


def _is_step(value: object) -> bool:
    return value is None or (type(value) is int and value > 0)


def require_like(model: Arrays, found: Arrays | None, client: Id) -> None:
    """Refuse a local model that does not have the tensors of the round's model, or is not finite."""
    if found is None or found.keys() != model.keys():
        raise broken(client, "a model with other tensors")
    for name, tensor in model.items():
        if (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype):
            raise broken(client, f"the tensor {shown(name)} in another shape or type")
        if found[name].dtype.kind == "f" and not np.isfinite(found[name]).all():
            raise NonFiniteLoss(
                f"client {shown(client)} sent a model that is not finite", hint="lower the learning rate; see its log"
            )


# Newcomers and seeds


def newcomer_fields(new: Newcomer) -> dict[str, Any]:
    samples = [[sample, content.hex()] for sample, content in new.samples]
    return {"samples": samples, **({} if new.seed is None else seed_fields(new.seed))}


def newcomer_in(body: Mapping[str, Any], client: Id) -> Newcomer:
    samples = tuple((canonical_id(sample), bytes.fromhex(content)) for sample, content in body["samples"])
    return Newcomer(client, seed_in(body) if "seed" in body else None, samples)


def seed_fields(seed: Seed) -> dict[str, str]:
    return {"seed": seed.value.hex(), "nonce": seed.nonce.hex()}


def seed_in(body: Mapping[str, Any]) -> Seed:
    return Seed(bytes.fromhex(body["seed"]), bytes.fromhex(body["nonce"]))
