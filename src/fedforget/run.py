"""``Run``: a federation on one machine that learns, forgets, verifies and exports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet, canonical_id
from fedforget.algorithm.learn import Progress
from fedforget.algorithm.plan import Plan, goal_of
from fedforget.algorithm.seeds import SeedSource
from fedforget.data.federated import FederatedData
from fedforget.disk.files import path_of
from fedforget.disk.lock import RunLock
from fedforget.errors import InvalidInput
from fedforget.evidence.rebuild import Rebuilt, rebuild_files
from fedforget.evidence.receipts.check import ReceiptCheck, require_checked
from fedforget.evidence.receipts.compare import check_with_run
from fedforget.evidence.receipts.issue import issue
from fedforget.evidence.replay import Verification, verify
from fedforget.federation.pool import PATIENCE
from fedforget.planner.costs import ForgettingCost
from fedforget.requests.lifecycle import AnyBasis, Basis, Receipt, Submission, require_basis
from fedforget.requests.policy import Policy
from fedforget.requests.selection import Selection
from fedforget.session import deferral
from fedforget.session.arguments import (
    requests_of,
    require_callback,
    require_names,
    require_text,
    rounds_to_sample,
    whole_or_none,
)
from fedforget.session.engine import Engine, Model
from fedforget.session.exporting import export_run
from fedforget.session.options import RoundOptions
from fedforget.session.preview import preview
from fedforget.session.session import Session
from fedforget.session.starting import create_run, require_no_file, require_same
from fedforget.session.status import Status, status_of
from fedforget.session.workforce import INLINE, Workforce
from fedforget.store import plan_file, run_directory
from fedforget.store.plan_file import PlanFile
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest

if TYPE_CHECKING:
    from torch import Tensor, nn

OWN: Mapping[str, str | int | float] = {"name": plan_file.OWN}


class Run:
    """A run directory together with the model and the data that belong to it.

    Opens the run at ``path``, or creates it if ``plan`` is given and there is none. ``data`` maps each client to a
    mapping of stable id → (x, y) or to a torch ``Dataset``. ``test`` is the server's test set, a pair (x, y).
    ``without`` names data to leave out. ``federation="pool"`` trains in ``workers`` processes (None: one per core)
    with the same results, and ``"flower-simulation"`` on the nodes of a Flower simulation (built-in models and data
    only); a worker has ``patience`` seconds for a local round.
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
        federation: str | Workforce = INLINE,
        workers: int | None = None,
        patience: float = PATIENCE,
    ) -> None:
        workforce = federation if isinstance(federation, Workforce) else Workforce(federation, workers, patience)
        seeds = SeedSource.of_person(seed)
        self.path = path_of(path, "a run")
        require_names(names)
        left_out = requests_of(without, None, None)
        learner = Model.of(model, loss)
        if plan is not None and not isinstance(plan, Plan):
            raise InvalidInput(f"a {type(plan).__name__} is not a plan", hint="give fedforget.Plan(...)")
        require_no_file(self.path)
        self._data = data if isinstance(data, FederatedData) else FederatedData(data, test)
        if plan is not None:
            wanted = PlanFile(plan, learner.described(names[0]), names[1], b"", learner.structure)
            if run_directory.is_run(self.path):
                require_same(self.path, wanted, seeds, left_out)
            else:
                create_run(self.path, wanted, learner, self._data, seeds, left_out)
        file = PlanFile.read(self.path)
        self.plan = file.plan
        self._engine = Engine.of_run(file, self.path, learner, self._data, workforce)

    # Learning and forgetting

    def train(
        self,
        until: int | None = None,
        on_round: Progress | None = None,
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
        options = RoundOptions.of(on_round, eval_every, recompute_all=recompute_all, accept_mixed=accept_mixed)
        with self._session(options) as session:
            return session.train(goal)

    def forget(
        self,
        requests: Iterable[Request] | Request | None = None,
        *,
        client: Any = None,
        sample: Any = None,
        basis: AnyBasis = Basis.UNKNOWN,
        new_seed: bool = False,
        defer: bool = False,
        deadline: str | None = None,
        idempotency_key: str | None = None,
        on_round: Progress | None = None,
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
        options = RoundOptions.of(on_round, eval_every, recompute_all=recompute_all, accept_mixed=accept_mixed)
        wanted = [] if new_seed and requests is None and client is None else requests_of(requests, client, sample)
        submission = Submission.of(tuple(wanted), basis, deadline=deadline, key=idempotency_key, new_seed=new_seed)
        if defer and (receipts := deferral.handed_in(self.path, submission)) is not None:
            return receipts
        with deferral.open_for_submission(self.path, submission, defer=defer) as (run, deferred):
            if deferred is not None:
                return deferred(run, submission)
            with self._session_on(run, options) as session:
                return session.forget(submission)

    def preview(self, requests: Iterable[Request] | Request) -> ForgettingCost[float]:
        """Return the a-priori cost of forgetting: from the plan and sizes alone, never from the draws."""
        wanted = requests_of(requests, None, None)
        with run_directory.reading(self.path, only_idle=False) as run:
            return preview(run, wanted)

    def run_pending(
        self,
        *,
        everything: bool = False,
        on_round: Progress | None = None,
        eval_every: int | None = None,
        recompute_all: bool = False,
        accept_mixed: bool = False,
    ) -> list[Receipt]:
        """Carry out all pending requests with a single rewind. Under the policy ``batch`` only once they are due.

        ``recompute_all`` and ``accept_mixed``: as for ``train``.
        """
        options = RoundOptions.of(on_round, eval_every, recompute_all=recompute_all, accept_mixed=accept_mixed)
        with self._session(options) as session:
            return session.run_pending(everything=everything)

    def cancel(self, identifier: str, *, basis: AnyBasis = Basis.UNKNOWN) -> Receipt:
        """Cancel a pending request. A choice that depends on draws or model (``basis``) lowers the guarantee, too."""
        with run_directory.writing(self.path) as run:
            return deferral.cancel(run, require_text(identifier, "the id of a request"), basis)

    def add(
        self,
        targets: Iterable[Request] | Request,
        *,
        returning: bool = False,
        seed: int | str | None = None,
        basis: AnyBasis = Basis.UNKNOWN,
        on_round: Progress | None = None,
        eval_every: int | None = None,
        recompute_all: bool = False,
        accept_mixed: bool = False,
    ) -> Status:
        """Add clients and samples of the data, exactly: as if they had been there from the beginning.

        Erased data can be added again only with ``returning``. A new client's seed is derived from ``seed``, which must
        be the one the run was created with; without it, the seed comes from the operating system. ``recompute_all`` and
        ``accept_mixed``: as for ``train``.
        """
        options = RoundOptions.of(on_round, eval_every, recompute_all=recompute_all, accept_mixed=accept_mixed)
        require_basis(basis)
        wanted = requests_of(targets, None, None)
        seeds = SeedSource.of_person(seed)
        with self._session(options) as session:
            return session.add(wanted, returning=returning, seeds=seeds, basis=basis)

    def forget_record(self) -> None:
        """Destroy the key of the record. Afterwards its pseudonyms and digests cannot be linked to ids."""
        with run_directory.writing(self.path) as run:
            deferral.forget_record(run)

    def set_policy(self, policy: Policy) -> None:
        """Decide when requests are carried out: immediately, or collected for a window and carried out together."""
        if not isinstance(policy, Policy):
            raise InvalidInput(f"a {type(policy).__name__} is not a policy", hint="give fedforget.Policy(...)")
        with run_directory.writing(self.path) as run:
            run.record.set_policy(policy)

    # Reading

    def status(self) -> Status:
        """Return the progress of the run and its open requests."""
        with run_directory.reading(self.path, only_idle=False) as run:
            return status_of(run)

    def receipts(
        self, *, states: Iterable[str] | str = (), since: str | None = None, limit: int | None = None
    ) -> list[Receipt]:
        """Return the receipts of requests, of all by default, in the order of receipt.

        They name no client or sample, because the record keeps no ids. ``states``: only those in one of these states,
        where ``open`` stands for every state of a request that is not closed. ``since``: only those received since this
        day or time. ``limit``: only the last so many.
        """
        wanted = [states] if isinstance(states, str) else list(states)
        selection = Selection.of(wanted, since, whole_or_none(limit, "limit"))
        with run_directory.reading(self.path, only_idle=False) as run:
            return run.record.book.chosen(selection)

    def clients(self) -> dict[Id, int]:
        """Return the number of samples of each client."""
        with run_directory.reading(self.path, only_idle=False) as run:
            return run.clients.sizes()

    def samples(self, client: Id) -> IdSet:
        """Return the ids of a client's samples."""
        with run_directory.reading(self.path, only_idle=False) as run:
            return run.clients.samples(canonical_id(client))

    def state_digest(self) -> str:
        """Return the digest of the state: equal for a run that forgot and a run that never had the data."""
        with run_directory.reading(self.path) as run:
            return state_digest(run)

    def verify(self, on_round: Progress | None = None, *, on_book: Progress | None = None) -> Verification:
        """Replay from round 0 on the remaining data and compare every byte.

        ``on_book``: called with the number of the clients' files that are checked, before the replay.
        """
        require_callback(on_round)
        require_callback(on_book)
        with run_directory.reading(self.path, skip_seed_check=True) as run:
            return verify(run, self._engine, on_round, on_book)

    def signed_receipt(self, identifier: str, *, public: bool = False, new_key: bool = False) -> dict[str, Any]:
        """Return the receipt of a request as a signed envelope.

        ``public``: omit whether anything was recomputed. ``new_key``: replace a lost signing key.
        """
        return issue(
            self.path, require_text(identifier, "the id of a request"), public=public, new_key=new_key
        ).envelope

    def check_receipt(
        self, found: ReceiptCheck, *, sample_rounds: int | None = None, on_round: Progress | None = None
    ) -> ReceiptCheck:
        """Compare a receipt from ``read_receipt`` with this run, and replay the rounds recomputed for it."""
        require_checked(found)
        require_callback(on_round)
        most = rounds_to_sample(sample_rounds)
        with run_directory.reading(self.path) as run:
            check_with_run(found, run, self._engine, most, on_round)
        return found

    def rebuild(self, on_round: Progress | None = None) -> Rebuilt:
        """Compute lost or damaged models again from an earlier one, and restore a lost public key.

        A model is written only if it is byte for byte the lost one. Also works while a request is unfinished.
        """
        require_callback(on_round)
        with RunLock(self.path), run_directory.reading(self.path, only_idle=False) as run:
            return rebuild_files(run, self._engine, on_round)

    def export(self, file: str | Path) -> Path:
        """Write the current model as a PyTorch state_dict, or as safetensors if the file has that suffix.

        The record notes it, if the run can be written: receipts name the exports that are out of reach.
        """
        place = path_of(file, "a model")
        export_run(self.path, place)
        return place

    def model_bytes(self) -> int:
        """Return the size of a model on disk in bytes, without the state of a server optimizer."""
        with run_directory.reading(self.path, only_idle=False) as run:
            return run.server.models.path(run.server.model_digest(0)).stat().st_size

    @contextlib.contextmanager
    def _session(self, options: RoundOptions) -> Iterator[Session]:
        with run_directory.writing(self.path) as run, self._session_on(run, options) as session:
            yield session

    def _session_on(self, run: OpenRun, options: RoundOptions) -> AbstractContextManager[Session]:
        self._engine.model.require_of(run.file, run.path)  # the module may have changed since it was given
        return Session.on(run, lambda: self._engine, options)
