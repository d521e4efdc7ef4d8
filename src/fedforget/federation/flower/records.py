"""Parcels as Flower's records: the body as JSON in a ConfigRecord, the tensors in an ArrayRecord, bit for bit."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedforget.errors import InvalidInput
from fedforget.federation.parcels import Arrays, Parcel
from fedforget.federation.post import FOREIGN

_BODY, _MODEL, _KEY = "fedforget", "fedforget-model", "body"


def pack(parcel: Parcel, model: ArrayRecord | None = None) -> RecordDict:
    """Return the records of a parcel. ``model``: its model, if the caller has packed it already."""
    content = RecordDict({_BODY: ConfigRecord({_KEY: json.dumps(dict(parcel.body))})})
    if parcel.model is not None:
        content[_MODEL] = pack_model(parcel.model) if model is None else model
    return content


def pack_model(model: Arrays) -> ArrayRecord:
    return ArrayRecord(OrderedDict((name, Array(np.asarray(tensor, order="C"))) for name, tensor in model.items()))


def unpack(content: RecordDict) -> Parcel:
    """Return the parcel in a message of the other side. Raise InvalidInput if it is none."""
    try:
        body = json.loads(str(content.config_records[_BODY][_KEY]))
        found: Any = content.array_records.get(_MODEL)
        model = None if found is None else {name: array.numpy() for name, array in found.items()}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _foreign(f"{type(error).__name__}: {error}") from error
    if not isinstance(body, dict):
        raise _foreign("its body is no object")
    return Parcel(body, model)


def _foreign(why: str) -> InvalidInput:
    return InvalidInput(
        f"a message of another kind came from Flower: {why}",
        hint=FOREIGN,
    )
