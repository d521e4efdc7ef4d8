"""``Run``: a federation on one machine that learns, forgets, verifies and exports."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedforget.algorithm.forget import Request, apply, decide
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.plan import Plan, goal_of
from fedforget.algorithm.ports import State
from fedforget.algorithm.seeds import SeedSource
from fedforget.algorithm.theory import ForgettingCost
from fedforget.data.federated import FederatedData
from fedforget.engine import INLINE, Engine, OnRound, Workforce, check_eval_every
from fedforget.environment import arithmetic, environment
from fedforget.errors import InvalidInput, PlanRefused
from fedforget.evidence.replay import Verification, verify
from fedforget.federation.pool import PATIENCE
from fedforget.overview import Status, export_run, status_of, withdrawn_error
from fedforget.store import run_directory
from fedforget.store.plan_file import PlanFile
from fedforget.store.record import Basis, Intent, Receipt, Stage, guarantee_of
from fedforget.store.run_directory import Birth, OpenRun
from fedforget.store.state_digest import state_digest
from fedforget.targets import preview, receipt_of, still_there
from fedforget.training.streams import one_thread, own_streams
from fedforget.training.weights import PristineBuffers, weights_of

if TYPE_CHECKING:
    from torch import Tensor, nn

OWN: Mapping[str, str | int | float] = {"name": "own"}


class Run:
    """A run directory together with the model and the data that belong to it.

    Opens the run at ``path``, or makes it if ``plan`` is given and there is none. ``data`` maps each client to a
    mapping of stable id → (x, y) or to a torch ``Dataset``; ``test`` is a pair (x, y) for the server; ``without``
    leaves data out. ``federation="pool"`` trains in ``workers`` processes (None: one per core), with the same results;
    a local round may take ``patience`` seconds there.
    """

    def __init__(
        self,
        path: str | Path,
        plan: Plan | None = None,
        *,
        model: nn.Module,
        data: FederatedData | Mapping[Any, Any],
        test: tuple[Any, Any] | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        seed: int | str | None = None,
        without: Iterable[Request] = (),
        names: tuple[Mapping[str, str | int | float], Mapping[str, str | int | float]] = (OWN, OWN),
        federation: str = INLINE,
        workers: int | None = None,
        patience: float = PATIENCE,
    ) -> None:
        workforce = Workforce(federation, workers, patience)
        self.path = Path(path)
        if plan is not None and not isinstance(plan, Plan):
            raise InvalidInput(f"a {type(plan).__name__} is not a plan", hint="give fedforget.Plan(...)")
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInput(f"{path} is a file", hint="give a directory for the run")
        self._module = model
        self._data = data if isinstance(data, FederatedData) else FederatedData(data, test)
        pristine = PristineBuffers(model)
        if buffers := pristine.digest():
            names = ({**names[0], "unstored_buffers": buffers}, names[1])
        if not run_directory.is_run(self.path):
            if plan is None:
                PlanFile.read(self.path)  # says that there is no run
                raise AssertionError
            self._create(plan, SeedSource(seed), list(without), names)
        elif plan is not None:
            self._require_same(plan, SeedSource(seed), list(without), names)
        file = PlanFile.read(self.path)
        if file.model.get("unstored_buffers", "") != pristine.digest():
            raise InvalidInput(
                "the model's non-persistent buffers are not what they were when the run began",
                hint="build the nn.Module afresh before opening the run: they are outside its state_dict",
            )
        self.plan = file.plan
        self._engine = Engine(self.plan, model, self._data, loss, pristine, workforce)

    def _create(self, plan: Plan, seeds: SeedSource, without: Sequence[Request], names: tuple[Any, Any]) -> None:
        members = self._data.members(without)
        if not members:
            raise PlanRefused("the federation has no clients", hint="give it at least one client with one sample")
        server_seed = seeds.server()
        birth = Birth(
            file=PlanFile(plan, *names, server_seed.commitment),
            server_seed=server_seed,
            seed_origin=seeds.origin,
            client_seeds={client: seeds.client(client) for client in members},
            contents=lambda client: self._data.contents(client, members[client]),
            initial=State(weights_of(self._module)),
        )
        run_directory.create(self.path, birth)

    def _require_same(self, plan: Plan, seeds: SeedSource, without: Sequence[Request], names: tuple[Any, Any]) -> None:
        """The same command again goes on; another plan, seed or roster would be another run."""
        here = PlanFile.read(self.path)
        differences = here.differences(PlanFile(plan, *names, b""))
        if seeds.origin == "given" and seeds.server().commitment != here.server_commitment:
            differences.append("it was made with another seed, or new seeds were drawn since")
        if differences:
            raise PlanRefused(
                f"{self.path} is a run with another plan: {'; '.join(differences)}",
                hint=f"go on with `fedforget train {self.path}`, or choose another --out",
            )
        with run_directory.reading(self.path, settled=False) as run:
            for request in without:
                if request.client in run.server.roster and (
                    request.sample is None or request.sample in run.clients.samples(request.client)
                ):
                    raise PlanRefused(
                        f"{self.path} was trained with {request}",
                        hint=f"use `fedforget forget {self.path}` instead of --without",
                    )

    # Learning and forgetting

    def train(
        self, until: int | None = None, on_round: OnRound | None = None, *, eval_every: int | None = None
    ) -> Status:
        """Learn up to round ``until`` (the plan's last if None), after finishing whatever was interrupted.

        ``eval_every``: also measure the models of every so many rounds, kept ones of earlier rounds among them.
        """
        goal = goal_of(self.plan.rounds, until)
        check_eval_every(eval_every)
        with self._at_work() as run:
            self._settle(run, on_round, eval_every)
            if not len(run.server.roster):
                raise withdrawn_error(self.path)
            if run.server.rounds_done < goal:
                self._engine.check_data(run, ())
                self._engine.learn(run, goal, on_round, eval_every)
                run.record.trained(run.server.rounds_done, environment())
            self._engine.measure(run, eval_every)
            return status_of(run)

    def forget(
        self,
        requests: Iterable[Request] | Request | None = None,
        *,
        client: Any = None,
        sample: Any = None,
        basis: str = Basis.UNKNOWN,
        new_seed: bool = False,
        on_round: OnRound | None = None,
        eval_every: int | None = None,
    ) -> list[Receipt]:
        """Forget a sample (``client`` and ``sample``), a client, or a batch of requests, all or nothing.

        Asking for what is gone already gives the receipt it went under.
        """
        wanted = [] if new_seed and requests is None and client is None else _wanted(requests, client, sample)
        if basis not in list(Basis):
            raise InvalidInput(f"unknown basis {basis!r}", hint=f"use one of: {', '.join(Basis)}")
        check_eval_every(eval_every)
        with self._at_work() as run:
            self._remove_accepted(run)  # a recomputation that was interrupted absorbs the new requests
            pending = still_there(run, wanted)
            intent = self._accept(run, pending, basis, new_seed) if pending or new_seed else None
            self._settle(run, on_round, eval_every, data_checked=intent is not None)
            made = dict(zip(pending, intent.ids, strict=True)) if intent is not None else {}
            return [
                replace(run.record.receipt(made[request]), client=request.client, sample=request.sample)
                if request in made
                else receipt_of(run, request)
                for request in wanted
            ]

    def preview(self, requests: Iterable[Request]) -> ForgettingCost[float]:
        """What forgetting would cost a priori: from the plan and sizes alone, never from the draws."""
        with run_directory.reading(self.path, settled=False) as run:
            return preview(run, list(requests))

    def _accept(self, run: OpenRun, requests: Sequence[Request], basis: str, new_seed: bool) -> Intent:
        with self._engine.server(run) as server:
            decision = decide(server, requests)
        goal = max([decision.goal, *(intent.decision.goal for intent in run.record.pending())])
        decision = replace(decision, goal=goal, rewind_to=0 if new_seed else decision.rewind_to)
        if decision.rewind_to < goal:  # without a recomputation no data are read
            self._engine.check_data(run, requests)
        spared = set(run.server.roster) <= set(decision.leaving) or not (decision.first_changed_step or new_seed)
        return run.record.accept(
            decision,
            basis=basis,
            guarantee=guarantee_of(run.server.seed_origin, run.record.tainted, basis, new_seed),
            recomputed_steps=0 if spared else (goal - decision.rewind_to) * self.plan.local_steps,
            reseed=_fresh_root() if new_seed else None,
        )

    def _remove_accepted(self, run: OpenRun) -> None:
        """Take the data of every accepted request out and rewind. Applied from the intents, idempotently."""
        for intent in run.record.pending():
            if run.record.stage(intent) == Stage.ACCEPTED:
                with self._engine.server(run) as server:
                    apply(server, intent.decision)
                if intent.reseed is not None:
                    self._reseed(run, intent.reseed)
                run.record.removed(intent, run.server.rounds_done)

    def _settle(
        self, run: OpenRun, on_round: OnRound | None, eval_every: int | None, *, data_checked: bool = False
    ) -> None:
        """Finish every accepted request, one recomputation for all: also what a crash interrupted."""
        self._remove_accepted(run)
        intents = run.record.pending()
        removed = [intent for intent in intents if run.record.stage(intent) == Stage.REMOVED]
        goal = max((intent.decision.goal for intent in removed), default=0)
        if len(run.server.roster) and run.server.rounds_done < goal:
            if not data_checked:
                self._engine.check_data(run, ())
            self._engine.learn(run, goal, on_round, eval_every)
            run.record.trained(run.server.rounds_done, environment())
        for intent in removed:
            run.record.recomputed(intent)
        for intent in intents:
            if run.record.stage(intent) == Stage.RECOMPUTED:
                self._engine.measure(run, eval_every)
                model = run.server.model_digest() if len(run.server.roster) else None
                run.record.completed(intent, run.server.rounds_done, model, state_digest(run))
        if intents:
            run.purge_function()
        for intent in intents:
            run.record.purged(intent)

    def _reseed(self, run: OpenRun, root: str) -> None:
        seeds = SeedSource(bytes.fromhex(root))
        clients = {client: seeds.client(client) for client in run.server.roster}
        server_seed = seeds.server()
        file = replace(run.file, server_commitment=server_seed.commitment)
        run.clients.reseed(clients)
        run.replace_plan(file)
        run.server.reseed(server_seed, {client: seed.commitment for client, seed in clients.items()}, file.digest)

    # Looking

    def status(self) -> Status:
        with run_directory.reading(self.path, settled=False) as run:
            return status_of(run)

    def clients(self) -> dict[Id, int]:
        """The clients and how many samples each has."""
        with run_directory.reading(self.path, settled=False) as run:
            return run.clients.sizes()

    def samples(self, client: Id) -> IdSet:
        with run_directory.reading(self.path, settled=False) as run:
            return run.clients.samples(client)

    def state_digest(self) -> str:
        with run_directory.reading(self.path) as run:
            return state_digest(run)

    def verify(self, on_round: OnRound | None = None) -> Verification:
        """Replay from round 0 on the remaining data and compare every byte."""
        with run_directory.reading(self.path) as run, one_thread(), own_streams():
            return verify(
                run,
                self._data,
                self._engine.federation,
                self._engine.aggregator(),
                same_environment=_same_environment(run),
                on_round=on_round,
            )

    def export(self, file: str | Path) -> Path:
        """The current model as a plain PyTorch state_dict, or as safetensors if the file is named so."""
        export_run(self.path, Path(file))
        return Path(file)

    def model_bytes(self) -> int:
        """What a model takes on disk, without a server optimiser's state."""
        with run_directory.reading(self.path, settled=False) as run:
            return run.server.models.path(run.server.model_digest(0)).stat().st_size

    # Wiring

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[OpenRun]:
        with run_directory.writing(self.path) as run, one_thread(), own_streams():
            yield run


def _wanted(requests: Iterable[Request] | Request | None, client: Any, sample: Any) -> list[Request]:
    if (requests is None) == (client is None) or (sample is not None and client is None):
        raise InvalidInput("say what to forget, once", hint="give a client, a client and a sample, or a batch")
    if requests is None:
        return [Request(client, sample)]
    chosen = [requests] if isinstance(requests, Request) else list(requests)
    for request in chosen:
        if not isinstance(request, Request):
            raise InvalidInput(f"{request!r} is not a request", hint="give fedforget.Request(client, sample)")
    return list(dict.fromkeys(chosen))


def _same_environment(run: OpenRun) -> bool:
    noted = [event for event in run.record.events() if event["kind"] == "trained"]
    return all(arithmetic(event) == arithmetic(environment()) for event in noted)


def _fresh_root() -> str:
    return secrets.token_hex(32)
