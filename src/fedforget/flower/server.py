"""The server of a deployment in a user's Flower app: it creates the run, lets clients in, trains, and forgets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.learn import Progress
from fedforget.algorithm.plan import Plan, goal_of
from fedforget.algorithm.seeds import SeedSource
from fedforget.client_side.enrolment_files import enrolments_in
from fedforget.data.federated import FederatedData
from fedforget.errors import PlanRefused
from fedforget.federation.post import Post
from fedforget.requests.lifecycle import Receipt
from fedforget.run import OWN
from fedforget.session.deployment import Deployment
from fedforget.session.engine import Engine, Model
from fedforget.session.enrolling import enroll
from fedforget.session.options import RoundOptions
from fedforget.session.reaching import wire_over
from fedforget.session.starting import create_remote_run
from fedforget.session.status import Status
from fedforget.session.workforce import Workforce
from fedforget.store import run_directory
from fedforget.store.checks import is_remote
from fedforget.store.plan_file import PlanFile


@dataclass(frozen=True, slots=True)
class ShowProgress:
    """How an app shows what happens."""

    trained: Progress
    recomputed: Progress
    receipt: Callable[[Receipt], None]


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
        self._created()
        options = RoundOptions.of(progress.recomputed, eval_every)
        wire = wire_over(lambda: contextlib.nullcontext(post), patience)
        with run_directory.writing(self.path) as run, Deployment.on(run, wire, self._engine, options) as deployment:
            for receipt in deployment.run_pending(everything=True):
                progress.receipt(receipt)
        options = RoundOptions.of(progress.trained, eval_every)
        with run_directory.writing(self.path) as run, Deployment.on(run, wire, self._engine, options) as deployment:
            return deployment.train(goal_of(self.plan.rounds, until))

    def _created(self) -> None:
        """Create the run, or find that it has the same plan; let clients in whose files are new."""
        found = [] if self.enrolled is None else enrolments_in(self.enrolled)
        wanted = PlanFile(self.plan, self.model.described(OWN), OWN, b"", self.model.structure)
        if not run_directory.is_run(self.path):
            create_remote_run(self.path, wanted, self.model, self.seed, found)
            return
        differences = PlanFile.read(self.path).differences(wanted)
        if differences:
            raise PlanRefused(
                f"{self.path} is a run with another plan: {'; '.join(differences)}", hint="choose another directory"
            )
        with run_directory.reading(self.path, only_idle=False) as run:
            erased = {each.client for each in found if run.record.book.id_of_exactly(Request(each.client)) is not None}
        enroll(self.path, [each for each in found if each.client not in erased])  # a file may outlast its client

    def _engine(self) -> Engine:
        data = FederatedData({}, self.test)
        return Engine.of_run(PlanFile.read(self.path), self.path, self.model, data, Workforce())


def is_deployed(path: Path, config: Mapping[str, Any]) -> bool:
    """Return whether an app's run has clients on other machines: it says where their files are, or the run exists."""
    return bool(config.get("enrolled")) or is_remote(path)
