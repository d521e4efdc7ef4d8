"""``make torture``: every crash point, every kind of damage, long lives of requests; writes docs/reliability.md.

The same tests that ``make check`` runs in part, with every point instead of a choice of them.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.cli.test_kill import SCENARIOS
from tests.tally import FILE

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
FILES = (
    "tests/cli/test_kill.py", "tests/requests", "tests/evidence/test_receipts.py", "tests/store/test_power_cut.py",
    "tests/store/test_crash_check.py", "tests/cli/test_kill_in_receipts.py", "tests/cli/test_damage.py",
    "tests/store/test_seals.py", "tests/cli/test_interruptions.py", "tests/cli/test_resources.py",
    "tests/store/test_hostile.py", "tests/store/test_hostile_client.py",
)  # fmt: skip
ONE_BY_ONE = ("--dist", "load", "--maxschedchunk", "1")  # the longest come first; a free worker takes the next
PYTEST = ("-n", "logical", "--maxprocesses", "8", *ONE_BY_ONE, "-m", "slow or not slow")
HANG = "faulthandler_timeout=3600"  # a single test may try many hundred points


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        tally = Path(directory) / "tally"
        command = [sys.executable, "-m", "pytest", *PYTEST, "-o", HANG, *FILES]
        if subprocess.run(command, cwd=ROOT, env={**os.environ, FILE: str(tally)}, check=False).returncode:
            raise SystemExit("torture found something: nothing was written")
        counts: Counter[str] = Counter()
        for line in tally.read_text(encoding="utf-8").splitlines():
            what, count = json.loads(line)
            counts[what] += count
    kept_from = "## Deployments on Flower"  # `make flower-torture` and `make mutation` write what follows
    _, heading, rest = PAGE.read_text(encoding="utf-8").partition(kept_from)
    kept = f"\n{heading}{rest}" if heading else ""
    PAGE.write_text(page(counts, (time.monotonic() - began) / 60) + kept, encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")


def commit() -> str:
    """Return the commit that was tried; a checkout with changes is marked."""
    described = ("git", "describe", "--always", "--dirty", "--exclude", "*")
    return subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def page(counts: Counter[str], minutes: float) -> str:
    about = (
        f"Written by `make torture` on {datetime.now(UTC):%Y-%m-%d}: fedforget {version('fedforget')} (commit "
        f"{commit()}), Python "
        f"{platform.python_version()}, {platform.system()}, {os.cpu_count()} cores, {minutes:.0f} minutes."
    )
    parts = [f"# Reliability\n\n{about} {INTRODUCTION}"]
    for kind, title, text in SECTIONS:
        found = {what.partition("/")[2]: count for what, count in counts.items() if what.startswith(kind + "/")}
        if not found:
            raise SystemExit(f"nothing was counted for {title!r}: nothing was written")
        order = [*SCENARIOS.values(), *sorted(found)]
        rows = [f"| {what} | {found[what]:,} |" for what in sorted(found, key=order.index)]
        if kind in ADDED_UP:
            rows.append(f"| total | {sum(found.values()):,} |")
        parts.append(f"## {title}\n\n{text}\n\n| | |\n|---|---:|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """Every count
is of cases that passed: a single failure would have stopped the writing of this page. `make check` runs a part of
each."""

ADDED_UP = {"kills", "power", "refusals", "damage", "receipts", "hostile"}
SECTIONS = (
    (
        "kills",
        "Killed, and recovered",
        """A process is killed with SIGKILL at the n-th write, fsync, rename, unlink or truncation, for every n,
including SQLite's own (by strace, also in the middle of a commit), and before calls that touch the disk in any thread.
Then the same command is given again. The run directory's function part must be, byte for byte, that of an undisturbed
run, with one receipt per request and no other files. The first six scenarios are tried at every point, the others at
some.""",
    ),
    (
        "power",
        "The power fails",
        """Writes that were not synced are present, missing, torn or reordered: every possible disk for our own files;
for SQLite's commits, its write-ahead log cut and altered at and inside every frame. The same command must finish the
work, and work that was reported as done must survive.""",
    ),
    (
        "refusals",
        "The system refuses",
        """Each system call that can fail does so, once or from then on: the disk is full, a sync fails, the directory
is read-only. The command must report it with a remedy, and the run must be unchanged or finished by the same command.
Limits on open files and on memory in a worker are tried too, and not counted here.""",
    ),
    (
        "damage",
        "Damaged files",
        """In every region of each file of a run, a byte or a single bit is flipped, and each file is cut. Every command
must name the file and refuse it, or give the answer of the intact run because it does not rely on the file; `doctor`
must report the damage. (A byte of record.db that carries no content may change unnoticed.) The write-ahead logs that a
crash leaves are altered, cut at and inside every frame, and deleted: the command refuses them by name, or nothing was
lost.""",
    ),
    (
        "lives",
        "State machine",
        """Random sequences of submitting, submitting twice, cancelling, training, forgetting, adding, crashing and
verifying. After each step the run must be, byte for byte, what learning from scratch on the present data gives.""",
    ),
    (
        "markers",
        "Nothing left behind",
        """Random 64-bit markers in ids and features, and digests and weights of every model that was replaced, are
searched after the purge in every byte and file name of the run directory (free pages and logs of its databases
included), of the log and of an export. The search finds them when a step of the purge is left out.""",
    ),
    (
        "hostile",
        "Directories made by an attacker",
        """Over a thousand kinds: links, pipes, directories and huge files in place of files, odd headers, views,
triggers, wrong values in every column, deeply nested or endless texts. Every command must refuse the directory or give
the right answer, within ten seconds and a gigabyte, and touch nothing outside. A reading command must change nothing
inside.""",
    ),
    (
        "receipts",
        "Forged receipts",
        """Every field of a receipt is altered, in the public form and in the full one.""",
    ),
)


if __name__ == "__main__":
    main()
