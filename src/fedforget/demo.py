"""The demonstration: forget, train again from scratch without the data, and compare the two digests."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.builtin import train_run
from fedforget.errors import InvalidInput
from fedforget.run import Run
from fedforget.store import run_directory
from fedforget.store.record import Basis, Receipt

CLIENTS = 60
PLAN = Plan(6, 8, 10, 40, LocalOptimizer(lr=0.2, momentum=0.5))

Progress = Callable[..., AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Both digests, and what it took to get there."""

    unlearned_digest: str
    retrained_digest: str
    unlearned_state: str
    retrained_state: str
    steps: int
    recomputed_steps: int
    accuracy_before: float
    accuracy_after: float
    receipts: list[dict[str, Any]]

    @property
    def equal(self) -> bool:
        return self.unlearned_digest == self.retrained_digest and self.unlearned_state == self.retrained_state

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.equal}

    def text(self) -> str:
        verdict = "EQUAL, byte for byte" if self.equal else "DIFFERENT"
        return "\n".join(
            [
                "",
                f"  after forgetting          model {self.unlearned_digest}",
                f"  trained without the data  model {self.retrained_digest}",
                f"  after forgetting          state {self.unlearned_state}",
                f"  trained without the data  state {self.retrained_state}",
                f"  {verdict}",
                "",
                f"  forgetting recomputed {self.recomputed_steps} steps; retraining takes {self.steps}",
                f"  test accuracy {self.accuracy_before:.3f} before, {self.accuracy_after:.3f} after",
            ]
        )


def run_demo(out: Path | None, seed: int, say: Callable[[str], None], progress: Progress) -> DemoResult:
    """Two runs: one that learns and forgets, one that never had the data."""
    with _directory(out) as directory:
        say(f"training {PLAN.rounds} rounds on the digits of {CLIENTS} clients")
        first = train_run(directory / "forgets", "digits", CLIENTS, lambda _: PLAN, seed=seed)
        with progress("training", PLAN.rounds) as advance:
            before = first.train(on_round=advance)
        chosen = _late_sample_and_client(first)
        receipts = []
        for request in chosen:
            with progress(f"forgetting {request}", PLAN.rounds) as advance:
                receipts += first.forget([request], basis=Basis.MODEL_INFORMED, on_round=advance)
            say(_sentence(request, receipts[-1]))
        say("training again from scratch without them")
        second = train_run(directory / "never-had", "digits", CLIENTS, lambda _: PLAN, seed=seed, without=chosen)
        with progress("training", PLAN.rounds) as advance:
            without = second.train(on_round=advance)
        after = first.status()
        return DemoResult(
            unlearned_digest=str(after.model_digest),
            retrained_digest=str(without.model_digest),
            unlearned_state=first.state_digest(),
            retrained_state=second.state_digest(),
            steps=PLAN.steps,
            recomputed_steps=sum(receipt.recomputed_steps for receipt in receipts),
            accuracy_before=before.accuracy or 0.0,
            accuracy_after=after.accuracy or 0.0,
            receipts=[receipt.as_dict() for receipt in receipts],
        )


def _sentence(request: Request, receipt: Receipt) -> str:
    if receipt.first_changed_step is None:
        return f"forgot {request}: no draw held it, nothing to recompute"
    first, redone = receipt.first_changed_step, receipt.recomputed_steps
    return f"forgot {request}: first used at step {first} of {PLAN.steps}, recomputed {redone} steps"


def _late_sample_and_client(run: Run) -> list[Request]:
    """Looks at the draws to pick a sample and a client that were used late: these requests are model-informed."""
    with run_directory.reading(run.path) as opened:
        rounds = opened.server.first_rounds()
        leaving: Id = max(rounds, key=lambda client: (rounds[client], -opened.server.roster.position[client]))
        steps = {
            (client, sample): step
            for client in rounds
            if client != leaving
            for sample, step in opened.clients.first_steps(client).items()
        }
    late = sorted(key for key, step in steps.items() if step > PLAN.steps * 0.6)
    client, sample = late[0]
    return [Request(client, sample), Request(leaving)]


@contextlib.contextmanager
def _directory(out: Path | None) -> Iterator[Path]:
    if out is None:
        with tempfile.TemporaryDirectory(prefix="fedforget-demo-") as temporary:
            yield Path(temporary)
        return
    if out.exists() and any(out.iterdir()):
        raise InvalidInput(f"{out} is not empty", hint="choose a new directory for --out")
    yield out
