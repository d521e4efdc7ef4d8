"""The command line, from the start of a process to its end, or to the first round that it commits.

`fedforget forget` on the digits asks for samples that no draw held. What is recomputed begins with torch; the time to
the first round ends when its model lies in the run directory, looked up every two milliseconds. Compiled modules are
written also where PYTHONDONTWRITEBYTECODE is set: without them every command compiles all of FedForget.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import give, median_figure, options, scratch
from fedforget.store import run_directory

REPETITIONS = 7
DIGITS = ("--clients", "20", "--rounds", "5", "--clients-per-round", "2", "--local-steps", "2", "--batch-size", "2")
HEAVY = ("torch", "sklearn", "scipy")
STEPS = 2  # of a round
PATIENCE = 120.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedforget", *arguments]


def to_the_end(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run(command(*arguments), check=True, capture_output=True, env=ENVIRONMENT)
    return time.perf_counter() - start


def to_a_new_model(run: Path, *arguments: str) -> float:
    """Seconds until a model is there that wasn't there before, apart from the initial one."""
    before, wanted = models(run), 1 if run.exists() else 2
    start = time.perf_counter()
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command(*arguments), stdout=quiet, stderr=quiet, env=ENVIRONMENT) as process:
        while len(models(run) - before) < wanted:
            if process.poll() not in {None, 0} or time.perf_counter() - start > PATIENCE:
                raise SystemExit(f"no new model came of: {' '.join(arguments)}")
            time.sleep(0.002)
        return time.perf_counter() - start


def models(run: Path) -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        return {each.name for each in (run / "models").iterdir() if each.suffix == ".safetensors"}
    return set()


def chosen_samples(path: Path, *, used: bool) -> list[tuple[str, str]]:
    """Samples of different clients that steps of the first round used, or that no step used."""
    found = []
    with run_directory.reading(path) as run:
        for client in run.server.roster:
            first = run.clients.first_steps(client)
            wanted = [
                sample
                for sample in run.clients.samples(client)
                if (sample in first and first[sample] <= STEPS if used else sample not in first)
            ]
            found += [(str(client), str(sample)) for sample in wanted[:1]]
    return found


def imported(*arguments: str) -> list[str]:
    """Which heavy libraries a command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command(*arguments)[1:]],
        check=True,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    return [name for name in HEAVY if name in names]


def main() -> None:
    chosen = options(__doc__)
    repetitions = 2 if chosen.quick else REPETITIONS
    with scratch() as directory:
        training = [
            to_a_new_model(
                directory / str(number), "train", "--out", str(directory / str(number)), *DIGITS, "--seed", "1"
            )
            for number in range(repetitions)
        ]
        path = directory / "0"
        spare = chosen_samples(path, used=False)
        free = [
            to_the_end("forget", str(path), "--client", client, "--sample", sample, "--basis", "exogenous")
            for client, sample in spare[:repetitions]
        ]
        client, sample = spare[-1]
        heavy = imported("forget", str(path), "--client", client, "--sample", sample, "--basis", "exogenous")
        again = []
        for number in range(repetitions):
            run = directory / str(number)
            client, sample = chosen_samples(run, used=True)[0]
            again.append(
                to_a_new_model(run, "forget", str(run), "--client", client, "--sample", sample, "--basis", "exogenous")
            )
        status = [to_the_end("status", str(path)) for _ in range(repetitions)]
    figures = [
        median_figure("fedforget forget, nothing to recompute", free, "s", at_most=0.6,
                      note=f"imports {', '.join(heavy) or 'neither torch nor scikit-learn'}"),
        median_figure("fedforget train, to the first round", training, "s", at_most=2.2),
        median_figure("fedforget forget, to the first recomputed round", again, "s", at_most=2.2),
        median_figure("fedforget status", status, "s"),
    ]  # fmt: skip
    give("The command line", __doc__, figures)


if __name__ == "__main__":
    main()
