"""Rows of a dataset where they are stored: images as bytes, text as one array. A batch is converted as it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Places = NDArray[np.intp]

_WHITE = np.float32(255)  # a constant of the format: a statistic of the data would leak erased samples
_COLOUR = 4  # dimensions of a stack of images with channels
WINDOW = 80  # characters in, one character out: LEAF's and the paper's
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
UNKNOWN = 0  # the code of every character that is not in LETTERS


class Rows(Protocol):
    """Samples by their place in a dataset."""

    kind: str  # names the conversion, in the digest of a sample's content

    def __len__(self) -> int:
        """The number of places."""
        ...

    def batch(self, places: Places) -> tuple[Array, Array]:
        """Return the features and targets at these places, as a model takes them."""
        ...

    def stored(self, places: Places) -> Sequence[bytes]:
        """Return each sample as it is stored: features and target."""
        ...


class ImageRows:
    """Images (n, height, width) or (n, height, width, channels) of bytes, with their labels.

    A batch has float32 in [0, 1], channels first; with ``mean`` and ``spread`` given per channel, (x - mean) / spread.
    These are constants of the dataset's entry, never computed from images.
    """

    def __init__(self, images: Array, labels: Array, mean: Sequence[float] = (), spread: Sequence[float] = ()) -> None:
        self.images, self.labels = images, labels
        self._mean = np.asarray(mean, np.float32).reshape(-1, 1, 1)
        self._spread = np.asarray(spread, np.float32).reshape(-1, 1, 1)
        constants = f" -{','.join(map(str, mean))} /{','.join(map(str, spread))}" if len(mean) else ""
        self.kind = f"image{'x'.join(map(str, images.shape[1:]))}{constants}"

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, places: Places) -> tuple[Array, Array]:
        found = self.images[places].astype(np.float32) / _WHITE
        found = found.transpose(0, 3, 1, 2) if found.ndim == _COLOUR else found[:, None]
        if len(self._mean):
            found = (found - self._mean) / self._spread
        return np.ascontiguousarray(found), self.labels[places].astype(np.int64)

    def stored(self, places: Places) -> Sequence[bytes]:
        labels = self.labels[places].tolist()
        return [self.images[place].tobytes() + bytes([label]) for place, label in zip(places, labels, strict=True)]


class TextWindows:
    """Windows of one long text of character codes: the window at a place is the 80 codes from there, and the next."""

    kind = f"text{WINDOW}"

    def __init__(self, text: NDArray[np.uint8]) -> None:
        self.text = text

    def __len__(self) -> int:
        return max(0, len(self.text) - WINDOW)

    def batch(self, places: Places) -> tuple[Array, Array]:
        windows = self.text[places[:, None] + np.arange(WINDOW + 1)]
        return np.ascontiguousarray(windows[:, :WINDOW]), windows[:, WINDOW].astype(np.int64)

    def stored(self, places: Places) -> Sequence[bytes]:
        text = self.text.data
        return [bytes(text[place : place + WINDOW + 1]) for place in places.tolist()]


_CODES = bytes(max(LETTERS.find(chr(code)), UNKNOWN) for code in range(256))


def codes_of(text: str) -> NDArray[np.uint8]:
    """Return the position of each character in LETTERS."""
    return np.frombuffer(text.encode("latin-1", "replace").translate(_CODES), np.uint8)
