"""Checks of the arguments that a caller gives. They come before anything is written or trained."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, SupportsIndex

from fedforget.algorithm.forget import Request
from fedforget.errors import InvalidInput, quoted, shown

_PAIR = 2


def whole_or_none(value: object, what: str) -> int | None:
    """A whole number as Python's own; None stays None. 2.0 and True only look like one."""
    if value is None:
        return None
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        with contextlib.suppress(TypeError):  # of an array or a tensor that holds something else
            return operator.index(value)
    raise InvalidInput(
        f"{what} must be a whole number, not {quoted(value)}", hint="give a whole number such as 2, or leave it out"
    )


def number_of(value: object, what: str) -> float:
    if type(value) is not bool and isinstance(value, Real):
        with contextlib.suppress(OverflowError):
            return float(value)
    raise InvalidInput(f"{what} must be a number, not {quoted(value)}", hint="give a number, or leave it out")


def require_callback(on_round: object) -> None:
    if on_round is not None and not callable(on_round):
        raise InvalidInput(
            f"on_round must be a function of a round's number, not {quoted(on_round)}",
            hint="give a function such as on_round=print, or leave it out",
        )


def require_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(
            f"{what} must be text, not {quoted(value)}", hint="give it as `receipts` or `status` shows it"
        )
    return value


def require_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} must be True or False, not {quoted(value)}", hint="give one of them")


def require_names(names: object) -> None:
    """What the plan of a run says of its model and of its data."""
    if not isinstance(names, tuple | list) or len(names) != _PAIR or not all(map(_is_settings, names)):
        raise InvalidInput(
            f"{quoted(names)} cannot be the names of a model and its data",
            hint="give two mappings of names to texts and numbers, or leave them out",
        )


def _is_settings(settings: object) -> bool:
    return isinstance(settings, Mapping) and all(
        isinstance(name, str) and _is_setting(value) for name, value in settings.items()
    )


def _is_setting(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int | float) and abs(value) < math.inf)


def rounds_to_sample(given: int | None) -> int | None:
    """Return how many rounds of a receipt to replay; None for all."""
    most = whole_or_none(given, "sample_rounds")
    if most is not None and most < 0:
        raise InvalidInput(
            f"{shown(most)} rounds cannot be replayed", hint="give sample_rounds from 0, or leave it out"
        )
    return most


def requests_of(requests: Iterable[Request] | Request | None, client: Any, sample: Any) -> list[Request]:
    """Return the given requests, each once; or the one for a client, or for a sample of a client."""
    if (requests is None) == (client is None) or (sample is not None and client is None):
        raise InvalidInput("name exactly one thing to forget", hint="give a client, a client and a sample, or a batch")
    if requests is None:
        return [Request(client, sample)]
    if isinstance(requests, Request):
        return [requests]
    if not isinstance(requests, Iterable):
        raise InvalidInput(
            f"{quoted(requests)} is not a request", hint="give fedforget.Request(client, sample), or several"
        )
    try:
        chosen = list(requests)
    except TypeError as error:  # of a tensor without dimensions
        raise InvalidInput(f"{quoted(requests)} is not a request", hint="give fedforget.Request(...)") from error
    for request in chosen:
        if not isinstance(request, Request):
            raise InvalidInput(f"{quoted(request)} is not a request", hint="give fedforget.Request(client, sample)")
    return list(dict.fromkeys(chosen))
