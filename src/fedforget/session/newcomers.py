"""Which samples of the run's data are not in the run yet and can join it."""

from __future__ import annotations

from collections.abc import Iterable

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, id_block
from fedforget.algorithm.ports import Newcomer
from fedforget.algorithm.seeds import SeedSource
from fedforget.data.federated import FederatedData
from fedforget.errors import InvalidInput, UnknownTarget, shown
from fedforget.store.run_directory import OpenRun


def newcomers_of(
    run: OpenRun, data: FederatedData, targets: Iterable[Request], *, returning: bool, seeds: SeedSource
) -> tuple[Newcomer, ...]:
    """What of the targets is not in the run: samples, or whole clients. Erased ones come back with ``returning``."""
    found = []
    for client, samples in _named_samples(data, targets).items():
        present = run.clients.samples(client) if client in run.server.roster else ()
        new = [sample for sample in samples if sample not in present]
        for sample in new:
            if not returning and run.record.book.id_of(Request(client, sample)) is not None:
                raise InvalidInput(
                    f"sample {shown(sample)} of client {shown(client)} was erased from {run.path}",
                    hint="to add it again, give --returning (returning=True in Python)",
                )
        if new:
            seed = None if present else seeds.client(client)
            found.append(Newcomer(client, seed, tuple(data.contents(client, new))))
    return tuple(found)


def _named_samples(data: FederatedData, targets: Iterable[Request]) -> dict[Id, list[Id]]:
    """The samples that the targets name, by client."""
    wanted: dict[Id, dict[Id, None]] = {}
    for target in targets:
        samples: Iterable[Id] = data[target.client].ids if target.client in data.roster else ()
        if target.sample is not None and target.sample in samples:
            samples = (target.sample,)
        elif target.sample is not None or target.client not in data.roster:
            raise UnknownTarget(f"the data have no {target}", hint="only what the run's data hold can be added")
        wanted.setdefault(target.client, {}).update(dict.fromkeys(samples))
    return {client: list(wanted[client]) for client in sorted(wanted, key=id_block)}
