"""``Run``: a federation on one machine that learns, forgets, verifies and exports."""

from __future__ import annotations

import contextlib
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.plan import Plan, goal_of
from fedforget.algorithm.ports import State
from fedforget.algorithm.seeds import SeedSource
from fedforget.data.federated import FederatedData
from fedforget.disk.files import path_of, storage_errors
from fedforget.errors import InvalidInput, LearnerDiffers, PlanRefused, quoted, shown
from fedforget.evidence.receipts.statement import ReceiptCheck, compare, issue, recomputed_rounds, require_checked
from fedforget.evidence.replay import Verification, replay_rounds, verify
from fedforget.federation.pool import PATIENCE
from fedforget.planner.costs import ForgettingCost
from fedforget.requests.lifecycle import Basis, Receipt, Submission, require_basis
from fedforget.requests.policy import Policy
from fedforget.requests.processor import Processor
from fedforget.requests.targets import attach_known_targets, attach_targets
from fedforget.session import deferral
from fedforget.session.arguments import require_callback, require_names, require_watching, whole_or_none
from fedforget.session.engine import INLINE, Engine, OnRound, Workforce
from fedforget.session.learner_check import OtherEnvironment, require_structure
from fedforget.session.newcomers import newcomers_of
from fedforget.session.preview import preview
from fedforget.session.status import Status, export_run, status_of, withdrawn_error
from fedforget.session.work import RunWork
from fedforget.store import hints, plan_file, run_directory
from fedforget.store.creation import NewRun, create
from fedforget.store.plan_file import PlanFile
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.environment import numeric_environment
from fedforget.training.identity import parts_of, require_loss, require_module, structure_of
from fedforget.training.streams import own_streams
from fedforget.training.weights import PristineBuffers, float_type, weights_of

if TYPE_CHECKING:
    from torch import Tensor, nn

OWN: Mapping[str, str | int | float] = {"name": plan_file.OWN}


