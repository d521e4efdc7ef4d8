"""The demonstration: train, forget four times, retrain from scratch without the data, and compare the bytes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.builtin import DataChoice, open_run, start_run
from fedforget.disk.files import storage_errors
from fedforget.errors import InvalidInput
from fedforget.requests.lifecycle import Basis
from fedforget.run import Run
from fedforget.session.workforce import Workforce
from fedforget.store import run_directory

CLIENTS = 60
PLAN = Plan(clients_per_round=3, batch_size=4, local_steps=5, rounds=40, local=LocalOptimizer(lr=0.3, momentum=0.5))
BATCH = 5

Progress = Callable[..., AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class Erasure:
    """One step of the demonstration: a batch of requests and its cost."""

    what: str
    requests: list[str]
    first_changed_step: int | None
    recomputed_steps: int
    probability: float
    expected_steps: float
    accuracy_before: float
    accuracy_after: float
    guarantee: str
    curve: list[tuple[int, float]]  # (step, accuracy) of the recomputed rounds, beginning with the rewound state


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of the demonstration."""

    steps: int
    learned: list[tuple[int, float]]
    chapters: list[Erasure]
    retrained: list[tuple[int, float]]
    unlearned_digest: str
    retrained_digest: str
    unlearned_state: str
    retrained_state: str

    @property
    def equal(self) -> bool:
        return self.unlearned_digest == self.retrained_digest and self.unlearned_state == self.retrained_state

    @property
    def recomputed_steps(self) -> int:
        return sum(chapter.recomputed_steps for chapter in self.chapters)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "recomputed_steps": self.recomputed_steps, "equal": self.equal}


@dataclass(frozen=True, slots=True)
class _Uses:
    """The first uses that the draws determine. Requests chosen by them are model-informed."""

    clients: dict[Id, int]  # client → first step of its first round
    samples: dict[tuple[Id, Id], int | None]

    @classmethod
    def of(cls, run: Run) -> _Uses:
        with run_directory.reading(run.path) as opened:
            steps = {client: PLAN.step_of(first, 0) for client, first in opened.server.first_rounds().items()}
            samples: dict[tuple[Id, Id], int | None] = {}
            for client in steps:
                used = opened.clients.first_steps(client)
                samples |= {(client, sample): used.get(sample) for sample in opened.clients.samples(client)}
        return cls(steps, samples)

    def never_used(self) -> list[Request]:
        """Return a sample, of a client that took part, that no batch used, if there is one."""
        return [Request(*min(self.samples, key=lambda key: (self.samples[key] is not None, str(key))))]

    def sample_used_near(self, share: float) -> list[Request]:
        return [Request(*_nearest(self.samples, share))]

    def client_used_near(self, share: float) -> list[Request]:
        return [Request(_nearest(self.clients, share))]

    def several_used_after(self, share: float, count: int) -> list[Request]:
        """Return samples of different clients, first used at various steps after ``share`` of the training."""
        late = sorted((step, key) for key, step in self.samples.items() if step and step > share * PLAN.steps)
        chosen: dict[Id, Request] = {}
        for _, (client, sample) in late[:: max(1, len(late) // (3 * count))] + late:
            chosen.setdefault(client, Request(client, sample))
        return list(chosen.values())[:count]


def _nearest(uses: Any, share: float) -> Any:
    return min((key for key, step in uses.items() if step), key=lambda key: abs(uses[key] - share * PLAN.steps))


def run_demo(
    out: Path | None, seed: int, workforce: Workforce, *, say: Callable[[str], None], progress: Progress
) -> Comparison:
    """Train a run that forgets and a run that never had the data, and return both results."""
    with _directory(out) as directory:
        say(f"training {PLAN.rounds} rounds ({PLAN.steps} steps) on the digits of {CLIENTS} clients")
        first = _trained(directory / "forgets", seed, progress, (), workforce)
        learned = _curve(first)
        chapters, gone = [], list[Request]()
        for what, choose in (
            ("a sample that no draw held", _Uses.never_used),
            ("a sample that was used", lambda uses: uses.sample_used_near(0.5)),
            ("a whole client", lambda uses: uses.client_used_near(0.75)),
            ("five samples, one rewind", lambda uses: uses.several_used_after(0.6, BATCH)),
        ):
            requests = choose(_Uses.of(first))
            gone += requests
            chapters.append(_forget(first, what, requests, progress))
            say(_sentence(chapters[-1]))
        say("training again from scratch without all of them")
        second = _trained(directory / "never-had", seed, progress, gone, workforce)
        return Comparison(
            steps=PLAN.steps,
            learned=learned,
            chapters=chapters,
            retrained=_curve(second),
            unlearned_digest=str(first.status().model_digest),
            retrained_digest=str(second.status().model_digest),
            unlearned_state=first.state_digest(),
            retrained_state=second.state_digest(),
        )


def _trained(path: Path, seed: int, progress: Progress, without: Iterable[Request], workforce: Workforce) -> Run:
    start_run(path, DataChoice("digits", CLIENTS), lambda _: PLAN, seed=seed, without=list(without))
    run = open_run(path, workforce)
    with progress("training", PLAN.rounds) as advance:
        run.train(on_round=advance, eval_every=1)
    return run


def _forget(run: Run, what: str, requests: list[Request], progress: Progress) -> Erasure:
    cost, before = run.preview(requests), run.status()
    with progress(f"forgetting {what}", PLAN.rounds) as advance:
        receipts = run.forget(requests, basis=Basis.MODEL_INFORMED, on_round=advance, eval_every=1)
    after = run.status()
    changed = [receipt.first_changed_step for receipt in receipts if receipt.first_changed_step is not None]
    recomputed = receipts[0].recomputed_steps or 0  # of the batch
    return Erasure(
        what=what,
        requests=[str(request) for request in requests],
        first_changed_step=min(changed, default=None),
        recomputed_steps=recomputed,
        probability=cost.probability,
        expected_steps=cost.expected_steps,
        accuracy_before=before.accuracy or 0.0,
        accuracy_after=after.accuracy or 0.0,
        guarantee=receipts[0].guarantee or "",
        curve=[point for point in _curve(run) if point[0] >= PLAN.steps - recomputed],
    )


def _curve(run: Run) -> list[tuple[int, float]]:
    return [(round_ * PLAN.local_steps, accuracy) for round_, accuracy in run.status().accuracies.items()]


def _sentence(chapter: Erasure) -> str:
    if chapter.first_changed_step is None:
        return f"forgot {chapter.what}: nothing to recompute"
    first, redone = chapter.first_changed_step, chapter.recomputed_steps
    return f"forgot {chapter.what}: first used at step {first}, recomputed {redone} of {PLAN.steps} steps"


@contextlib.contextmanager
def _directory(out: Path | None) -> Iterator[Path]:
    if out is None:
        with tempfile.TemporaryDirectory(prefix="fedforget-demo-") as temporary:
            yield Path(temporary)
        return
    with storage_errors(out):
        if out.exists() and not out.is_dir():
            raise InvalidInput(f"{out} is not a directory", hint="choose a new directory for --out")
        out.mkdir(mode=0o700, parents=True, exist_ok=True)  # the runs in it hold seeds
        if any(out.iterdir()):
            raise InvalidInput(f"{out} is not empty", hint="choose a new directory for --out")
    yield out
