"""``Run``: a federation on one machine that learns, forgets, verifies and exports."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedforget.algorithm.aggregate import aggregator
from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request, apply, decide
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.plan import Plan, goal_of
from fedforget.algorithm.ports import State
from fedforget.algorithm.seeds import SeedSource
from fedforget.algorithm.theory import ForgettingCost, Loss, forgetting_cost
from fedforget.data.federated import FederatedData
from fedforget.environment import arithmetic, environment
from fedforget.errors import InvalidInput, PlanRefused, UnknownTarget
from fedforget.federation.inline import InlineFederation
from fedforget.overview import Status, export_run, status_of, withdrawn_error
from fedforget.store import run_directory
from fedforget.store.plan_file import PlanFile
from fedforget.store.record import Basis, Intent, Receipt, Stage, guarantee_of
from fedforget.store.run_directory import Birth, OpenRun
from fedforget.store.state_digest import state_digest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedforget.evidence.replay import Verification
    from fedforget.training.local_sgd import TorchLearner
    from fedforget.training.weights import PristineBuffers

OWN: Mapping[str, str | int | float] = {"name": "own"}
OnRound = Callable[[int], None]


class Run:
    """A run directory together with the model and the data that belong to it.

    Opens the run at ``path``, or makes it if ``plan`` is given and there is none. ``data`` maps each client to a
    mapping of stable id → (x, y) or to a torch ``Dataset``; ``test`` is a pair (x, y) for the server; ``without``
    leaves data out.
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
    ) -> None:
        self.path = Path(path)
        if plan is not None and not isinstance(plan, Plan):
            raise InvalidInput(f"a {type(plan).__name__} is not a plan", hint="give fedforget.Plan(...)")
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInput(f"{path} is a file", hint="give a directory for the run")
        self._module = model
        self._data = data if isinstance(data, FederatedData) else FederatedData(data, test)
        self._loss = loss
        self._pristine = _pristine(model)
        if buffers := self._pristine.digest():
            names = ({**names[0], "unstored_buffers": buffers}, names[1])
        if not run_directory.is_run(self.path):
            if plan is None:
                PlanFile.read(self.path)  # says that there is no run
                raise AssertionError
            self._create(plan, SeedSource(seed), list(without), names)
        elif plan is not None:
            self._require_same(plan, SeedSource(seed), list(without), names)
        file = PlanFile.read(self.path)
        if file.model.get("unstored_buffers", "") != self._pristine.digest():
            raise InvalidInput(
                "the model's non-persistent buffers are not what they were when the run began",
                hint="build the nn.Module afresh before opening the run: they are outside its state_dict",
            )
        self.plan = file.plan

    def _create(self, plan: Plan, seeds: SeedSource, without: Sequence[Request], names: tuple[Any, Any]) -> None:
        from fedforget.training.weights import weights_of  # noqa: PLC0415 (torch only where it is needed)

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

    def train(self, until: int | None = None, on_round: OnRound | None = None) -> Status:
        """Learn up to round ``until`` (the plan's last if None), after finishing whatever was interrupted."""
        goal = goal_of(self.plan.rounds, until)
        with self._at_work() as run:
            self._settle(run, on_round)
            if not len(run.server.roster):
                raise withdrawn_error(self.path)
            if run.server.rounds_done < goal:
                self._check_data(run, ())
                learn(self._server(run), goal, on_round)
                run.record.trained(run.server.rounds_done, environment())
            self._measure(run)
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
    ) -> list[Receipt]:
        """Forget a sample (``client`` and ``sample``), a client, or a batch of requests, all or nothing.

        Asking for what is gone already gives the receipt it went under.
        """
        wanted = [] if new_seed and requests is None and client is None else _wanted(requests, client, sample)
        if basis not in list(Basis):
            raise InvalidInput(f"unknown basis {basis!r}", hint=f"use one of: {', '.join(Basis)}")
        with self._at_work() as run:
            self._remove_accepted(run)  # a recomputation that was interrupted absorbs the new requests
            pending = _still_there(run, wanted)
            intent = self._accept(run, pending, basis, new_seed) if pending or new_seed else None
            self._settle(run, on_round, data_checked=intent is not None)
            made = dict(zip(pending, intent.ids, strict=True)) if intent is not None else {}
            return [
                replace(run.record.receipt(made[request]), client=request.client, sample=request.sample)
                if request in made
                else _known(run, request)
                for request in wanted
            ]

    def preview(self, requests: Iterable[Request]) -> ForgettingCost[float]:
        """What forgetting would cost a priori: from the plan and sizes alone, never from the draws."""
        with run_directory.reading(self.path, settled=False) as run:
            return preview(run, list(requests))

    def _accept(self, run: OpenRun, requests: Sequence[Request], basis: str, new_seed: bool) -> Intent:
        decision = decide(self._server(run), requests)
        goal = max([decision.goal, *(intent.decision.goal for intent in run.record.pending())])
        decision = replace(decision, goal=goal, rewind_to=0 if new_seed else decision.rewind_to)
        if decision.rewind_to < goal:  # without a recomputation no data are read
            self._check_data(run, requests)
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
                apply(self._server(run), intent.decision)
                if intent.reseed is not None:
                    self._reseed(run, intent.reseed)
                run.record.removed(intent, run.server.rounds_done)

    def _settle(self, run: OpenRun, on_round: OnRound | None, *, data_checked: bool = False) -> None:
        """Finish every accepted request, one recomputation for all: also what a crash interrupted."""
        self._remove_accepted(run)
        intents = run.record.pending()
        removed = [intent for intent in intents if run.record.stage(intent) == Stage.REMOVED]
        goal = max((intent.decision.goal for intent in removed), default=0)
        if len(run.server.roster) and run.server.rounds_done < goal:
            if not data_checked:
                self._check_data(run, ())
            learn(self._server(run), goal, on_round)
            run.record.trained(run.server.rounds_done, environment())
        for intent in removed:
            run.record.recomputed(intent)
        for intent in intents:
            if run.record.stage(intent) == Stage.RECOMPUTED:
                self._measure(run)
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
        from fedforget.evidence.replay import verify  # noqa: PLC0415
        from fedforget.training.streams import one_thread, own_streams  # noqa: PLC0415

        with run_directory.reading(self.path) as run, one_thread(), own_streams():
            return verify(
                run,
                self._data,
                self._learner(),
                self._aggregator(),
                same_environment=_same_environment(run),
                on_round=on_round,
            )

    def export(self, file: str | Path) -> Path:
        """The current model as a plain PyTorch state_dict, or as safetensors if the file is named so."""
        export_run(self.path, Path(file))
        return Path(file)

    def model_bytes(self) -> int:
        """What one kept model takes on disk."""
        with run_directory.reading(self.path, settled=False) as run:
            return run.server.models.path(run.server.model_digest(0)).stat().st_size

    # Wiring

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[OpenRun]:
        from fedforget.training.streams import one_thread, own_streams  # noqa: PLC0415

        with run_directory.writing(self.path) as run, one_thread(), own_streams():
            yield run

    def _learner(self) -> TorchLearner:
        from fedforget.training.local_sgd import TorchLearner  # noqa: PLC0415

        return TorchLearner(self._module, self._data, self.plan.local, self._loss, self._pristine)

    def _aggregator(self) -> Any:
        from fedforget.training.weights import parameter_names  # noqa: PLC0415

        return aggregator(self.plan.server, parameter_names(self._module))

    def _server(self, run: OpenRun) -> Server:
        federation = InlineFederation(self.plan, run.clients, self._learner())
        return Server(self.plan, PrfPriorities(run.server.seed.value), run.server, federation, self._aggregator())

    def _check_data(self, run: OpenRun, leaving: Iterable[Request]) -> None:
        """Everything that stays must be in the data, and be what it was."""
        lost: dict[Id, set[Id | None]] = {}
        for request in leaving:
            lost.setdefault(request.client, set()).add(request.sample)
        for client in run.server.roster:
            gone = lost.get(client, set())
            if None in gone:
                continue
            contents = run.clients.contents(client)
            staying = {sample: content for sample, content in contents.items() if sample not in gone}
            self._data.require_unchanged(client, staying)

    def _measure(self, run: OpenRun) -> None:
        from fedforget.training.local_sgd import count_correct, test_tensors  # noqa: PLC0415

        if self._data.test is None or not len(run.server.roster):
            return
        round_ = run.server.rounds_done
        if run.record.accuracy(round_) is None:
            weights = run.server.load(round_).model
            correct, count = count_correct(self._module, weights, test_tensors(self._module, self._data.test))
            run.record.measured(round_, correct, count)


