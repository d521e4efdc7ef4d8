"""``make bench``: runs every benchmark, prints a table, writes results.json, docs/performance.md and its pictures.

Each benchmark is a process of its own and one at a time. ``--only`` measures some of them; the others keep their
figures, with the date and the versions they were measured with. ``--quick`` is a short version for looking: it writes
nothing. ``--long`` also measures what takes an hour: a million clients, and 100 requests of each level for the CNN.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import plots

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "performance.md"
SCRATCH = "FEDFORGET_BENCH_DIR"
PICTURES = ROOT / "docs" / "images"
TRAINING, GROWTH, REQUESTS = "performance-training.svg", "performance-growth.svg", "performance-requests.svg"
BENCHMARKS = (
    "training",
    "dense",
    "witness",
    "pool",
    "flower",
    "flower_scale",
    "pfl",
    "requests",
    "scale",
    "history",
    "command_line",
    "fractions",
    "forgetting",
    "growth",
    "memory",
    "draws",
    "first_use",
    "laws",
)
LIBRARIES = ("fedforget", "torch", "numpy", "cryptography", "safetensors")

Section = dict[str, Any]
Machine = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller repetitions; writes nothing")
    parser.add_argument("--long", action="store_true", help="also what takes an hour: 10^6 clients, the CNN's requests")
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="this benchmark; the others keep theirs")
    parser.add_argument("--turns", type=int, help="repetitions of whole runs, where they take turns")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page and pictures again")
    parser.add_argument("--dir", type=Path, help="where run directories are made (default: the system's for temporary)")
    chosen = parser.parse_args()
    if chosen.dir is not None:
        os.environ[SCRATCH] = str(chosen.dir.resolve())
    about = machine()
    print("\n".join(f"{name}: {value}" for name, value in about.items()), flush=True)
    options = [f"--{name}" for name in ("quick", "long") if getattr(chosen, name)]
    options += [f"--turns={chosen.turns}"] if chosen.turns else []
    wanted = () if chosen.page else chosen.only or BENCHMARKS
    measured = []
    for name in BENCHMARKS:
        if name in wanted:
            measured.append(section(name, about, options))
            print(table(measured[-1]), flush=True)
            if not chosen.quick:
                keep(measured[-1])
    print("\n" + verdict(measured) + (" (A quick look: smaller sizes, few repetitions.)" if chosen.quick else ""))
    if not chosen.quick:
        write()


def known() -> dict[str, Section]:
    """The newest figures of each benchmark, in the order of the page."""
    found = {made["name"]: made for made in json.loads(RESULTS.read_text())["sections"]} if RESULTS.exists() else {}
    return {name: found[name] for name in BENCHMARKS if name in found}


def keep(made: Section) -> None:
    """Put the figures of one benchmark in the place of older ones. A later failure does not lose them."""
    sections = {**known(), made["name"]: made}
    ordered = [sections[name] for name in BENCHMARKS if name in sections]
    RESULTS.write_text(json.dumps({"sections": ordered}, indent=1, ensure_ascii=False) + "\n")


def write() -> None:
    sections = list(known().values())
    draw(sections, PICTURES)
    PAGE.write_text(page(sections))
    print(f"wrote {RESULTS.relative_to(ROOT)}, {PAGE.relative_to(ROOT)} and its pictures")


def section(name: str, about: Machine, options: list[str]) -> Section:
    """What one benchmark measured, on which machine, how busy it was, and how long that took."""
    before, start = os.getloadavg()[0], time.perf_counter()
    command = [sys.executable, "-m", f"benchmarks.bench_{name}", *options]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    answer: Section = json.loads(done.stdout)
    answer["name"] = name
    answer["load"] = [round(before, 1), round(os.getloadavg()[0], 1)]
    answer["machine"] = about
    answer["minutes"] = round((time.perf_counter() - start) / 60, 1)
    return answer


# The machine


def machine() -> Machine:
    directory = Path(os.environ.get(SCRATCH) or tempfile.gettempdir())
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": f"{_after('/proc/cpuinfo', 'model name')}, {os.cpu_count()} cores",
        "memory": f"{int(_after('/proc/meminfo', 'MemTotal').split()[0]) * 1024 / 1e9:.0f} GB",
        "disk": f"{_filesystem(directory)}; a durable write of 20 kB takes {1e3 * _durable_write(directory):.2f} ms",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in LIBRARIES),
    }


def _after(file: str, key: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return "unknown"


def _filesystem(directory: Path) -> str:
    """The type of the file system: on one that lives in memory durable costs nothing, and the ratios mean little."""
    kind, deepest = "unknown", Path()
    for line in Path("/proc/mounts").read_text().splitlines():
        mounted = Path(line.split()[1])
        if directory.resolve().is_relative_to(mounted) and len(mounted.parts) >= len(deepest.parts):
            kind, deepest = line.split()[2], mounted
    return kind


def _durable_write(directory: Path) -> float:
    """Seconds for a file with its fsync, the unit that commits are made of."""
    times = []
    scratch = Path(tempfile.mkdtemp(dir=directory))
    try:
        for number in range(30):
            start = time.perf_counter()
            with (scratch / str(number)).open("wb") as file:
                file.write(bytes(20_000))
                file.flush()
                os.fsync(file.fileno())
            times.append(time.perf_counter() - start)
    finally:
        shutil.rmtree(scratch)
    return statistics.median(times)


# The report


def number(value: float) -> str:
    """Three significant digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def cells(figure: dict[str, Any]) -> list[str]:
    """Name, value, range, target, verdict, note."""
    spread = "" if figure["low"] is None else f"{number(figure['low'])} – {number(figure['high'])}"
    target = ""
    if figure["met"] is not None:
        word, limit = ("≤", figure["at_most"]) if figure["at_most"] is not None else ("≥", figure["at_least"])
        target = f"{word} {number(limit)}: {'met' if figure['met'] else 'MISSED'}"
    return [figure["name"], f"{number(figure['value'])} {figure['unit']}", spread, target, figure["note"]]


