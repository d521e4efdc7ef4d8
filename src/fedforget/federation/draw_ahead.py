"""The slots of the next round, drawn while workers train the present one.

Draws depend on the seed and on the roster, never on a model. So a draw that is made early is the draw that the server
would make later, as long as the seed and the roster stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from fedforget.algorithm.draws import Priorities, draw_clients_with_replacement
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server


@dataclass(frozen=True, slots=True)
class _SlotDraw:
    """What a draw of slots depends on."""

    priorities: Priorities
    roster: IdSet
    round: int
    slots: int

    def drawn(self) -> list[Id]:
        return draw_clients_with_replacement(self.priorities, self.roster, self.round, self.slots)

    def is_same(self, other: _SlotDraw) -> bool:
        """Whether both draw the same, as far as a cheap look can tell: by identity of the seed and of the roster."""
        return (
            self.priorities is other.priorities
            and self.roster is other.roster
            and (self.round, self.slots) == (other.round, other.slots)
        )


class SlotsAhead:
    """Draws slots when the server asks for them, or one round before, when the federation is idle."""

    def __init__(self) -> None:
        self._asked: _SlotDraw | None = None  # what the server asked for last
        self._ahead: tuple[_SlotDraw, list[Id]] | None = None  # what it will ask for next, and the slots

    def __call__(self, priorities: Priorities, roster: IdSet, round_: int, slots: int) -> list[Id]:
        asked, ahead = _SlotDraw(priorities, roster, round_, slots), self._ahead
        self._asked, self._ahead = asked, None
        return ahead[1] if ahead is not None and ahead[0].is_same(asked) else asked.drawn()

    def after(self, round_: int) -> list[Id]:
        """The slots of the round after this one; none if this is not the round that the server drew last."""
        if self._asked is None or self._asked.round != round_:
            return []
        following = replace(self._asked, round=round_ + 1)
        self._ahead = following, following.drawn()
        return self._ahead[1]


@runtime_checkable
class DrawsAhead(Protocol):
    """A federation that draws the clients' next batches while it waits for workers."""

    def draw_ahead(self, slots: SlotsAhead) -> None:
        """From now on, ask ``slots`` for the clients of the next round."""


def drawing_ahead(server: Server) -> Server:
    """The same server. Its federation draws the next round while it waits, if it can."""
    if not isinstance(server.federation, DrawsAhead):
        return server
    slots = SlotsAhead()
    server.federation.draw_ahead(slots)
    return replace(server, draw_slots=slots)
