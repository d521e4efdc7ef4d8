"""Peak memory of a run, by rounds R and local steps E: it must not grow with T·d (T = E·R steps, d weights).

Each run has a process of its own, which trains an MLP of about 2 MB with every round on disk. Freed blocks go back to
the system at once (MALLOC_MMAP_THRESHOLD_), so that the peak is of what a run holds; as the allocator is set otherwise,
the holes it leaves add up to 15 MB, after 50 rounds as after 800.
"""

from __future__ import annotations

import json
import statistics

import torch

from benchmarks.federations import FEATURES, LARGE, SEED, mlp, noise
from benchmarks.harness import MB, Figure, give, in_own_process, options, own_peak, scratch
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.run import Run

SLOTS, BATCH = 4, 8
MODELS_OF_GROWTH = 4  # a few models' worth is the allocator's play, not storage


def one_run(rounds: int, local_steps: int, keep: str) -> dict[str, float]:
    module = mlp(LARGE)
    # The first step brings torch's kernels in; that is not the run's memory.
    module(torch.zeros(BATCH, FEATURES)).sum().backward()
    module.zero_grad()
    before = own_peak()
    plan = Plan(SLOTS, BATCH, local_steps, rounds, LocalOptimizer(lr=0.01), keep=keep)
    with scratch() as directory:
        run = Run(directory / "run", plan, model=module, data=noise(20, 30), seed=SEED)
        run.train()
        model_bytes = run.model_bytes()
        on_disk = sum(file.stat().st_size for file in (directory / "run").rglob("*") if file.is_file())
    return {"before": before, "peak": own_peak(), "model": model_bytes / MB, "disk": on_disk / MB}


def medians(repetitions: int, rounds: int, local_steps: int, keep: str) -> dict[str, float]:
    takes = [
        in_own_process("benchmarks.bench_memory", "--child", rounds, local_steps, keep) for _ in range(repetitions)
    ]
    return {key: statistics.median(take[key] for take in takes) for key in takes[0]}


def measure(repetitions: int, few: int, many: int, steps: int) -> list[Figure]:
    figures = []
    least = {keep: medians(repetitions, few, 1, keep) for keep in ("every", "ends")}
    longer = [(f"R={few} → R={many}, E=1", keep, many, 1) for keep in ("every", "ends")]
    for label, keep, rounds, local_steps in [*longer, (f"E=1 → E={steps}, R={few}", "every", few, steps)]:
        small, large = least[keep], medians(repetitions, rounds, local_steps, keep)
        model = small["model"]
        growth = (rounds * local_steps - few) * model
        figures.append(
            Figure(
                f"growth of peak memory, {label}, keep={keep}",
                large["peak"] - small["peak"],
                "MB",
                at_most=MODELS_OF_GROWTH * model,
                note=f"{small['peak']:.0f} → {large['peak']:.0f} MB, {small['before']:.0f} before the run; a model is "
                f"{model:.1f} MB, keeping every step's in memory would add {growth:.0f} MB; on disk "
                f"{small['disk']:.0f} → {large['disk']:.0f} MB",
            )
        )
    return figures


def main() -> None:
    chosen = options(__doc__)
    if chosen.child:
        rounds, local_steps, keep = chosen.child
        print(json.dumps(one_run(int(rounds), int(local_steps), keep)))
        return
    give("Memory", __doc__, measure(1, 10, 50, 10) if chosen.quick else measure(5, 20, 200, 20))


if __name__ == "__main__":
    main()
