"""The slots of the next round, drawn while workers train the present one.

Draws depend on the seed and the roster, never on a model. A draw made early is therefore the draw that the server would
make later, as long as the seed and the roster stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from fedforget.algorithm.draws import Priorities, draw_clients_with_replacement
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server


@dataclass(frozen=True, slots=True)
class _SlotDraw:
    """The arguments that determine a draw of slots."""

    priorities: Priorities
    roster: IdSet
    round: int
    slots: int

    def drawn(self) -> list[Id]:
        return draw_clients_with_replacement(self.priorities, self.roster, self.round, self.slots)

    def is_same(self, other: _SlotDraw) -> bool:
        """Return whether both draws are surely equal. Compares seed and roster by identity, which is cheap."""
        return (
            self.priorities is other.priorities
            and self.roster is other.roster
            and (self.round, self.slots) == (other.round, other.slots)
        )


class SlotsAhead:
    """Draws slots when the server asks for them, or one round ahead while the federation is idle."""

    def __init__(self) -> None:
        self._asked: _SlotDraw | None = None  # the last draw that the server asked for
        self._ahead: tuple[_SlotDraw, list[Id]] | None = None  # the expected next draw, and its slots

    def __call__(self, priorities: Priorities, roster: IdSet, round_: int, slots: int) -> list[Id]:
        asked, ahead = _SlotDraw(priorities, roster, round_, slots), self._ahead
        self._asked, self._ahead = asked, None
        return ahead[1] if ahead is not None and ahead[0].is_same(asked) else asked.drawn()

    def after(self, round_: int) -> list[Id]:
        """Draw the slots of the next round; none if ``round_`` is not the round that the server drew last."""
        if self._asked is None or self._asked.round != round_:
            return []
        following = replace(self._asked, round=round_ + 1)
        self._ahead = following, following.drawn()
        return self._ahead[1]


@runtime_checkable
class DrawsAhead(Protocol):
    """A federation that draws the clients' next mini-batches while it waits for workers."""

    def draw_ahead(self, slots: SlotsAhead) -> None:
        """Use ``slots`` for the clients of each next round."""


def drawing_ahead(server: Server) -> Server:
    """Return the server with a federation that draws the next round while it waits, if it can."""
    if not isinstance(server.federation, DrawsAhead):
        return server
    slots = SlotsAhead()
    server.federation.draw_ahead(slots)
    return replace(server, draw_slots=slots)
