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
from tests.tally import FILE

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
FILES = (
    "tests/cli/test_kill.py", "tests/requests", "tests/evidence/test_receipts.py", "tests/store/test_power_cut.py",
    "tests/cli/test_damage.py", "tests/store/test_seals.py", "tests/cli/test_interruptions.py",
    "tests/cli/test_resources.py",
)  # fmt: skip
PYTEST = ("-n", "logical", "--maxprocesses", "8", "--dist", "worksteal", "-m", "slow or not slow")
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
    PAGE.write_text(page(counts, (time.monotonic() - began) / 60), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")


def page(counts: Counter[str], minutes: float) -> str:
    rows = "\n".join(f"| {what} | {count:,} |" for what, count in sorted(counts.items()))
    about = (
        f"Written by `make torture` on {datetime.now(UTC):%Y-%m-%d}: fedforget {version('fedforget')}, Python "
        f"{platform.python_version()}, {platform.system()}, {os.cpu_count()} cores, {minutes:.0f} minutes."
    )
    return f"# Reliability\n\n{about} {PROSE[0]}\n\n| tried | count |\n|---|---|\n{rows}\n{PROSE[1]}"


PROSE = (
    """Every count is of cases that
came out as they must; one that did not would have stopped the writing of this page. `make check` runs a part of
each.""",
    """
**Killed.** A process of its own is ended by SIGKILL before each single operation that touches the disk (SQLite's
statements, fsync, rename, unlink), and from outside, by strace, in system calls, which reaches into the middle of
SQLite's commits. The same command is given again, and the run directory's function part and the receipts must be those
of an undisturbed run.

**State machine.** Random lives of submitting, asking twice, cancelling, training, forgetting, adding and crashing;
after each step the run must be, byte for byte, what learning from scratch on the present data gives.

**Markers.** Random 64-bit markers in ids and features, and digests of every model and state that held them, are
searched in every byte and file name of the run directory, of the log and of an export, after the purge. The search must
find them when a step of the purge is left out.
""",
)


if __name__ == "__main__":
    main()
