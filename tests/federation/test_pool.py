"""The pool: the bytes of ``inline``, whichever worker trains. A worker that dies is named; none outlives its parent."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedforget import LocalOptimizer, Plan, Request, Run, ServerOptimizer
from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.memory import ClientsInMemory
from fedforget.algorithm.ports import LocalLearner, LocalRound, Trained, TrainTask
from fedforget.algorithm.seeds import SeedSource
from fedforget.errors import FedForgetError, InvalidInput, NonFiniteLoss, TrainingFailed
from fedforget.federation.background import BackgroundJob
from fedforget.federation.local import LocalFederation
from fedforget.federation.pool import WorkerPool
from fedforget.federation.worker import Lost, Worker
from fedforget.store import run_directory
from tests.helpers import function_files

PLAN = Plan(4, 3, 2, 5, LocalOptimizer(lr=0.1, momentum=0.9, prox=0.01), ServerOptimizer("fedadam"))
FEATURES, CLASSES = 5, 3


def samples(count: int, seed: int) -> dict[int, tuple[np.ndarray, int]]:
    rng = np.random.default_rng(seed)
    return {row: (rng.normal(size=FEATURES).astype(np.float32), int(rng.integers(CLASSES))) for row in range(count)}


DATA = {client: samples(6 + client, client) for client in range(7)}
TEST = np.random.default_rng(9).normal(size=(1201, FEATURES)).astype(np.float32), np.arange(1201) % CLASSES


class Everyday(nn.Module):
    """BatchNorm, dropout, and a buffer of integers that all clients agree on; does something to order at a marker."""

    def __init__(self, at_marker: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8, momentum=None), nn.Dropout(0.3), nn.Linear(8, CLASSES)
        )
        self.register_buffer("agreed", torch.arange(3))
        self.at_marker = at_marker

    def forward(self, x: Tensor) -> Tensor:
        if (x == MARKER).any():
            self.at_marker()
        return self.layers(x)


MARKER = 12345.0


def fresh(at_marker: Callable[[], None] = lambda: None) -> nn.Module:
    torch.manual_seed(3)
    return Everyday(at_marker)


def marked(client: int) -> dict[int, Any]:
    """The data, with a marker in every sample of one client."""
    data: dict[int, Any] = dict(DATA)
    data[client] = {
        row: (np.where(np.arange(FEATURES) == 0, np.float32(MARKER), x), y) for row, (x, y) in DATA[client].items()
    }
    return data


def opened(path: Path, at_marker: Callable[[], None] = lambda: None, **changes: Any) -> Run:
    given = {"data": DATA, "test": TEST, "seed": 1, **changes}
    return Run(path, PLAN, model=fresh(at_marker), **given)


def first_drawn(path: Path) -> int:
    """A client that takes part in round 2, other than the first of its tasks."""
    run = opened(path)
    run.train()
    with run_directory.reading(path) as found:
        rounds = found.server.first_rounds()
    return int(next(client for client, first in rounds.items() if first == 1))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_runs_are_byte_for_byte_those_of_inline(tmp_path: Path, workers: int) -> None:
    """Also after forgetting, and where the process has trained by itself before it forks."""
    inline = opened(tmp_path / "inline")
    pool = opened(tmp_path / "pool", federation="pool", workers=workers)
    for run in (inline, pool):
        run.train(3)
    assert function_files(inline.path) == function_files(pool.path)
    for run in (inline, pool):
        run.forget([Request(2, 1), Request(4)])
        run.train()
    assert function_files(inline.path) == function_files(pool.path)
    assert pool.verify().ok
    assert opened(tmp_path / "pool").verify().ok


def test_measuring_beside_training_gives_the_same_numbers(tmp_path: Path) -> None:
    def measured(path: Path) -> list[Any]:
        with run_directory.reading(path) as run:
            return run.metrics.database.rows("SELECT round, correct, count FROM metrics ORDER BY round")

    inline = opened(tmp_path / "inline")
    pool = opened(tmp_path / "pool", federation="pool", workers=2)
    later = opened(tmp_path / "later", federation="pool", workers=2)
    inline.train(eval_every=2)
    pool.train(eval_every=2)
    later.train()
    later.train(eval_every=2)  # the models are kept, so they can be measured afterwards
    assert [row[0] for row in measured(inline.path)] == [0, 2, 4, 5]
    assert measured(pool.path) == measured(inline.path)
    assert measured(later.path) == measured(inline.path)
    assert {row[2] for row in measured(inline.path)} == {1201}


# ----------------------------------------------------------------------------------------------- workers that fall out


def die() -> None:
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    if multiprocessing.parent_process() is not None:
        os._exit(3)


def hang() -> None:
    if multiprocessing.parent_process() is not None:
        time.sleep(60)


def take_all_memory() -> None:
    if multiprocessing.parent_process() is not None:
        resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
        torch.zeros(2**33)


@pytest.mark.parametrize(
    ("fall_out", "how", "remedy"),
    [
        (die, r"was killed \(SIGKILL, perhaps for lack of memory\)", "fewer --workers"),
        (leave, "ended with code 3", "checking the model"),
        (hang, "did not finish within 1 s", "--worker-timeout"),
        (take_all_memory, "(?i)memory", "fewer workers"),
    ],
)
def test_dead_worker_names_client_and_rerun_resumes(
    tmp_path: Path, fall_out: Callable[[], None], how: str, remedy: str
) -> None:
    client = first_drawn(tmp_path / "to look")
    data = marked(client)
    undisturbed = opened(tmp_path / "undisturbed", data=data)
    undisturbed.train()
    run = opened(tmp_path / "run", fall_out, data=data, federation="pool", workers=2, patience=1)
    with pytest.raises(TrainingFailed, match=how) as caught:
        run.train()
    assert f"client {client} " in str(caught.value)
    assert "round 1" in str(caught.value)
    assert remedy in caught.value.hint
    assert run.status().rounds_done == 0
    opened(tmp_path / "run", data=data, federation="pool", workers=2).train()
    assert function_files(tmp_path / "run") == function_files(undisturbed.path)


def test_no_worker_is_left_after_training_failing_or_interrupting(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", federation="pool", workers=2)
    run.train(2, eval_every=1)
    assert multiprocessing.active_children() == []

    def interrupt(round_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train(on_round=interrupt)
    assert multiprocessing.active_children() == []
    assert run.status().rounds_done == 3  # the round it was told about is whole
    client = first_drawn(tmp_path / "to look")
    falls = opened(tmp_path / "falls", die, data=marked(client), federation="pool", workers=2)
    with pytest.raises(TrainingFailed):
        falls.train()
    assert multiprocessing.active_children() == []


def processes_of(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, _, members = (entry / "stat").read_text().rpartition(") ")[2].split()[:3]
            if int(members) == group and state != "Z":
                found.append(int(entry.name))
    return found


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that trains with three workers and a process that measures, at a client that never ends."""
    program = textwrap.dedent(f"""
        import signal, time
        from pathlib import Path
        from tests.federation import test_pool as pool
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the suite runs in the background
        def hang():
            print("hanging", flush=True)
            time.sleep(60)
        run = pool.opened(Path({str(tmp_path / "run")!r}), hang, data=pool.marked(1), federation="pool", workers=3)
        run.train(eval_every=1)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_workers_end_when_their_parent_is_killed(training: subprocess.Popen[str], tmp_path: Path) -> None:
    assert len(processes_of(training.pid)) >= 4
    os.kill(training.pid, signal.SIGKILL)
    training.wait()
    deadline = time.monotonic() + 10
    while processes_of(training.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_of(training.pid) == []
    opened(tmp_path / "run", data=marked(1)).train()  # and no process holds its lock


def test_interrupting_a_hanging_round_ends_everything(training: subprocess.Popen[str]) -> None:
    os.killpg(training.pid, signal.SIGINT)  # what Ctrl-C sends
    training.wait(10)
    assert processes_of(training.pid) == []


# -------------------------------------------------------------------------------------------------------------- details


class Stumbles:
    """A learner that fails at some clients, the later ones at once and the first one last."""

    def __init__(self, *at: int) -> None:
        self.at = at

    def train(self, work: LocalRound) -> Trained:
        if work.client in self.at:
            time.sleep(0.3 if work.client == min(self.at) else 0)
            raise NonFiniteLoss(f"client {work.client} failed", hint="look")
        return Trained({"w": np.ones(3)})


def in_memory(count: int) -> ClientsInMemory:
    seeds = SeedSource("pool")
    return ClientsInMemory(
        {client: IdSet(range(5)) for client in range(count)},
        {client: seeds.client(client).value for client in range(count)},
    )


def pool(plan: Plan, memory: ClientsInMemory, learner: LocalLearner, workers: int) -> LocalFederation:
    trainer = WorkerPool(plan.clients_per_round, learner, workers=workers)
    return LocalFederation(plan, memory, learner, trainer=trainer)


def workers_of(federation: LocalFederation) -> list[int]:
    assert isinstance(federation._trainer, WorkerPool)
    workers = (queue.worker for queue in federation._trainer._queues)
    return [worker.process_id for worker in workers if worker.process_id is not None]


def test_of_several_failures_the_first_in_the_order_of_tasks_is_raised() -> None:
    """As if the clients had been trained one by one, so that the same command gives the same error."""
    with contextlib.closing(pool(PLAN, in_memory(6), Stumbles(1, 2, 4), workers=3)) as federation:
        with pytest.raises(NonFiniteLoss, match="client 1 failed") as caught:
            federation.train([TrainTask(1, client, {"w": np.zeros(3)}) for client in range(6)])
        assert caught.value.hint == "look"


class DiesAt:
    """A learner that ends its process at one client of round 3, when workers have been given their next clients."""

    def __init__(self, client: int) -> None:
        self.client = client

    def train(self, work: LocalRound) -> Trained:
        if (work.round, work.client) == (3, self.client):
            die()
        return Trained({"w": work.model["w"] + float(work.client)})

    def train_part(self, work: LocalRound, start: int, stop: int, halfway: Any = None, into: Any = None) -> Trained:
        return self.train(work)

    def halfway_like(self, model: Any) -> Any:
        return model


@pytest.mark.parametrize("client", range(5))
def test_dead_worker_is_reported_for_its_running_client_only(client: int) -> None:
    plan = Plan(5, 3, 4, 5)
    with contextlib.closing(pool(plan, in_memory(5), DiesAt(client), workers=2)) as federation:
        for round_ in (1, 2):
            federation.train([TrainTask(round_, each, {"w": np.zeros(3)}) for each in range(5)])
        with pytest.raises(TrainingFailed, match=f"trained client {client} in round 3 was killed"):
            federation.train([TrainTask(3, each, {"w": np.zeros(3)}) for each in range(5)])


class Adds:
    """Weights that show which process trained, and from which model."""

    def train(self, work: LocalRound) -> Trained:
        return Trained({"w": work.model["w"] + float(work.client), "pid": np.array(os.getpid())})


def test_workers_train_and_replies_are_in_task_order() -> None:
    memory = in_memory(9)
    with contextlib.closing(pool(PLAN, memory, Adds(), workers=3)) as federation:
        for round_ in (1, 2):
            model = {"w": np.full(1000, 10.0 * round_), "pid": np.array(0)}
            replies = federation.train([TrainTask(round_, client, model) for client in (8, 3, 5, 1, 7)])
            assert [reply.client for reply in replies] == [8, 3, 5, 1, 7]
            assert [reply.model["w"][0] - 10.0 * round_ for reply in replies] == [8, 3, 5, 1, 7]
            trainers = {int(reply.model["pid"]) for reply in replies}
            assert trainers <= set(workers_of(federation))  # the same ones in every round
            assert os.getpid() not in trainers


@pytest.mark.parametrize("when", ["asked", "answering", "measuring"])
def test_hanging_worker_with_full_pipe_raises_lost(when: str) -> None:
    """A pipe buffers a few pages. A process that writes more waits for a reader, and must not wait without end."""
    if when == "measuring":
        job = BackgroundJob(lambda model: os.kill(os.getpid(), signal.SIGSTOP), lambda: None, 0.5)
        assert job.start(1, {"w": np.zeros(3)}) == []
        with pytest.raises(TrainingFailed, match=r"round 1 did not finish within 0\.5 s"):
            job.finish()
        job.close()
        return
    worker = Worker(lambda question: bytes(2**22))
    if when == "asked":
        os.kill(worker.process_id or 0, signal.SIGSTOP)
        with pytest.raises(Lost, match=r"within 0\.5 s"):
            worker.ask(bytes(2**22), 0.5)
    else:
        worker.ask("", 1)
        assert worker.pipe.poll(5)
        os.kill(worker.process_id or 0, signal.SIGSTOP)
        with pytest.raises(Lost, match=r"within 0\.5 s"):
            worker.answer(0.5, large=True)
    worker.close(at_once=True)


def test_there_are_never_more_workers_than_a_round_has_slots() -> None:
    with contextlib.closing(pool(PLAN, in_memory(9), Adds(), workers=100_000)) as federation:
        model = {"w": np.zeros(3), "pid": np.array(0)}
        federation.train([TrainTask(1, client, model) for client in range(9)])
        assert len(workers_of(federation)) == PLAN.clients_per_round


def test_a_worker_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    federation = pool(PLAN, in_memory(2), Adds(), workers=2)
    with pytest.raises(TrainingFailed, match="no worker process could be started"):
        federation.train([TrainTask(1, 0, {"w": np.zeros(3)})])


def test_an_error_keeps_its_kind_and_its_hint_across_processes() -> None:
    for kind in FedForgetError.__subclasses__():
        again = pickle.loads(pickle.dumps(kind("what", hint="do this")))
        assert (type(again), again.message, again.hint) == (kind, "what", "do this")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"federation": "cloud"}, "unknown federation 'cloud'"),
        ({"federation": "pool", "workers": 0}, "0 workers"),
        ({"workers": 2}, "--workers is for the pool"),
        ({"federation": "pool", "patience": 0.0}, "cannot have 0 s"),
        ({"federation": "pool", "patience": float("inf")}, "cannot have inf s"),
        ({"federation": "pool", "patience": float("nan")}, "cannot have nan s"),
    ],
)
def test_impossible_workforces_are_refused_before_anything_is_made(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidInput, match=what):
        opened(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()
