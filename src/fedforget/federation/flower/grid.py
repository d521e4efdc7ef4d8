"""The side of the server in Flower: a wire over its post.

Flower names nodes at random, so clients are found by asking. Replies come in any order, twice, or not at all; they are
matched by the message they answer, and a message without an answer is sent again until the client's patience is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from fedforget.algorithm.ids import Id
from fedforget.errors import ClientUnreachable, FedForgetError, RunBusy, TrainingFailed, shown
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.federation.post import Letter, Post

log = logging.getLogger("fedforget")

_RAISED, _APP_ERRORS = 2, (1, 6, 7)  # Flower's error codes: the app raised; it could not be loaded or run


@dataclass(slots=True)
class _Waiting:
    """A parcel on its way: when its client last showed a sign of life, and the message that carries it now."""

    client: Id
    parcel: Parcel
    since: float
    node: int | None = None
    message: str = ""


class GridWire:
    """A ``Wire`` over Flower's post.

    ``nodes``: the node of each client, as far as it is known; the caller may persist it. ``patience``: seconds that a
    client may stay silent. ``poll``: seconds between two looks for replies. ``introduction``: seconds that a node has
    to say which client it answers for; it is asked again while a client is missing. ``client_of``: which client an
    answer proves to come from, given what was asked.
    """

    def __init__(
        self,
        post: Post,
        nodes: MutableMapping[Id, int],
        *,
        patience: float = 600.0,
        poll: float = 0.1,
        introduction: float = 30.0,
        client_of: Callable[[Parcel, Parcel | None], Id | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._post, self.nodes = post, nodes
        self._patience, self._poll, self._introduction = patience, poll, introduction
        self._clock, self._wait = clock, wait
        self._client_of = client_of or (lambda _, answer: _client_in(answer))

    def close(self) -> None:
        self._post.close()

    def everyone(self, asked: Parcel) -> list[Parcel]:
        nodes = self._post.nodes()
        answers = self._ask_nodes(asked, nodes)
        self._know(asked, answers)
        return [answer for answer in answers.values() if answer is not None]

    def _know(self, asked: Parcel, answers: Mapping[int, Parcel | None]) -> None:
        for node, answer in answers.items():
            client = self._client_of(asked, answer)
            if client is not None:
                self.nodes[client] = node

    def exchange(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        now = self._clock()
        waiting = {place: _Waiting(client, parcel, now) for place, (client, parcel) in enumerate(asked)}
        found: dict[int, Parcel | FedForgetError] = {}
        while waiting:
            self._find_nodes([each for each in waiting.values() if not each.message])
            self._send([each for each in waiting.values() if not each.message and each.node is not None])
            self._receive(waiting, found)
            for place in [place for place, each in waiting.items() if self._clock() - each.since >= self._patience]:
                found[place] = _unreachable(waiting.pop(place).client, self._patience)
            if waiting:
                self._wait(self._poll)
        return [found[place] for place in range(len(asked))]

    def _find_nodes(self, lost: Sequence[_Waiting]) -> None:
        """Ask the nodes that no client is known to have who they are."""
        for each in lost:
            each.node = self.nodes.get(each.client)
        missing = [each for each in lost if each.node is None]
        if not missing:
            return
        taken = set(self.nodes.values())
        unknown = [node for node in self._post.nodes() if node not in taken]
        asked = Parcel({**missing[0].parcel.body, "kind": parcels.PRESENCE, "client": None})
        self._know(asked, self._ask_nodes(asked, unknown))
        for each in missing:
            each.node = self.nodes.get(each.client)

    def _ask_nodes(self, asked: Parcel, nodes: Sequence[int]) -> dict[int, Parcel | None]:
        """Ask nodes who they are. Only nodes that answer while others still do are in the result."""
        sent = dict(zip(self._post.push([(asked, node) for node in nodes]), nodes, strict=True)) if nodes else {}
        found: dict[int, Parcel | None] = {}
        since = self._clock()
        while sent:
            letters = self._post.pull(list(sent))
            for letter in letters:
                node = sent.pop(letter.message, None)
                if node is not None and letter.error is None:
                    found[node] = letter.answer
            since = self._clock() if letters else since
            if not sent or self._clock() - since >= self._introduction:
                break
            self._wait(self._poll)
        return found

    def _send(self, ready: Sequence[_Waiting]) -> None:
        if not ready:
            return
        sent = self._post.push([(each.parcel, each.node or 0) for each in ready])
        for each, identifier in zip(ready, sent, strict=True):
            each.message = identifier

    def _receive(self, waiting: dict[int, _Waiting], found: dict[int, Parcel | FedForgetError]) -> None:
        sent = {each.message: place for place, each in waiting.items() if each.message}
        for letter in self._post.pull(list(sent)) if sent else ():
            place = sent.pop(letter.message, None)
            if place is None:
                continue  # an answer that came twice
            each = waiting[place]
            if letter.error is None and not _is_busy(letter):
                found[place] = letter.answer or parcels.broken(each.client, "an answer that cannot be read")
                del waiting[place]
            elif letter.error == _RAISED or letter.error in _APP_ERRORS:
                found[place] = _app_failed(each.client, letter.reason)
                del waiting[place]
            else:  # the node or its process has gone, or the message: ask again, of the node that is there by then
                log.warning("client %s did not answer (Flower's error %s)", shown(each.client), letter.error)
                if letter.error is not None:
                    self.nodes.pop(each.client, None)
                each.node, each.message = None, ""


def _is_busy(letter: Letter) -> bool:
    """Return whether another process holds the client's state directory, for instance one that was left behind."""
    error = {} if letter.answer is None else letter.answer.body.get("error")
    return isinstance(error, dict) and error.get("code") == RunBusy.code


def _client_in(answer: Parcel | None) -> Id | None:
    """Return which client a node answers for, also if its data have left the run; None if it is none of this run."""
    try:
        return None if answer is None else parcels.client_in(answer)
    except FedForgetError:
        return None


def _app_failed(client: Id, reason: str | None) -> TrainingFailed:
    return TrainingFailed(
        f"client {shown(client)} failed: its ClientApp raised {shown(reason or 'an error')}",
        hint="see the log of its node, and give the same command again",
    )


def _unreachable(client: Id, patience: float) -> ClientUnreachable:
    return ClientUnreachable(
        f"client {shown(client)} has not answered for {patience:g} s",
        hint="start its node again, and give the same command again; or erase the client "
        "(a choice that depends on the draws: --basis model-informed)",
    )
