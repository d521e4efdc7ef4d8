"""The pool with every round on disk, beside Apple's pfl, the fastest published simulator, which saves nothing.

pfl runs as its documentation sets it up for several processes: torchrun starts one for each worker (gloo, one thread
each), FederatedAveraging trains a cohort drawn with replacement, and all workers add up by all-reduce. It has an
environment of its own in `.benchmarks`, with the same version of torch. Its clients lie in memory, and each takes
its mini-batches from a new order of its samples. They take turns, run by run: FedForget, pfl, the bare loop of the
pool's section, FedForget, and so on; each of pfl's is compared with the mean of FedForget's before and after it. Times
of a round are the mean of a run's rounds without the first few. pfl gives whole clients to workers: with K=5 on two
workers one of them trains three, while the pool cuts the fifth client in two. With K=4 there is nothing to cut. The
ratio of processor time leaves out waiting, and what other programs do to the clock. One turn on a busy machine says
little by the clock: compare the loads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_pool import WORKERS, Case
from benchmarks.federations import SMALL, cnn, digits, images, mlp
from benchmarks.harness import give, options
from benchmarks.side_by_side import SKIPPED_ROUNDS, CannotRun, Comparison, Steady, compare
from fedforget.algorithm.plan import LocalOptimizer, Plan

TITLE = "Training, beside pfl"
HERE = Path(__file__).resolve().parent
PFL, TORCH = "0.6.0", version("torch").partition("+")[0]
ENVIRONMENT = HERE.parent / ".benchmarks" / f"pfl-{PFL}-torch-{TORCH}"
INSTALLING, TRAINING = 1800.0, 900.0  # seconds


def interpreter() -> str:
    """Return the Python of pfl's environment, which is made when it isn't there."""
    ready, found = ENVIRONMENT / "ready", str(ENVIRONMENT / "bin" / "python")
    if not ready.exists():
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        for wanted in (f"torch=={TORCH}", f"pfl[pytorch]=={PFL}"):  # torch first, so that pfl takes this one
            run([found, "-m", "pip", "install", "-q", wanted], INSTALLING, f"{wanted} could not be installed")
        ready.touch()
    return found


def run(command: list[str], patience: float, problem: str) -> None:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotRun(f"{problem}: nothing after {patience:.0f} s") from None
    if done.returncode:
        said = [line.strip() for line in done.stdout.splitlines() if "Error" in line] or ["no reason given"]
        raise CannotRun(f"{problem}: {said[0]}")


def in_pfl(comparison: Comparison, data: Path) -> Steady:
    """The steady rounds of one simulation."""
    plan = comparison.case.plan
    with tempfile.TemporaryDirectory(prefix="ff-pfl-") as directory:
        report = Path(directory) / "report"
        settings = {
            "model": comparison.model,
            "data": data,
            "report": report,
            "rounds": plan.rounds,
            "cohort": plan.clients_per_round,
            "steps": plan.local_steps,
            "batch": plan.batch_size,
            "lr": plan.local.lr,
        }
        command = [interpreter(), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
        command += [str(HERE / "pfl_app" / "train.py"), *(f"--{name}={value}" for name, value in settings.items())]
        run(command, TRAINING, "the simulation failed")
        reports = [json.loads(Path(f"{report}.{rank}").read_text()) for rank in range(WORKERS)]
    require_same_work(comparison, reports)
    return steady(plan.rounds, [each["marks"] for each in reports])


def require_same_work(comparison: Comparison, reports: list[dict[str, Any]]) -> None:
    ours = {name: list(weights.shape) for name, weights in comparison.case.model().state_dict().items()}
    for report in reports:
        if (report["shapes"], report["workers"], len(report["marks"])) != (ours, WORKERS, comparison.case.plan.rounds):
            raise SystemExit(f"{comparison.case.name}: pfl trained another model, or not all rounds on all workers")


def steady(rounds: int, workers: list[list[tuple[float, float]]]) -> Steady:
    """The first worker's clock, and the processor time of all of them."""
    count = rounds - SKIPPED_ROUNDS
    spans = [[after - before for before, after in zip(marks[SKIPPED_ROUNDS - 1], marks[-1], strict=True)]
             for marks in workers]  # fmt: skip
    return Steady(spans[0][0] / count, sum(processors for _, processors in spans) / count)


def comparisons(*, quick: bool) -> list[Comparison]:
    small, large = digits(60), None if quick else images(300, 200)
    found = []
    for slots in (5, 4):
        if large is not None:
            plan = Plan(slots, 10, 10, 6, LocalOptimizer(lr=0.01))
            found.append(Comparison(Case("CNN, 300 clients of 200 images", cnn, large, plan), "cnn", 1.0, 5))
        plan = Plan(slots, 10, 10, 20 if quick else 60, LocalOptimizer(lr=0.1))
        found.append(Comparison(Case("digits of 60 clients, MLP", lambda: mlp(SMALL), small, plan), "mlp", 1.0, 5))
    return sorted(found, key=lambda each: each.model)


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    figures, plotted, how = [], [], __doc__ or ""
    for comparison in comparisons(quick=chosen.quick):
        try:
            interpreter()
            made, bars = compare(comparison, 1 if chosen.quick else chosen.turns or comparison.turns, "pfl", in_pfl)
            figures += made
            plotted.append(bars)
        except CannotRun as reason:
            print(f"pfl: {reason}", file=sys.stderr)
            how += f"\n**pfl could not be run ({reason}). No comparison.**\n"
            break
    give(TITLE, how, figures, data=plotted)


if __name__ == "__main__":
    main()
