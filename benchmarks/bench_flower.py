"""The pool with every round on disk, beside Flower's simulation of the same work, which saves nothing.

Flower runs as its documentation sets it up: `flwr run` of an app with a ServerApp, FedAvg and a ClientApp that builds
the model, loads what the message holds, trains and replies; one processor and one thread for each client, evaluation
off. They take turns, run by run: FedForget, Flower, the bare loop of the pool's section, FedForget, and so on; each of
Flower's is compared with the mean of FedForget's before and after it, and with the loop's. Seconds a round are the mean
of a run's rounds without the first few, which start processes and import libraries. (Not their median: Flower asks for
results every tenth of a second, so that a short round takes one tenth or two, and a median jumps between them.) The
ratio of the MLP mostly measures this poll. Flower samples K different clients, FedForget fills K slots, so that a
client now and then fills two. With K=5 on two workers a part of the lead is cutting the fifth client in two.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.bench_pool import Case
from benchmarks.federations import SMALL, cnn, digits, images, mlp
from benchmarks.harness import give, options
from benchmarks.side_by_side import SKIPPED_ROUNDS, CannotRun, Comparison, Steady, compare
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.federation.flower.processes import QUIET

TITLE = "Training, beside Flower's simulation"
APP = Path(__file__).resolve().parent / "flower_app"
CNN_LIMIT, MLP_LIMIT = 1.8, 10.0
ATTEMPTS = 2  # Ray now and then hangs while it starts
PATIENCE = 150.0  # seconds for a whole simulation; starting takes about 25
GRACE = 5.0


# Flower


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def in_flower(comparison: Comparison, data: Path) -> Steady:
    """The steady rounds of one simulation."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return Steady(statistics.mean(simulate(comparison, data)))
        except CannotRun as reason:
            print(f"flower, attempt {attempt}: {reason}", file=sys.stderr)
            last = reason
    raise last


def simulate(comparison: Comparison, data: Path) -> list[float]:
    plan, clients = comparison.case.plan, len(comparison.case.data.roster)
    with own_home() as (home, environment):
        report = home / "report.json"
        settings = {
            "model": f'"{comparison.model}"',
            "data": f'"{data}"',
            "report": f'"{report}"',
            "clients": clients,
            "rounds": plan.rounds,
            "clients-per-round": plan.clients_per_round,
            "local-steps": plan.local_steps,
            "batch-size": plan.batch_size,
            "lr": plan.local.lr,
        }
        command = [
            *(str(Path(sys.executable).with_name("flwr")), "run", str(APP), "local", "--stream"),
            *("--run-config", " ".join(f"{key}={value}" for key, value in settings.items())),
            *("--federation-config", f"num-supernodes={clients} client-resources-num-cpus=1"),
        ]
        with (home / "output.txt").open("w+") as output:
            try:
                subprocess.run(
                    command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False
                )
            except subprocess.TimeoutExpired:
                raise CannotRun(f"the simulation did not end within {PATIENCE:.0f} s") from None
            if not report.exists():
                output.seek(0)
                said = [line.strip() for line in output if line.strip()]
                raise CannotRun("the simulation failed" + (f": {said[-1]}" if said else ""))
        marks = json.loads(report.read_text())
    if len(marks) != plan.rounds + 1:
        raise CannotRun(f"{len(marks) - 1} rounds were done instead of {plan.rounds}")
    return [after - before for before, after in pairwise(marks)][SKIPPED_ROUNDS:]


@contextlib.contextmanager
def own_home() -> Iterator[tuple[Path, dict[str, str]]]:
    """A home and ports for one simulation; whatever it started is ended with it."""
    with tempfile.TemporaryDirectory(prefix="ff-flwr-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": directory,
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": free_port(),
            "FLWR_LOCAL_CONTROL_API_PORT": free_port(),
            "RAY_TMPDIR": directory,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        try:
            yield home, environment
        finally:
            end_all(f"FLWR_HOME={directory}")


def end_all(mark: str) -> None:
    """End every process that was started with this in its environment: the SuperLink and Ray stay otherwise."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE
        for process in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, how)
        while marked(mark):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        else:
            return


def marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def comparisons(*, quick: bool) -> list[Comparison]:
    small = Plan(5, 10, 10, 20 if quick else 60, LocalOptimizer(lr=0.1))
    found = [Comparison(Case("digits of 60 clients, MLP", lambda: mlp(SMALL), digits(60), small), "mlp", MLP_LIMIT, 5)]
    if not quick:
        large = Plan(5, 10, 10, 10, LocalOptimizer(lr=0.01))
        found.insert(
            0, Comparison(Case("CNN, 300 clients of 200 images", cnn, images(300, 200), large), "cnn", CNN_LIMIT, 3)
        )
    return found


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    if importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None:
        give(TITLE, f"{__doc__}\nFlower is not installed here (`pip install -e .[simulation]`): left out.", [])
        return
    figures, plotted, how = [], [], __doc__ or ""
    for comparison in comparisons(quick=chosen.quick):
        try:
            made, bars = compare(
                comparison, 1 if chosen.quick else chosen.turns or comparison.turns, "Flower", in_flower
            )
            figures += made
            plotted.append(bars)
        except CannotRun as reason:
            how += (
                f"\n**{comparison.case.name}: Flower could not be run, {ATTEMPTS} times ({reason}). No comparison.**\n"
            )
    give(TITLE, how, figures, data=plotted)


if __name__ == "__main__":
    main()