HEADINGS = ["measured", "median", "range", "target", "note"]


def table(made: Section) -> str:
    rows = [cells(figure) for figure in made["figures"]]
    if not rows:
        return f"\n{made['title']}\n  {made['how'].splitlines()[-1]}"
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows]
    title = "{} (load {} – {})".format(made["title"], *made["load"])
    return "\n".join(["", title, *(f"  {line}" for line in lines)])


def verdict(sections: list[Section]) -> str:
    figures = [figure for made in sections for figure in made["figures"] if figure["met"] is not None]
    missed = [figure["name"] for figure in figures if not figure["met"]]
    if not figures:
        return "Nothing here has a target."
    if not missed:
        return f"All {len(figures)} targets are met."
    return f"{len(figures) - len(missed)} of {len(figures)} targets are met. Missed: {'; '.join(missed)}."


INTRODUCTION = """\
Written by `make bench`; do not edit. `python benchmarks/run.py --only SECTION` measures one section again, the others
keep their figures. Every figure is a median over repetitions on one machine, beside the lowest and the highest; ratios
are of two things that took turns in one process. Only what has a target is a promise, the rest is for orientation. A
load above 1 means that other programs took part of the machine, so that times are too long: ratios and processor time
suffer less. Durable writes are as fast as the disk of each section says: on a slower one the ratios of training are
higher.\
"""


def draw(sections: list[Section], directory: Path) -> None:
    """The pictures, from what the sections handed over."""
    data = {made["name"]: made["data"] for made in sections if "data" in made}
    if "pool" in data:
        beside = [*data.get("flower", []), *data.get("pfl", [])]
        repeated = [bars for bars in beside if len(bars["other_ratios"]) > 1]  # a single turn is not worth a bar
        plots.draw_training(directory / TRAINING, data["pool"], repeated)
    if "growth" in data:
        plots.draw_growth(directory / GROWTH, data["growth"])
    if "requests" in data:
        sizes = {(each["clients"], each["samples"]): each for each in [*data.get("scale", []), *data["requests"]]}
        plots.draw_requests(
            directory / REQUESTS, [sizes[size] for size in sorted(sizes)], data.get("history", {}).get("history", [])
        )


def picture(made: Section) -> list[str]:
    """The picture of a section, if it has one."""
    shown = {
        "pool": f"![Time of a round: bare loop, FedForget, other simulators](images/{TRAINING})",
        "growth": f"![Time of a round and peak memory by K, E, R, M and N](images/{GROWTH})",
        "requests": f"![What a request costs by clients, samples and requests met before](images/{REQUESTS})",
    }
    return [shown[made["name"]], ""] if made["name"] in shown else []


def page(sections: list[Section]) -> str:
    lines = ["# Performance", "", INTRODUCTION, "", f"**{verdict(sections)}**"]
    unmeasured = [name for name in BENCHMARKS if name not in {made["name"] for made in sections}]
    if unmeasured:
        lines += ["", f"Not measured yet: {', '.join(unmeasured)}."]
    for made in sections:
        lines += ["", f"## {made['title']}", "", made["how"], "", *picture(made), provenance(made)]
        if made["figures"]:
            lines += ["", _row(HEADINGS), _row(["---"] * len(HEADINGS))]
            lines += [_row(cells(figure)) for figure in made["figures"]]
    return "\n".join(lines) + "\n"


def provenance(made: Section) -> str:
    """When, where and under which load the figures of a section were measured."""
    about, took = made["machine"], f" in {made['minutes']:.0f} minutes" if "minutes" in made else ""
    where = f"Measured on {about['date']}{took}, on {about['processor']}, {about['memory']}, {about['disk']}; "
    load = "load before and after, this benchmark included: {} and {}.".format(*made["load"])
    return f"{where}{about['system']}; {about['versions']}; {load}"


def _row(values: list[str]) -> str:
    return "| " + " | ".join(values) + " |"


if __name__ == "__main__":
    main()