class Run:
    """A run directory together with the model and the data that belong to it.

    Opens the run at ``path``, or creates it if ``plan`` is given and there is none. ``data`` maps each client to a
    mapping of stable id → (x, y) or to a torch ``Dataset``. ``test`` is the server's test set, a pair (x, y).
    ``without`` names data to leave out. ``federation="pool"`` trains in ``workers`` processes (None: one per core)
    with the same results; a worker has ``patience`` seconds for a local round.
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
        seeds = SeedSource.of_person(seed)
        self.path = path_of(path, "a run")
        require_names(names)
        left_out = _wanted(without, None, None)
        self._module = require_module(model)
        require_loss(loss)
        self._loss = loss
        structure = structure_of(model)
        if plan is not None and not isinstance(plan, Plan):
            raise InvalidInput(f"a {type(plan).__name__} is not a plan", hint="give fedforget.Plan(...)")
        with storage_errors(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise InvalidInput(f"{path} is a file", hint="give a directory for the run")
        self._data = data if isinstance(data, FederatedData) else FederatedData(data, test)
        with torch.inference_mode(mode=False):
            pristine = PristineBuffers(model)
        if buffers := pristine.digest():
            names = ({**names[0], "unstored_buffers": buffers}, names[1])
        if not run_directory.is_run(self.path):
            if plan is None:
                PlanFile.read(self.path)  # raises NoSuchRun
                raise AssertionError
            self._create(PlanFile(plan, *names, b"", structure), seeds, left_out)
        elif plan is not None:
            self._require_same(PlanFile(plan, *names, b"", structure), seeds, left_out)
        file = PlanFile.read(self.path)
        require_structure(file, structure, self.path)
        if file.model.get("unstored_buffers", "") != pristine.digest():
            raise LearnerDiffers(
                "the model's non-persistent buffers are not what they were when the run began",
                hint="build the nn.Module afresh before opening the run: they are outside its state_dict",
            )
        self.plan = file.plan
        self._engine = Engine(self.plan, model, self._data, loss, pristine, workforce)

    def _create(self, wanted: PlanFile, seeds: SeedSource, without: Sequence[Request]) -> None:
        members = self._data.members(without)
        if not members:
            raise PlanRefused("the federation has no clients", hint="give it at least one client with one sample")
        self._warn_of_float_targets(members)
        server_seed = seeds.server()
        new = NewRun(
            file=replace(wanted, server_commitment=server_seed.commitment),
            server_seed=server_seed,
            seed_origin=seeds.origin,
            client_seeds={client: seeds.client(client) for client in members},
            contents=lambda client: self._data.contents(client, members[client]),
            initial=State(weights_of(self._module)),
            learner=parts_of(self._module, self._loss),
        )
        create(self.path, new)

    def _warn_of_float_targets(self, members: Mapping[Id, IdSet]) -> None:
        client, ids = next(iter(members.items()))
        _, target = self._data.sample(client, ids.ids[0])
        if self._loss is None and np.issubdtype(target.dtype, np.floating):
            warnings.warn(
                "the targets are floats, which the default loss (cross-entropy) reads as class probabilities: "
                "give whole numbers for classes, or a loss=… for anything else",
                stacklevel=4,
            )

    def _require_same(self, wanted: PlanFile, seeds: SeedSource, without: Sequence[Request]) -> None:
        """Refuse another plan, seed or roster. The same arguments again resume the run."""
        here = PlanFile.read(self.path)
        differences = here.differences(wanted)
        if seeds.origin == "given" and seeds.server().commitment != here.server_commitment:
            differences.append("it was made with another seed, or new seeds were drawn since")
        if differences:
            raise PlanRefused(
                f"{self.path} is a run with another plan: {'; '.join(differences)}",
                hint=f"go on with {hints.train(self.path)}, without a plan; or choose another directory",
            )
        with run_directory.reading(self.path, only_idle=False) as run:
            for request in without:
                if request.client in run.server.roster and (
                    request.sample is None or request.sample in run.clients.samples(request.client)
                ):
                    raise PlanRefused(
                        f"{self.path} was trained with {request}",
                        hint=f"use {hints.forget(self.path)} instead of leaving it out",
                    )

    # Learning and forgetting

    def train(
        self,
        until: int | None = None,
        on_round: OnRound | None = None,
        *,
        eval_every: int | None = None,
        recompute_all: bool = False,
        accept_mixed: bool = False,
    ) -> Status:
        """Train up to round ``until`` (None: the plan's last), after finishing interrupted requests.

        ``eval_every``: also evaluate the model every N rounds, including kept models of earlier rounds.
        Raises EnvironmentDiffers if other hardware or libraries trained the earlier rounds, unless ``recompute_all``
        recomputes them here or ``accept_mixed`` accepts a model that neither environment reproduces.
        """
        goal = goal_of(self.plan.rounds, whole_or_none(until, "until"))
        require_watching(on_round, eval_every)
        other = OtherEnvironment.of(recompute_all=recompute_all, accept_mixed=accept_mixed)
        with self._processing(on_round, eval_every, other) as (run, processor):
            processor.finish()
            if not len(run.server.roster):
                raise withdrawn_error(self.path)
            if run.server.rounds_done < goal:
                processor.learn(goal)
            else:
                run.server.load(run.server.rounds_done)  # raises if the model is torn
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
        defer: bool = False,
        deadline: str | None = None,
        idempotency_key: str | None = None,
        on_round: OnRound | None = None,
        eval_every: int | None = None,
        recompute_all: bool = False,
        accept_mixed: bool = False,
    ) -> list[Receipt]:
        """Forget a sample (``client`` and ``sample``), a client, or a batch of requests, all or nothing.

        A request for data that are already erased returns the receipt of the erasure. ``defer``: only accept the
        requests; ``run_pending`` carries them out with a single rewind. A deferred request is also accepted while
        another process has the run open; that process takes it from the inbox. ``deadline``: a date or a time (None:
        one month from now). ``recompute_all`` and ``accept_mixed``: as for ``train``.
        """
        other = OtherEnvironment.of(recompute_all=recompute_all, accept_mixed=accept_mixed)
        wanted = [] if new_seed and requests is None and client is None else _wanted(requests, client, sample)
        if defer and new_seed:
            raise InvalidInput("new seeds cannot wait", hint="leave out one of --defer and --new-seed")
        require_watching(on_round, eval_every)
        submission = Submission.of(tuple(wanted), basis, deadline=deadline, key=idempotency_key, new_seed=new_seed)
        if defer or deferral.collects(self.path, submission):
            return deferral.defer(self.path, submission)
        with self._processing(on_round, eval_every, other) as (run, processor):
            ids = processor.submit(submission)
            processor.finish()
            return attach_known_targets(run.record.book, run.record.book.receipts_of(ids), wanted)

    def preview(self, requests: Iterable[Request] | Request) -> ForgettingCost[float]:
        """Return the a-priori cost of forgetting: from the plan and sizes alone, never from the draws."""
        wanted = _wanted(requests, None, None)
        with run_directory.reading(self.path, only_idle=False) as run:
            return preview(run, wanted)

    def run_pending(
        self,
        *,
        everything: bool = False,
        on_round: OnRound | None = None,
        eval_every: int | None = None,
        recompute_all: bool = False,
        accept_mixed: bool = False,
    ) -> list[Receipt]:
        """Carry out all pending requests with a single rewind. Under the policy ``batch`` only once they are due.

        ``recompute_all`` and ``accept_mixed``: as for ``train``.
        """
        require_watching(on_round, eval_every)
        other = OtherEnvironment.of(recompute_all=recompute_all, accept_mixed=accept_mixed)
        with self._processing(on_round, eval_every, other) as (run, processor):
            book = run.record.book
            met: dict[str, Request | None] = {  # including interrupted ones
                identifier: request
                for intent in run.record.batches.pending()
                for identifier, request in zip_longest(intent.ids, intent.decision.requests)  # no targets while purging
            }
            waiting = book.waiting()
            if everything or run.record.policy.is_due(book.receipts_of(list(waiting))):
                processor.forget(waiting)
                met |= waiting
            processor.finish()
            return [
                receipt if request is None else attach_targets([receipt], [request])[0]
                for receipt, request in zip(book.receipts_of(list(met)), met.values(), strict=True)
            ]

    def cancel(self, identifier: str, *, basis: str = Basis.UNKNOWN) -> Receipt:
        """Cancel a pending request. A choice that depends on draws or model (``basis``) lowers the guarantee, too."""
        return deferral.cancel(self.path, identifier, basis)

    def add(
        self,
        targets: Iterable[Request] | Request,
        *,
        returning: bool = False,
        seed: int | str | None = None,
        basis: str = Basis.UNKNOWN,
        on_round: OnRound | None = None,
        eval_every: int | None = None,
        recompute_all: bool = False,
        accept_mixed: bool = False,
    ) -> Status:
        """Add clients and samples of the data, exactly: as if they had been there from the beginning.

        Erased data can be added again only with ``returning``. A new client's seed is derived from ``seed``, which must
        be the one the run was created with; without it, the seed comes from the operating system. ``recompute_all`` and
        ``accept_mixed``: as for ``train``.
        """
        other = OtherEnvironment.of(recompute_all=recompute_all, accept_mixed=accept_mixed)
        require_watching(on_round, eval_every)
        require_basis(basis)
        wanted = _wanted(targets, None, None)
        seeds = SeedSource.of_person(seed)
        with self._processing(on_round, eval_every, other) as (run, processor):
            processor.finish()
            if seed is not None and seeds.server().commitment != run.file.server_commitment:
                raise InvalidInput("this is not the seed that the run was made with", hint="leave it out")
            newcomers = newcomers_of(run, self._data, wanted, returning=returning, seeds=seeds)
            added = {
                "clients": sum(new.seed is not None for new in newcomers),
                "samples": sum(len(new.samples) for new in newcomers),
                "returning": returning,
                "basis": basis,
            }
            processor.add(newcomers, added)
            processor.finish()
            self._engine.measure(run, eval_every)
            return status_of(run)

    def forget_record(self) -> None:
        """Destroy the key of the record. Afterwards its pseudonyms and digests cannot be linked to ids."""
        with self._processing() as (run, processor):
            processor.finish()
            run.record.forget_itself()

    def set_policy(self, policy: Policy) -> None:
        if not isinstance(policy, Policy):
            raise InvalidInput(f"a {type(policy).__name__} is not a policy", hint="give fedforget.Policy(...)")
        deferral.set_policy(self.path, policy)

    # Reading

    def status(self) -> Status:
        with run_directory.reading(self.path, only_idle=False) as run:
            return status_of(run)

    def receipts(self) -> list[Receipt]:
        """Return the receipts of all requests. They name no client or sample, because the record keeps no ids."""
        with run_directory.reading(self.path, only_idle=False) as run:
            return run.record.book.receipts()

    def clients(self) -> dict[Id, int]:
        """Return the number of samples of each client."""
        with run_directory.reading(self.path, only_idle=False) as run:
            return run.clients.sizes()

    def samples(self, client: Id) -> IdSet:
        with run_directory.reading(self.path, only_idle=False) as run:
            return run.clients.samples(client)

    def state_digest(self) -> str:
        with run_directory.reading(self.path) as run:
            return state_digest(run)

    def verify(self, on_round: OnRound | None = None) -> Verification:
        """Replay from round 0 on the remaining data and compare every byte."""
        require_callback(on_round)
        with run_directory.reading(self.path, skip_seed_check=True) as run, self._computing():
            return verify(
                run,
                self._data,
                self._engine.federation,
                self._engine.aggregator(),
                here=numeric_environment(),
                on_round=on_round,
            )

    def signed_receipt(self, identifier: str, *, public: bool = False, new_key: bool = False) -> dict[str, Any]:
        """Return the receipt of a request as a signed envelope.

        ``public``: omit whether anything was recomputed. ``new_key``: replace a lost signing key.
        """
        return issue(self.path, identifier, public=public, new_key=new_key).envelope

    def check_receipt(
        self, found: ReceiptCheck, *, sample_rounds: int | None = None, on_round: OnRound | None = None
    ) -> ReceiptCheck:
        """Compare a receipt from ``read_receipt`` with this run, and replay the rounds recomputed for it."""
        require_checked(found)
        require_callback(on_round)
        most = _rounds_to_sample(sample_rounds)
        with run_directory.reading(self.path) as run, self._computing():
            compare(found, run)
            if found.run_ok:
                rounds: Sequence[int] = recomputed_rounds(run, found.statement["predicate"]["request"]["id"])
                if most is not None:
                    rounds = secrets.SystemRandom().sample(rounds, min(most, len(rounds)))
                reach, aggregator = self._engine.federation, self._engine.aggregator()
                self._engine.check_data(run, ())
                found.rounds_replayed, problems = replay_rounds(run, reach, aggregator, rounds, on_round)
                if rounds:
                    found.bitwise_equal = not problems
                found.problems += problems
        return found

    def export(self, file: str | Path) -> Path:
        """Write the current model as a PyTorch state_dict, or as safetensors if the file has that suffix."""
        place = path_of(file, "a model")
        export_run(self.path, place)
        return place

    def model_bytes(self) -> int:
        """Return the size of a model on disk in bytes, without the state of a server optimizer."""
        with run_directory.reading(self.path, only_idle=False) as run:
            return run.server.models.path(run.server.model_digest(0)).stat().st_size

    # Wiring

    @contextlib.contextmanager
    def _processing(
        self,
        on_round: OnRound | None = None,
        eval_every: int | None = None,
        other: OtherEnvironment = OtherEnvironment.REFUSE,
    ) -> Iterator[tuple[OpenRun, Processor]]:
        """Open the run for writing, accept the inbox, and yield the run with the processor of its requests."""
        with run_directory.writing(self.path) as run, self._computing(), self._engine.server(run) as server:
            processor = RunWork(self._engine, run, server, on_round, eval_every, other).processor()
            processor.accept_inbox()
            yield run, processor

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        with fixed_arithmetic(float_type(self._module)), own_streams():
            yield


def _rounds_to_sample(given: int | None) -> int | None:
    most = whole_or_none(given, "sample_rounds")
    if most is not None and most < 0:
        raise InvalidInput(
            f"{shown(most)} rounds cannot be replayed", hint="give sample_rounds from 0, or leave it out"
        )
    return most


def _wanted(requests: Iterable[Request] | Request | None, client: Any, sample: Any) -> list[Request]:
    if (requests is None) == (client is None) or (sample is not None and client is None):
        raise InvalidInput("say what to forget, once", hint="give a client, a client and a sample, or a batch")
    if requests is None:
        return [Request(client, sample)]
    if isinstance(requests, Request):
        return [requests]
    if not isinstance(requests, Iterable):
        raise InvalidInput(
            f"{quoted(requests)} is not a request", hint="give fedforget.Request(client, sample), or several"
        )
    chosen = list(requests)
    for request in chosen:
        if not isinstance(request, Request):
            raise InvalidInput(f"{quoted(request)} is not a request", hint="give fedforget.Request(client, sample)")
    return list(dict.fromkeys(chosen))
