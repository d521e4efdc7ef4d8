"""The server of a deployment in a user's Flower app: it creates the run, lets clients in, trains, and forgets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedforget.algorithm.learn import Progress
from fedforget.algorithm.plan import Plan, goal_of
from fedforget.algorithm.seeds import SeedSource
from fedforget.client_side.enrolment_files import enrolments_in
from fedforget.data.federated import FederatedData
from fedforget.federation.post import Post
from fedforget.requests.lifecycle import Receipt
from fedforget.run import OWN
from fedforget.session.deployment import Deployment
from fedforget.session.engine import Engine, Model
from fedforget.session.enrolling import enter_not_erased
from fedforget.session.options import RoundOptions
from fedforget.session.reaching import wire_over
from fedforget.session.starting import create_remote_run, require_same_plan
from fedforget.session.status import Status
from fedforget.session.workforce import Workforce
from fedforget.store import run_directory
from fedforget.store.checks import is_remote
from fedforget.store.plan_file import PlanFile
from fedforget.store.run_directory import OpenRun


@dataclass(slots=True)
class ShowProgress:
    """How an app shows what happens. Rounds are recomputed first, and trained from when ``is_training`` is set."""

    trained: Progress
    recomputed: Progress
    receipt: Callable[[Receipt], None]
    is_training: bool = False

    def round_done(self, round_: int) -> None:
        (self.trained if self.is_training else self.recomputed)(round_)


@dataclass(frozen=True, slots=True)
class Deployed:
    """What a user's app gives: its plan, model and test set, and where the run and the enrolment files are."""

    path: Path
    plan: Plan
    model: Model
    test: tuple[Any, Any] | None
    seed: SeedSource
    enrolled: Path | None

    def work(
        self, post: Post, patience: float, until: int | None, eval_every: int | None, progress: ShowProgress
    ) -> Status:
        """Carry out what is pending, then train up to a round (None: the plan's last)."""
        options = RoundOptions.of(progress.round_done, eval_every)
        wire = wire_over(lambda: contextlib.nullcontext(post), patience)
        with self._opened() as run, Deployment.on(run, wire, partial(self._engine, run), options) as deployment:
            for receipt in deployment.run_pending(everything=True):
                progress.receipt(receipt)
            progress.is_training = True
            return deployment.train(goal_of(self.plan.rounds, until))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[OpenRun]:
        """Open the run, which is created if it does not exist; enter clients whose files are new."""
        found = [] if self.enrolled is None else enrolments_in(self.enrolled)
        wanted = PlanFile(self.plan, self.model.described(OWN), OWN, b"", self.model.structure)
        if not run_directory.is_run(self.path):
            create_remote_run(self.path, wanted, self.model, self.seed, found)
        with run_directory.writing(self.path) as run:
            require_same_plan(run, wanted)
            enter_not_erased(run, found)
            yield run

    def _engine(self, run: OpenRun) -> Engine:
        return Engine.of_run(run.file, self.path, self.model, FederatedData({}, self.test), Workforce())


def is_deployed(path: Path, config: Mapping[str, Any]) -> bool:
    """Return whether an app's run has clients on other machines: it says where their files are, or the run exists."""
    return bool(config.get("enrolled")) or is_remote(path)
