"""Which samples a built-in model takes: the shape of the features, and the labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from fedforget.errors import InvalidInput

_VGG_SHAPE = (3, 32, 32)


def require_fits(settings: Mapping[str, Any], x: NDArray[Any], y: NDArray[Any], of: str) -> None:
    """Raise InvalidInput unless a built-in model can be trained on a sample. ``of`` names the sample.

    The server reads the error, so it tells no value of the sample.
    """
    name, shape = settings.get("name"), x.shape
    wanted = _expected(settings)
    size = int(settings["inputs"]) if name in ("flat_mlp", "linear") else None
    fits = math.prod(shape) == size if size is not None else wanted is None or shape == wanted
    if name == "lstm":
        fits = len(shape) == 1
    if not fits:
        raise InvalidInput(
            f"{of} has features of shape {shape}, and the model {name} of this run takes "
            f"{f'{size} numbers' if size is not None else 'a row of letters' if name == 'lstm' else wanted}",
            hint="repair the function that returns the samples, then `fedforget client init --again` and send the new "
            "enrolment file: nothing was trained yet",
        )
    classes = int(settings.get("classes") or settings.get("letters") or 0)
    if y.shape != () or y.dtype.kind not in "iu" or not 0 <= int(y) < classes:
        raise InvalidInput(
            f"{of} has a label of type {y.dtype} and shape {y.shape} that is no class: the model {name} of this run "
            f"knows the classes 0 to {classes - 1}",
            hint="repair the function that returns the samples, then `fedforget client init --again` and send the new "
            "enrolment file: nothing was trained yet",
        )


def _expected(settings: Mapping[str, Any]) -> tuple[int, ...] | None:
    name = settings.get("name")
    if name == "mlp":
        return (int(settings["inputs"]),)
    if name == "cnn":
        return (int(settings["channels"]), int(settings["side"]), int(settings["side"]))
    return _VGG_SHAPE if name == "vgg16" else None
