"""Verification by replay: derive all draws again, retrain from round 0 on the remaining data, compare every byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import OnRound, Progress, Server, learn, reporting
from fedforget.algorithm.memory import ServerInMemory
from fedforget.algorithm.plan import KEEP_ENDS, Plan
from fedforget.algorithm.ports import Aggregator, ClientMemory, Federation, Presence, State
from fedforget.data.federated import FederatedData
from fedforget.disk.files import digest
from fedforget.errors import DataChanged, RunDamaged
from fedforget.evidence.replayed_clients import ReplayedClients
from fedforget.federation.draw_ahead import drawing_ahead
from fedforget.requests.lifecycle import covered_by_guarantee
from fedforget.store import record_audit
from fedforget.store.books.tree import PARTS
from fedforget.store.checks import seed_problems
from fedforget.store.model_files import encode
from fedforget.store.run_directory import OpenRun
from fedforget.training.environment import arithmetic, numeric_environment

Reach = Callable[[ClientMemory, Callable[[], dict[Id, int]]], AbstractContextManager[Federation]]

TOLERANCE = 1e-3  # relative to the largest weight, if other hardware or libraries trained the run


@dataclass(slots=True)
class Verification:
    """The result of a verification, with every problem found."""

    bitwise_equal: bool = True
    models_ok: bool = True
    draws_ok: bool | None = None  # None: nothing was replayed
    data_ok: bool = True
    seeds_ok: bool = True
    chain_ok: bool = True
    within_tolerance: bool | None = None  # only if the environment differs and the bits were not equal
    witnesses_ok: bool | None = None  # None: nothing was replayed, or in another environment
    environments: int = 0  # how many different environments trained the rounds
    seeds_tainted: bool = False  # a request may depend on the draws: equality in law is not claimed
    rounds_replayed: int = 0
    models_compared: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        equal = self.bitwise_equal or self.within_tolerance is True
        whole = self.models_ok and self.data_ok and self.seeds_ok and self.chain_ok
        return equal and whole and self.draws_ok is True and self.witnesses_ok is not False

    @property
    def guarantee_covers(self) -> str | None:
        """What the guarantees of this run make equal: ``bytes``, or only the ``draws`` if environments are mixed."""
        return covered_by_guarantee(self.environments > 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {"ok": self.ok, "guarantee_covers": self.guarantee_covers, **asdict(self)}


class Replayer(Protocol):
    """Trains a run's clients again. ``session.engine.Engine`` implements it."""

    @property
    def data(self) -> FederatedData: ...

    def federation(
        self, clients: ClientMemory, sizes: Callable[[], dict[Id, int]]
    ) -> AbstractContextManager[Federation]: ...

    def aggregator(self) -> Aggregator: ...

    def computing(self) -> AbstractContextManager[None]:
        """Fix the modes and random streams for the block."""

    def check_data(self, run: OpenRun) -> None: ...


def verify(
    run: OpenRun, engine: Replayer, on_round: Progress | None = None, on_book: Progress | None = None
) -> Verification:
    """Check seeds, chain, data and model files, then replay the run and compare.

    ``on_book``: called with the number of the clients' files that are checked, of ``PARTS``.
    """
    with engine.computing():
        return _verify(run, engine, on_round, on_book)


def _verify(run: OpenRun, engine: Replayer, on_round: Progress | None, on_book: Progress | None) -> Verification:
    here, reach = numeric_environment(), engine.federation
    trained = run.record.environments.of_rounds(run.server.rounds_done)
    kinds = {arithmetic(each.environment) for each in trained}
    found = Verification(seeds_tainted=run.record.book.tainted, environments=len(kinds))
    same_environment = kinds <= {arithmetic(here)}
    if len(kinds) > 1:
        found.problems.append(
            f"{', '.join(map(str, trained))} were trained in different environments: no single one reproduces the bytes"
        )
    with reach(run.clients, run.clients.sizes) as federation:
        _check_seeds(run, federation.who_are_you(), found)
    problem = record_audit.find_problem(run.record, run.server.seed_origin)
    if problem is not None:
        found.chain_ok = False
        found.problems.append(problem)
    _check_data(run, engine.data, found, on_book)
    check_models(run, found)
    if found.data_ok and found.models_ok:
        _replay(run, reach, engine.aggregator(), found, same_environment, on_round)
    else:
        found.bitwise_equal = False
    return found


def _check_seeds(run: OpenRun, present: Sequence[Presence], found: Verification) -> None:
    answers = {answer.client: answer.commitment for answer in present}
    problems = list(seed_problems(run.server, run.clients, run.file.server_commitment, answers))
    found.seeds_ok = not problems
    found.problems += problems


def _check_data(run: OpenRun, data: FederatedData, found: Verification, on_book: Progress | None) -> None:
    """Compare each file of books with its roots, and its contents with the data."""
    for number in range(PARTS):
        _note_problem(found, partial(run.clients.books.require_tree, number))
        if found.data_ok:
            _note_problem(found, partial(_compare_contents, run, data, number))
        if on_book is not None:
            on_book(number + 1)


def _compare_contents(run: OpenRun, data: FederatedData, number: int) -> None:
    for clients, contents in run.clients.books.groups(number):
        data.require_all_unchanged(clients, contents)


def _note_problem(found: Verification, check: Callable[[], None]) -> None:
    try:
        check()
    except (DataChanged, RunDamaged) as error:
        found.data_ok = False
        found.problems.append(error.message)