def _pristine(module: nn.Module) -> PristineBuffers:
    from fedforget.training.weights import PristineBuffers  # noqa: PLC0415 (torch)

    return PristineBuffers(module)


def preview(run: OpenRun, requests: Sequence[Request]) -> ForgettingCost[float]:
    """The a-priori cost of requests on an open run."""
    pending = _still_there(run, requests)
    sizes, lost = run.clients.sizes(), dict[Id, int | None]()
    for request in pending:
        before = lost.get(request.client, 0)
        lost[request.client] = None if request.sample is None or before is None else before + 1
    plan = run.file.plan
    return forgetting_cost(
        [Loss(sizes[client], count) for client, count in lost.items()],
        clients=len(run.server.roster),
        clients_per_round=plan.clients_per_round,
        batch_size=plan.batch_size,
        local_steps=plan.local_steps,
        rounds=run.server.rounds_done,
    )


def _still_there(run: OpenRun, wanted: Sequence[Request]) -> list[Request]:
    """Which requests are new; the others must have been met already, or all are refused."""
    samples_of = cache(run.clients.samples)
    pending = []
    for request in wanted:
        if request.client in run.server.roster and (
            request.sample is None or request.sample in samples_of(request.client)
        ):
            pending.append(request)
        else:
            _known(run, request)
    return pending


def _known(run: OpenRun, request: Request) -> Receipt:
    """The receipt under which something went."""
    receipt = run.record.find(request)
    if receipt is None:
        where = "" if request.client not in run.server.roster else f" --client {request.client}"
        raise UnknownTarget(f"there is no {request} in {run.path}", hint=f"see `fedforget clients {run.path}{where}`")
    return receipt


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
