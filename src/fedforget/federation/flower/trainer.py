"""A ``RoundTrainer`` whose local rounds are computed by the nodes of a Flower simulation.

The server process derives draws and stores the clients' notes, as with the pool. A simulated node keeps nothing: it
computes the local round of any client, so it does not matter which node is asked, in which order nodes answer, or
whether a message comes twice. The results are those of one process, bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fedforget.algorithm.plan import LocalOptimizer
from fedforget.algorithm.ports import LocalRound, Trained
from fedforget.errors import EnvironmentDiffers, FedForgetError, shown
from fedforget.federation import local_rounds
from fedforget.federation.local_rounds import ContentsOf
from fedforget.federation.parcels import Parcel, error_in
from fedforget.federation.traffic import Traffic

MOST_NODES = 32  # that one round is dealt out over
Answers = Generator[tuple[int, Parcel], None, None]


class Nodes(Protocol):
    """Nodes that answer parcels, each parcel by any node."""

    def exchange(self, asked: Sequence[Parcel], idle: Iterator[None]) -> Answers:
        """Yield each answer with the place of its question, in any order.

        A question that no node answers is answered by an error. ``idle`` is advanced while nothing has come.
        """

    def close(self) -> None:
        """Stop the processes of the nodes, if they were started here."""


class FlowerTrainer:
    """Computes local rounds on Flower's nodes.

    ``problem`` tells a node how to build the module and find the data. ``contents_of``: content digests, which a node
    compares with the samples that it reads. ``arithmetic``: a digest of what can change the bits of a result; a node
    where it differs is refused. ``keep_nodes``: others use the nodes too, so that they stay when this trainer closes.
    """

    def __init__(
        self,
        nodes: Nodes,
        local: LocalOptimizer,
        problem: Mapping[str, Any],
        *,
        contents_of: ContentsOf | None = None,
        arithmetic: str = "",
        traffic: Traffic | None = None,
        keep_nodes: bool = False,
    ) -> None:
        self._nodes, self._local, self._problem = nodes, local, problem
        self._contents_of, self._arithmetic = contents_of, arithmetic
        self._traffic, self._keep_nodes = traffic or Traffic(), keep_nodes

    def train(self, works: Sequence[LocalRound], idle: Iterator[None]) -> list[Trained]:
        if not works:
            return []
        asked = [local_rounds.asked(work, self._local, self._problem, self._contents_of) for work in works]
        for parcel in asked:
            self._traffic.sent(parcel)
        found: dict[int, Trained] = {}
        failed: dict[int, FedForgetError] = {}
        with contextlib.closing(self._nodes.exchange(asked, idle)) as answers:
            for place, answer in answers:
                self._traffic.received(answer)
                try:
                    found[place] = self._trained(answer, works[place])
                except FedForgetError as error:
                    failed[place] = error
                if _is_decided(len(works), found, failed):
                    break
        if failed:
            raise failed[min(failed)]
        return [found[place] for place in range(len(works))]

    def samples_change(self) -> None:
        """Do nothing: nodes cache no samples."""

    def close(self) -> None:
        if not self._keep_nodes:
            self._nodes.close()

    def _trained(self, answer: Parcel, work: LocalRound) -> Trained:
        error = error_in(answer, work.client)
        if error is not None:
            raise error
        if answer.body.get("arithmetic") != self._arithmetic:
            raise EnvironmentDiffers(
                f"the node that trained client {shown(work.client)} in round {work.round} computes in another "
                "environment than this one",
                hint="start Flower with the same Python environment and the same variables as this command",
            )
        return local_rounds.trained_in(answer, work.client)


def _is_decided(works: int, found: Mapping[int, Trained], failed: Mapping[int, FedForgetError]) -> bool:
    """Return whether the outcome is known: all results, or the first failure in the order of tasks."""
    return all(place in found for place in range(min(failed, default=works)))
