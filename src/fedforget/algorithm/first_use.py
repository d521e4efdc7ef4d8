"""The first use of every id: the paper's dictionary that decides in O(1) whether to recompute (Section 5.3).

For a sample it is the earliest step, for a client the earliest round. First uses are part of the state: learning notes
them, a rewind drops them, and the seeds determine them at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.ids import Id, IdSet

NEVER = 0


class FirstUse:
    """When each id of a set was first used, counted from 1; ``NEVER`` if it was not."""

    def __init__(self, ids: IdSet, known: Mapping[Id, int] | None = None) -> None:
        self.ids = ids
        self._when: NDArray[np.int64] = np.full(len(ids), NEVER, np.int64)
        if known:
            self._when[ids.places_of(list(known))] = list(known.values())

    def note(self, positions: NDArray[np.intp], when: int) -> list[Id]:
        """Note a use. Return the ids for which it was the first."""
        fresh = positions[self._when[positions] == NEVER]
        self._when[fresh] = when
        return [self.ids.at(place) for place in fresh.tolist()]

    def are_known(self, positions: NDArray[np.intp]) -> bool:
        """Return whether all of these were used before."""
        return bool(self._when[positions].all())

    def of(self, identifier: Id) -> int | None:
        return int(self.look_up([identifier])[0]) or None

    def look_up(self, ids: Sequence[Id]) -> NDArray[np.int64]:
        """Return the first use of each id, ``NEVER`` where there was none."""
        return self._when[self.ids.places_of(ids)]

    def rewind(self, last: int) -> None:
        """Drop every use after ``last``."""
        self._when[self._when > last] = NEVER

    def without(self, ids: Collection[Id], left: IdSet | None = None) -> FirstUse:
        """Return the first uses of the remaining ids. ``left``: these ids, if the caller has them already."""
        left = self.ids.without(ids) if left is None else left
        gone = [place for identifier in set(ids) if (place := self.ids.place_of(identifier)) is not None]
        made = FirstUse(left)
        made._when = np.delete(self._when, gone)
        return made

    def known(self) -> dict[Id, int]:
        """Return the first use of every id that was used."""
        used = np.flatnonzero(self._when)
        return {self.ids.at(place): int(self._when[place]) for place in used.tolist()}
