"""Rebuild lost files that can be derived from the others: models by replay, the public key from the private one.

A model is written only if its digest is the one recorded for its round, so it is byte for byte the lost file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fedforget.algorithm.learn import Progress, learn, reporting
from fedforget.algorithm.ports import Federation
from fedforget.disk.door import Door
from fedforget.disk.files import digest, write_durably
from fedforget.errors import RunDamaged
from fedforget.evidence.receipts import receipt_key
from fedforget.evidence.replay import Replayer, clients_of, memory_from, replaying_server
from fedforget.store.model_files import encode
from fedforget.store.names import PRIVATE_KEY, PUBLIC_KEY
from fedforget.store.run_directory import OpenRun


@dataclass(slots=True)
class Rebuilt:
    """The files that were rebuilt, and those that could not be."""

    rebuilt: list[str] = field(default_factory=list)
    not_rebuilt: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def rebuild_files(run: OpenRun, engine: Replayer, on_round: Progress | None = None) -> Rebuilt:
    """Rebuild the files of an open run whose lock the caller holds.

    Also works while a request is unfinished: the current rounds are replayed as in any run.
    """
    found = Rebuilt()
    with engine.computing():
        _rebuild_models(run, engine, found, on_round)
    _rebuild_public_key(run, found)
    return found


def _rebuild_models(run: OpenRun, engine: Replayer, found: Rebuilt, on_round: Progress | None) -> None:
    lost = [round_ for round_ in run.server.kept() if not _is_whole(run, round_)]
    if not lost:
        return
    engine.check_data(run)
    clients = clients_of(run)
    with engine.federation(clients, clients.sizes) as federation:
        for round_ in lost:
            problem = _rebuild_model(run, engine, federation, round_, on_round)
            if problem is None:
                found.rebuilt.append(f"the model of round {round_}")
            else:
                found.not_rebuilt.append(problem)


def _rebuild_model(
    run: OpenRun, engine: Replayer, federation: Federation, round_: int, on_round: Progress | None
) -> str | None:
    """Rebuild one model; return why it cannot be rebuilt, or None."""
    kept = run.server.kept()
    start = max((earlier for earlier in kept if earlier < round_ and _is_whole(run, earlier)), default=None)
    if start is None:
        return f"the model of round {round_} cannot be rebuilt: no model of an earlier round is whole"
    memory = memory_from(run, start)
    learn(replaying_server(run, memory, federation, engine.aggregator()), round_, reporting(on_round))
    data = encode(memory.load(round_))
    if digest(data) != kept[round_]:
        return f"the model of round {round_} is not rebuilt: replaying from round {start} gives another one"
    write_durably(run.server.models.path(kept[round_]), data)
    return None


def _is_whole(run: OpenRun, round_: int) -> bool:
    try:
        run.server.load(round_)
    except RunDamaged:
        return False
    return True


def _rebuild_public_key(run: OpenRun, found: Rebuilt) -> None:
    """Rebuild the public half if it is missing or not a key. A key of another pair is left for the operator."""
    public = run.path / PUBLIC_KEY
    if Door(run.path).status(PRIVATE_KEY) is None or receipt_key.is_public_key(run.path):
        return
    try:
        receipt_key.signing_key(run.path, run.record.receipt_key)
    except RunDamaged as error:
        found.not_rebuilt.append(f"{public} is not rebuilt: {error.message}")
        return
    found.rebuilt.append(f"the public half of {PRIVATE_KEY}")
