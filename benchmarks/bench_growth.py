"""How a round's time and a run's peak memory grow with K, E, R, M and N, each varied alone around one plan.

K clients a round, E local steps, R rounds, M clients, N samples for each. Each run is a process of its own with a pool
of two workers; it trains an MLP of 2 MB with every round on disk. Time is the median round. Memory is the highest sum
over the run's processes of what each holds, shared pages counted once and libraries left out, looked up every tenth of
a second; "before the run" is what Python and torch take, and the data. From one end of each range to the other:
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.federations import FEATURES, LARGE, SEED, mlp, noise
from benchmarks.harness import MB, Figure, family, give, options, scratch
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.run import Run

WORKERS, BATCH = 2, 10
BASE = {"K": 4, "E": 10, "R": 20, "M": 100, "N": 100}
VALUES = {
    "K": (1, 2, 4, 8, 16, 32),
    "E": (1, 3, 10, 30, 100),
    "R": (10, 20, 40, 80, 160),
    "M": (10, 100, 1000, 10_000),
    "N": (10, 100, 1000, 10_000),
}
MEANING = {
    "K": "clients a round K",
    "E": "local steps E",
    "R": "rounds R",
    "M": "clients M",
    "N": "samples of a client N",
}
OTHERS = {"M": {"N": 20}, "N": {"M": 20}}  # so that the largest have 200,000 samples
INTERVAL = 0.1
Point = dict[str, float]


def one_run(sizes: dict[str, int]) -> None:
    """In a process of its own: says how much memory it holds before, then trains."""
    torch.set_num_threads(1)
    module = mlp(LARGE)
    module(torch.zeros(BATCH, FEATURES)).sum().backward()  # brings torch's kernels in
    module.zero_grad()
    data = noise(sizes["M"], sizes["N"])
    before = held(Path("/proc/self"))
    plan = Plan(sizes["K"], BATCH, sizes["E"], sizes["R"], LocalOptimizer(lr=0.01))
    marks = []
    with scratch() as directory:
        run = Run(directory / "run", plan, model=module, data=data, seed=SEED, federation="pool", workers=WORKERS)
        run.train(on_round=lambda _: marks.append(time.perf_counter()))
    rounds = [after - before_ for before_, after in pairwise(marks)]
    print(json.dumps({"before": before, "round": statistics.median(rounds)}))


def held(process: Path) -> float:
    """The memory of a process in MB without files it has mapped; of pages shared with others its part."""
    fields = (line.split() for line in (process / "smaps_rollup").read_text().splitlines())
    return sum(int(field[1]) * 1024 / MB for field in fields if field[0] in {"Pss_Anon:", "Pss_Shmem:"})


def watched(sizes: dict[str, int]) -> Point:
    """One run, seen from outside."""
    command = [sys.executable, "-m", "benchmarks.bench_growth", "--child", *map(str, sizes.values())]
    peak = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            with contextlib.suppress(OSError):  # a process that ended meanwhile holds no memory
                peak = max(peak, sum(map(held, family(child.pid))))
            time.sleep(INTERVAL)
        said = child.stdout.read() if child.stdout is not None else ""
    if child.returncode:
        raise SystemExit(f"the run with {sizes} failed")
    return {**json.loads(said), "peak": peak}


def sweep(name: str, values: tuple[int, ...]) -> list[dict[str, Any]]:
    points = []
    for value in values:
        sizes = {**BASE, **OTHERS.get(name, {}), name: value}
        points.append({"value": value, **watched(sizes)})
    return points


def figures_of(name: str, points: list[dict[str, Any]]) -> list[Figure]:
    first, last = points[0], points[-1]
    times = f"{last['value'] / first['value']:,.0f}"
    span = f"{MEANING[name]}, {first['value']:,} → {last['value']:,}"
    others = ", ".join(f"{key}={value}" for key, value in {**BASE, **OTHERS.get(name, {})}.items() if key != name)
    return [
        Figure(
            f"{span}: time of a round",
            last["round"] / first["round"],
            "×",
            note=f"{1e3 * first['round']:.1f} → {1e3 * last['round']:.1f} ms for {times} × as many; {others}",
        ),
        Figure(
            f"{span}: peak memory",
            last["peak"] / first["peak"],
            "×",
            note=f"{first['peak']:.0f} → {last['peak']:.0f} MB, of which before the run "
            f"{first['before']:.0f} → {last['before']:.0f} MB",
        ),
    ]


def main() -> None:
    chosen = options(__doc__)
    if chosen.child:
        one_run(dict(zip(BASE, map(int, chosen.child), strict=True)))
        return
    sweeps = {name: sweep(name, values[:2] if chosen.quick else values) for name, values in VALUES.items()}
    figures = [figure for name, points in sweeps.items() for figure in figures_of(name, points)]
    data = {
        name: {
            "label": MEANING[name],
            "here": {**BASE, **OTHERS.get(name, {})}[name],
            "others": {key: value for key, value in {**BASE, **OTHERS.get(name, {})}.items() if key != name},
            "points": points,
        }
        for name, points in sweeps.items()
    }
    give("How time and memory grow", __doc__, figures, data=data)


if __name__ == "__main__":
    main()
