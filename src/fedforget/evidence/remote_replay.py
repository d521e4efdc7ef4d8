"""Verification of a run whose clients are on other machines: each replays its own part of every round.

No machine has the data of all clients, nor the same processor as all of them. So each client computes its local rounds
again, where it computed them before, and says whether they fit what it noted. The server checks everything that is its
own: draws, sums, models, the record, and the digests of what clients hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from fedforget.algorithm.draws import PrfPriorities, draw_clients_with_replacement
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import Progress, Server, learn
from fedforget.algorithm.ports import Aggregator, Federation
from fedforget.errors import FedForgetError
from fedforget.evidence.replay import Verification, check_models, comparing, memory_from
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.federation.replaying import ReplayFederation
from fedforget.federation.standing import Standing, standing_in
from fedforget.store import record_audit
from fedforget.store.checks import server_seed_problem
from fedforget.store.run_directory import OpenRun


def rounds_of_clients(run: OpenRun) -> dict[Id, list[int]]:
    """Return the rounds that drew each client, derived from the server's seed."""
    found: dict[Id, list[int]] = {}
    priorities, slots = PrfPriorities(run.server.seed.value), run.file.plan.clients_per_round
    for round_ in range(1, run.server.rounds_done + 1):
        for client in set(draw_clients_with_replacement(priorities, run.server.roster, round_, slots)):
            found.setdefault(client, []).append(round_)
    return found


def verify_remote(
    run: OpenRun, federation: ReplayFederation, aggregate: Aggregator, on_round: Progress | None = None
) -> Verification:
    """Check what the server holds, compare what clients hold with it, and let them replay every round from round 0."""
    found = Verification(seeds_tainted=run.record.book.tainted)
    problem = record_audit.find_problem(run.record, run.server.seed_origin)
    if problem is not None:
        found.chain_ok = False
        found.problems.append(problem)
    check_models(run, found)
    _check_clients(run, federation.everyone(), found)
    if not (found.models_ok and found.data_ok and found.seeds_ok):
        found.bitwise_equal = False
        return found
    _replay(run, federation, aggregate, found, on_round)
    return found


def _check_clients(run: OpenRun, answers: Sequence[Parcel], found: Verification) -> None:
    """Compare seeds, samples and notes of all clients with what the server knows of them."""
    seed = server_seed_problem(run.server, run.file.server_commitment)
    known = {parcels.client_in(each): standing_in(each, parcels.client_in(each)) for each in answers}
    commitments, held = run.server.commitments(), run.remote.held.all()
    wrong = [] if seed is None else [seed]
    wrong += [
        f"client {client}: {problem}"
        for client, each in known.items()
        if client in commitments and (problem := each.seed_problem(commitments[client])) is not None
    ]
    found.seeds_ok = not wrong
    found.problems += wrong
    missing = [client for client in run.server.roster if client not in known]
    found.data_ok = not missing
    found.problems += [f"client {client} did not answer" for client in missing]
    for client in run.server.roster:
        if client in known and (known[client].root, known[client].notes) != held[client]:
            found.data_ok = False
            found.problems.append(f"client {client} holds other samples or notes than the server knows of")
    found.environments = len({_environment(each) for each in known.values() if each.environment})


def _environment(standing: Standing) -> str:
    return repr(sorted(standing.environment.items()))


def _replay(
    run: OpenRun,
    federation: ReplayFederation,
    aggregate: Aggregator,
    found: Verification,
    on_round: Progress | None,
) -> None:
    memory = memory_from(run, 0)
    server = Server(
        run.file.plan, PrfPriorities(run.server.seed.value), memory, cast(Federation, federation), aggregate
    )
    after = comparing(run, found, on_round, same_environment=True)
    try:
        learn(server, run.server.rounds_done, after)
    except FedForgetError as error:
        found.bitwise_equal = False
        found.problems.append(error.message)
        return
    found.draws_ok = memory.first_rounds() == run.server.first_rounds() and not federation.disagreements
    found.witnesses_ok = not federation.disagreements
    if memory.first_rounds() != run.server.first_rounds():
        found.problems.append("the stored first rounds are not those of the draws")
    found.problems += [
        f"what client {client} noted of round {round_} is not what its replay gives"
        for client, round_ in federation.disagreements
    ]