def check_models(run: OpenRun, found: Verification) -> None:
    for round_ in run.server.kept():
        try:
            run.server.load(round_)
        except RunDamaged as error:
            found.models_ok = False
            found.problems.append(error.message)


def _replay(
    run: OpenRun,
    reach: Reach,
    aggregate: Aggregator,
    found: Verification,
    same_environment: bool,
    on_round: Progress | None,
) -> None:
    memory, clients, noted = memory_from(run, 0), clients_of(run), run.clients.uses
    with reach(clients, clients.sizes) as federation:
        learn(
            replaying_server(run, memory, federation, aggregate),
            run.server.rounds_done,
            comparing(run, found, on_round, same_environment=same_environment),
        )
    same_draws = memory.first_rounds() == run.server.first_rounds()
    same_draws = same_draws and clients.all_first_steps() == noted.all_first_steps()
    same_draws = same_draws and _notes_are_sound(run)
    found.draws_ok = same_draws
    if not same_draws:
        found.problems.append("the stored first uses are not those of the draws")
    same_witnesses = clients.all_witnesses() == noted.all_witnesses()
    if same_environment or same_witnesses:
        found.witnesses_ok = same_witnesses
        if not same_witnesses:
            found.problems.append("the clients' witnesses are not those of their first steps")


def _notes_are_sound(run: OpenRun) -> bool:
    """Return whether the notes have the stored digest, and are about clients of the roster only."""
    try:
        run.clients.uses.require_digest()
        run.clients.uses.require_clients(run.server.roster)
    except RunDamaged:
        return False
    return True


def comparing(run: OpenRun, found: Verification, on_round: Progress | None, *, same_environment: bool) -> OnRound:
    """Return a callback that compares each replayed state with the stored one, and adds differences to ``found``."""
    kept = run.server.kept()

    def compare(round_: int, state: State) -> None:
        found.rounds_replayed += 1
        if round_ not in kept:
            return
        found.models_compared += 1
        if digest(encode(state)) == kept[round_]:
            return
        if found.bitwise_equal:
            found.problems.append(f"the model of round {round_} differs from its replay")
        found.bitwise_equal = False
        if not same_environment:
            found.within_tolerance = found.within_tolerance is not False and close(state, run.server.load(round_))

    def after(round_: int, state: State) -> None:
        compare(round_, state)
        if on_round is not None:
            on_round(round_)

    return after


@dataclass(slots=True)
class ReplayedRounds:
    """The result of replaying single rounds, with every difference found."""

    rounds: int = 0
    bitwise_equal: bool | None = None  # None: nothing was replayed
    within_tolerance: bool | None = None  # only if the environment differs and the bits were not equal
    problems: list[str] = field(default_factory=list)


def replay_rounds(
    run: OpenRun, engine: Replayer, rounds: Sequence[int], on_round: Progress | None = None
) -> ReplayedRounds:
    """Replay single rounds, each from the kept state before it to the kept state at or after it.

    In another environment than that of the rounds, states that are not bitwise equal are compared within ``TOLERANCE``.
    """
    kept, found, known = run.server.kept(), ReplayedRounds(), 0
    for wanted in sorted(set(rounds)):
        if wanted <= known:
            continue
        start, stop = run.server.kept_at_or_before(wanted - 1), min(r for r in kept if r >= wanted)
        memory, clients = memory_from(run, start), clients_of(run)
        with engine.federation(clients, clients.sizes) as federation:
            learn(replaying_server(run, memory, federation, engine.aggregator()), stop, reporting(on_round))
        equal = digest(encode(memory.load(stop))) == kept[stop]
        found.rounds, known = found.rounds + stop - start, stop
        found.bitwise_equal = equal and found.bitwise_equal is not False
        if equal:
            continue
        found.problems.append(f"the model of round {stop} is not what replaying from round {start} gives")
        if not _trained_here(run, start, stop):
            near = close(memory.load(stop), run.server.load(stop))
            found.within_tolerance = near and found.within_tolerance is not False
        else:
            found.within_tolerance = False
    return found


def _trained_here(run: OpenRun, start: int, stop: int) -> bool:
    """Return whether this environment trained the rounds after ``start`` up to ``stop``."""
    here = arithmetic(numeric_environment())
    trained = run.record.environments.of_rounds(stop)
    return all(arithmetic(each.environment) == here for each in trained if each.last_round > start)


def replaying_server(run: OpenRun, memory: ServerInMemory, federation: Federation, aggregate: Aggregator) -> Server:
    """Return a server that derives the draws of a run and commits to ``memory``."""
    return drawing_ahead(Server(run.file.plan, PrfPriorities(run.server.seed.value), memory, federation, aggregate))


def memory_from(run: OpenRun, start: int) -> ServerInMemory:
    """Return a memory that begins with the state of a run after round ``start`` and keeps the latest one."""
    plan = run.file.plan
    frugal = Plan(plan.clients_per_round, plan.batch_size, plan.local_steps, plan.rounds, keep=KEEP_ENDS)
    return ServerInMemory(frugal, run.server.roster, run.server.load(start), start)


def clients_of(run: OpenRun) -> ReplayedClients:
    """Return the current clients of a run in memory, without first uses and witnesses."""
    return ReplayedClients(run.clients)


def close(one: State, other: State) -> bool:
    """Return whether two states agree within ``TOLERANCE`` of their largest weight."""
    for name, tensor in one.model.items():
        scale = max(float(np.abs(tensor).max(initial=0.0)), 1e-12)
        if float(np.abs(tensor - other.model[name]).max(initial=0.0)) > TOLERANCE * scale:
            return False
    return True
