"""Checks of the arguments that a caller gives. They come before anything is written or trained."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Mapping
from numbers import Real
from typing import SupportsIndex

from fedforget.errors import InvalidInput, quoted

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
