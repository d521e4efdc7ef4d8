"""FedForget in a Flower simulation with 3,556 clients, beside Flower's bare exchange and beside the pool.

The paper's FEMNIST plan (E = 20, b = 10) with K = 10 and the CNN of 26 MB; FEMNIST's clients by reference where the
dataset is found, else noise of their size. In one simulation of 10 nodes and two processes, rounds of FedForget take
turns with rounds that only do what federated averaging does: send the model to K nodes, take as many local steps, send
K models back, average them in memory. The bare exchange takes them with FedForget's learner, the plain app with a loop
of PyTorch. FedForget beside that draws clients and mini-batches, checks contents, notes first uses, averages in
float64 in the order of clients, hashes the model and writes it to disk. Seconds a round are of rounds without each
turn's first. Memory is of FedForget alone, before the others. The pool trains the same plan in two processes. `--long`
takes more turns.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_flower import own_home
from benchmarks.harness import MB, Figure, give, in_own_process, median_figure, options, own_peak, scratch
from benchmarks.side_by_side import CannotRun
from fedforget import Run

TITLE = "Many clients in Flower's simulation"
APP = Path(__file__).resolve().parent / "flower_scale_app"
sys.path.insert(0, str(APP))
CLIENTS, ROUNDS, NODES, WORKERS = 3_556, 4, 10, 2
ACTORS = f"init-args-num-cpus={WORKERS}"
KINDS = ("bare", "plain")
LIMIT = 1.10
PATIENCE = 900.0


def simulated(directory: Path, turns: int) -> dict[str, Any]:
    """What the app's report says."""
    with own_home() as (home, environment):
        command = [
            *(str(Path(sys.executable).with_name("flwr")), "run", str(APP), "local", "--stream"),
            *("--run-config", f"directory='{directory}' turns={turns} rounds={ROUNDS} clients={CLIENTS}"),
            *(
                "--federation-config",
                f"num-supernodes={NODES} client-resources-num-cpus=1 init-args-num-cpus={WORKERS}",
            ),
        ]
        with (home / "output.txt").open("w+") as output:
            try:
                subprocess.run(
                    command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False
                )
            except subprocess.TimeoutExpired:
                raise CannotRun(f"the simulation did not end within {PATIENCE:.0f} s") from None
            if not (directory / "report.json").exists():
                output.seek(0)
                said = [line.strip() for line in output if line.strip()]
                raise CannotRun("the simulation failed" + (f": {said[-1]}" if said else ""))
    found: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return found


def in_pool(directory: Path) -> dict[str, Any]:
    """The same plan in the pool: marks of rounds, and the peak memory of this process and of the largest worker."""
    from flower_scale.task import build, plan, samples_of  # noqa: PLC0415 (of the app)

    torch.set_num_threads(1)
    data = {client: samples_of(client) for client in range(CLIENTS)}
    marks, workers = [], [0.0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            workers.append(max((peak_of(child) for child in children()), default=0.0))

    run = Run(directory, plan(ROUNDS), model=build(), data=data, seed=7, federation="pool", workers=WORKERS)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run.train(on_round=lambda _: marks.append(time.perf_counter()))
    finally:
        stop.set()
        watcher.join()
    return {"marks": marks, "peak": own_peak() * MB, "worker": max(workers)}


def children() -> list[str]:
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [child for each in found for child in each.read_text().split()]


def peak_of(process: str) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0.0)


def rounds_of(marks: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(marks)]


def beside(taken: dict[str, list[list[float]]], kind: str) -> list[float]:
    """The ratio of each turn."""
    pairs = zip(taken["ours"], taken[kind], strict=True)
    return [statistics.mean(own) / statistics.mean(other) for own, other in pairs]


def figures_of(found: dict[str, Any], pool: dict[str, Any]) -> list[Figure]:
    clock, processors = (
        {name: [rounds_of([mark[which] for mark in marks]) for marks in found[name]] for name in ("ours", *KINDS)}
        for which in (0, 1)
    )
    ours, bare, plain = (list(chain.from_iterable(clock[name])) for name in ("ours", *KINDS))
    what = f"{'FEMNIST' if found['femnist'] else 'noise'}, K = {NODES}"
    server, actors = found["memory"]["flwr-simulation"], found["memory"]["ray::ClientAppActor"]
    return [
        median_figure(
            "FedForget's round beside the bare exchange's", beside(clock, "bare"), "×", at_most=LIMIT, note=what
        ),
        median_figure("the same in processor time", beside(processors, "bare"), "×"),
        median_figure("FedForget's round beside a plain app's", beside(clock, "plain"), "×", note="with PyTorch's SGD"),
        median_figure("the same in processor time, beside a plain app", beside(processors, "plain"), "×"),
        median_figure("a round of FedForget in Flower", ours, "s"),
        median_figure("a round of the bare exchange in Flower", bare, "s"),
        median_figure("a round of a plain app in Flower", plain, "s"),
        median_figure("a round in the pool", rounds_of(pool["marks"]), "s", note=f"{WORKERS} processes"),
        Figure("make the run in Flower", found["making"], "s", note=f"{CLIENTS:,} clients"),
        Figure("peak memory of the server's process in Flower", max(server) / MB, "MB", note="with Flower's own"),
        Figure("peak memory of a process that computes in Flower", max(actors) / MB, "MB", note=f"of {len(actors)}"),
        Figure("peak memory of the pool's parent", pool["peak"] / MB, "MB"),
        Figure("peak memory of a worker of the pool", pool["worker"] / MB, "MB", note="shared pages counted too"),
    ]


def main() -> None:
    chosen = options(__doc__)
    if chosen.child:
        print(json.dumps(in_pool(Path(chosen.child[0]))))
        return
    if importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None:
        give(TITLE, f"{__doc__}\nFlower is not installed here (`pip install -e .[simulation]`): left out.", [])
        return
    turns = chosen.turns or (1 if chosen.quick else 10 if chosen.long else 3)
    with scratch() as directory:
        try:
            found = simulated(directory, turns)
        except CannotRun as reason:
            give(TITLE, f"{__doc__}\n**Flower could not be run ({reason}).**", [])
            return
        pool = in_own_process("benchmarks.bench_flower_scale", "--child", directory / "pool")
    give(TITLE, __doc__, figures_of(found, pool))


if __name__ == "__main__":
    main()
