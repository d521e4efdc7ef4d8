"""The faults of a deployment on real processes, and a search for what Flower keeps. `make flower-torture`.

Writes its section of docs/reliability.md. The results are in flower_torture_results.json, so that parts of the
campaign may run alone: `python -m tests.flower_torture NaN SuperLink` runs the faults whose names have these words, and
`python -m tests.flower_torture search` the search. Every process that it starts ends with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fedforget.errors import FedForgetError
from tests.deployment import faults, own_app, what_is_left
from tests.deployment.parties import Parties
from tests.deployment.superlink import Deployment, deployment

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "reliability.md", Path(__file__).with_name("flower_torture_results.json")
HEADING, NEXT = "## Deployments on Flower", "## Mutants made by a tool"
SEARCH, SIMULATED, APP = (
    "search",
    "search of a simulation",
    "kill -9 of the SuperLink under a user's app, then `flwr run` again",
)
TEXT = """Written by `make flower-torture`: a SuperLink with `--database`, five SuperNodes with TLS and node
authentication, each with one client's data, all on one machine with two cores that others used, too. Each fault happens
to real processes. Then the same command is given again, and the state must be, byte for byte, that of an undisturbed
run in one process without the clients that were erased, with one receipt for each erasure. Seconds are those of the
fault and of the commands after it, without the start of the processes."""
SEARCHED = """After training, a sample was erased at its client and a client at the server. The files were searched, at
every offset of every byte and in file names, for their ids, content digests, and pieces of 16 bytes of the models and
updates that were superseded; then once more after `fedforget superlink-purge`."""


def results() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def keep(name: str, **facts: Any) -> None:
    found = results() | {name: {**facts, "day": f"{datetime.now(UTC):%Y-%m-%d}"}}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def section() -> str:
    found = results()
    names = (*faults.FAULTS, APP)
    rows = [_row(name, found.get(name)) for name in names]
    passed = sum(bool(found.get(name, {}).get("equal")) for name in names)
    table = "\n".join(["| fault | the state is equal | seconds | day |", "|---|---|---:|---|", *rows])
    parts = [HEADING, TEXT, table, f"{passed} of {len(names)} faults have run and passed."]
    if SEARCH in found:
        parts += ["### What Flower keeps", SEARCHED, what_is_left.table(found[SEARCH])]
    if SIMULATED in found:
        one = found[SIMULATED]
        parts.append(
            f"After an erasure in a Flower simulation, the directory for temporary files, that of Ray and the run held "
            f"{sum(one['hits'].values())} of {one['pieces']:,} pieces of superseded models ({one['files']} files, "
            f"{one['bytes']:,} bytes)."
        )
    return "\n\n".join(parts)


def _row(name: str, result: dict[str, Any] | None) -> str:
    if result is None:
        return f"| {name} | has not run yet | | |"
    return f"| {name} | {'yes' if result['equal'] else 'NO'} | {result['seconds']:.0f} | {result['day']} |"


def write_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, after = page.partition(NEXT)
    before = before.partition(HEADING)[0]
    PAGE.write_text(f"{before.rstrip()}\n\n{section()}\n\n{NEXT}{after}", encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")


def tried(name: str, there: Deployment, live: Callable[[], tuple[bool, float]]) -> bool:
    """Run one part of the campaign, and keep its result."""
    try:
        equal, seconds = live()
    except (AssertionError, FedForgetError, OSError, subprocess.SubprocessError, StopIteration) as error:
        sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n{there.log('superlink')[-2000:]}\n")
        equal, seconds = False, 0.0
    keep(name, equal=equal, seconds=round(seconds, 1))
    sys.stdout.write(f"| {name} | {'yes' if equal else 'NO'} | {seconds:.0f} |\n")
    sys.stdout.flush()
    return equal


def campaign(names: list[str]) -> list[str]:
    """Live through faults on the same nodes; after one that failed, on new ones. Return those that failed."""
    failed, waiting = list[str](), list(names)
    while waiting:
        with deployment() as there:
            parties = Parties(there, faults.CLIENTS, faults.ROUNDS)
            parties.start(init=False)
            while waiting:
                name = waiting.pop(0)
                if not tried(name, there, partial(faults.lived, name, parties)):
                    failed.append(name)
                    break
    return failed


def main() -> None:
    words = [each for each in sys.argv[1:] if each != "--page"]
    chosen = [
        name for name in (*faults.FAULTS, APP, SEARCH, SIMULATED) if not words or any(word in name for word in words)
    ]
    failed, began = list[str](), time.monotonic()
    if "--page" not in sys.argv:
        failed += campaign([name for name in chosen if name in faults.FAULTS])
        if APP in chosen:
            with deployment() as there:
                failed += [] if tried(APP, there, partial(own_app.lived, there)) else [APP]
        if SEARCH in chosen:
            with deployment() as there:
                keep(SEARCH, **what_is_left.after_erasures(there))
        if SIMULATED in chosen:
            keep(SIMULATED, **what_is_left.after_a_simulation())
    write_page()
    sys.stdout.write(f"{len(chosen) - len(failed)} of {len(chosen)} in {(time.monotonic() - began) / 60:.0f} minutes\n")
    sys.exit(f"failed: {'; '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
