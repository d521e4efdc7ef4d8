"""``make mutation``: 500 mutants made by cosmic-ray, each run with its room's fast tests; writes its section of
docs/reliability.md.

The results are in mutation_results.csv, one line a mutant, and a run that was stopped goes on where it stopped. Each
mutant is applied to a private copy of the tree, in memory where that can be. ``--again`` runs the survivors that
change behaviour once more, and fails if one of them still survives.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import hashlib
import importlib
import itertools
import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "tests" / "mutation_results.csv"
HEADING = "## Mutants made by a tool"

ROOMS = ("algorithm", "requests", "training", "evidence", "store")
COUNT, SEED = 500, 11
AT_A_TIME = 2
LIMIT = (
    60.0  # seconds of processor; a room whose unmutated tests take more than a third gets three times what they take
)
PATIENCE = 240.0  # seconds by the clock, for what waits and takes no processor
TOGETHER = 6
IN_FRONT = 10  # how many of the quickest tests that call the mutated function come first
MEMORY = 8 << 30  # bytes beyond what is mapped already
PRELOADED = ("torch", "numpy", "sklearn.datasets", "hypothesis", "safetensors.numpy", "cryptography", "typer", "rich")
NEEDS_ARGUMENTS = {"core/VariableReplacer", "core/VariableInserter"}


Key = tuple[str, str, int, str]
Place = tuple[str, str, str, str]
Calls = dict[str, tuple[float, set[tuple[str, int]]]]  # a test, its seconds, and the functions of the package it calls


@dataclass(frozen=True)
class Mutant:
    """One mutant and what became of it. Lines that begin with a plus or a minus say what it changes."""

    module: str
    operator: str
    line: int
    where: str  # the class or function around the line
    change: str
    outcome: str = ""  # caught, timeout or survived; of the unmutated room: passed
    by: str = ""  # the first test that failed; of the unmutated room: the commit
    seconds: int = 0
    verdict: str = ""  # of a survivor, by hand: equivalent, cosmetic or real
    reason: str = ""  # of one that is not real: why no behaviour changes
    caught_since: str = ""  # the first test that fails on it now

    @property
    def room(self) -> str:
        return self.module.split("/")[0]

    @property
    def key(self) -> Key:
        return self.module, self.operator, self.line, self.change

    @property
    def place(self) -> Place:
        """The same after lines were added or deleted, or the function was moved to another file of its room."""
        return self.room, self.operator, self.where, self.code

    @property
    def code(self) -> str:
        """The change without the comments of its lines."""
        return "\n".join(line.partition("  # ")[0] for line in self.change.splitlines())


# ---------------------------------------------------------------------------------------------------------- the draw


def draw() -> Iterator[tuple[Mutant, str]]:
    """Mutants and their source, in random order, each equally likely, without those that only touch what never runs."""
    positions = [position for room in ROOMS for position in positions_in(room)]
    random.Random(SEED).shuffle(positions)
    for path, operator, occurrence in positions:
        made = mutate(path, operator, occurrence)
        if made is not None:
            yield made


def positions_in(room: str) -> list[tuple[Path, str, int]]:
    """Every (file, operator, occurrence) that ``cosmic-ray init`` lists for a room, in a fixed order."""
    from cosmic_ray.commands.init import init  # noqa: PLC0415 (docs/reliability.md can be written without it)
    from cosmic_ray.work_db import WorkDB, use_db  # noqa: PLC0415

    paths = sorted((ROOT / "src" / "fedforget" / room).rglob("*.py"))
    with tempfile.TemporaryDirectory() as directory, use_db(Path(directory) / "items", WorkDB.Mode.create) as items:
        init(paths, items, {})
        found = [
            (Path(m.module_path), m.operator_name, m.occurrence) for item in items.work_items for m in item.mutations
        ]
    return sorted(position for position in found if position[1] not in NEEDS_ARGUMENTS)


def mutate(path: Path, name: str, occurrence: int) -> tuple[Mutant, str] | None:
    """The mutant and its source, or None if it does not compile or runs the same statements."""
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415
    from cosmic_ray.plugins import get_operator  # noqa: PLC0415

    before = path.read_text(encoding="utf-8")
    after = mutate_code(before, get_operator(name)(), occurrence)
    if after is None:
        return None
    try:
        if what_runs(after) == what_runs(before):
            return None
    except SyntaxError:
        return None
    line, change = changed_line(before.splitlines(), after.splitlines())
    module = str(path.relative_to(ROOT / "src" / "fedforget"))
    return Mutant(module, name.removeprefix("core/"), line, place_of(before, line), change), after


def what_runs(source: str) -> str:
    """The program without docstrings, annotations and what is imported for types."""
    return ast.dump(WithoutTypes().visit(ast.parse(source)))


class WithoutTypes(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        only_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if only_types else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else self.generic_visit(node)


def changed_line(before: Sequence[str], after: Sequence[str]) -> tuple[int, str]:
    """The number of the first line that differs, and what the lines that differ said and say."""
    start = next(i for i, (old, new) in enumerate(zip(before, after, strict=False)) if old != new)
    end = next(i for i, (old, new) in enumerate(zip(before[::-1], after[::-1], strict=False)) if old != new)
    old = [f"- {line.strip()}" for line in before[start : len(before) - end]]
    new = [f"+ {line.strip()}" for line in after[start : len(after) - end]]
    return start + 1, "\n".join(old + new)


# ----------------------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class Order:
    """Mutants of one room to apply together, at most one a file, and the tests to run: all of the room's, or some."""

    room: str
    limit: float
    mutants: tuple[tuple[Mutant, str], ...] = ()
    tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    order: Order
    outcome: str
    by: str
    seconds: int
    copy: Path


@dataclass
class Job:
    """The tests of one room under way, in a process of its own, on a copy of the tree that nothing else uses."""

    order: Order
    copy: Path
    pid: int
    began: float
    seconds: float = 0.0

    def ended(self) -> Ended | None:
        """What came of it, or None while the tests run."""
        taken = processor_seconds(self.pid)
        done, status = os.waitpid(self.pid, os.WNOHANG)
        late = not done and (taken > self.order.limit or time.monotonic() - self.began > PATIENCE + self.order.limit)
        self.seconds = max(self.seconds, taken)
        if not done and not late:
            return None
        end_group(self.pid, waited=bool(done))
        if late:
            return Ended(self.order, "timeout", "", round(self.seconds), self.copy)
        if not status:
            return Ended(self.order, "survived", "", round(self.seconds), self.copy)
        code, failed = os.waitstatus_to_exitcode(status), self.copy / "failed"
        if code == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError(f"no test was run: {self.order}")
        test = json.loads(failed.read_text(encoding="utf-8")) if failed.exists() else f"exit code {code}"
        return Ended(self.order, "caught", test, round(self.seconds), self.copy)


def processor_seconds(pid: int) -> float:
    """What a process and the children it has waited for have taken."""
    numbers = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")


def end_group(pid: int, *, waited: bool) -> None:
    """End what the tests started: asked first, so that they remove their files."""
    if not waited:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        end = time.monotonic() + 5
        while time.monotonic() < end and not waited:
            waited = os.waitpid(pid, os.WNOHANG)[0] == pid
            time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not waited:
        os.waitpid(pid, 0)


def start(order: Order, copy: Path) -> Job:
    """Apply the mutants to the copy and start the tests there."""
    for mutant, source in order.mutants:
        (copy / "src" / "fedforget" / mutant.module).write_text(source, encoding="utf-8")
    (copy / "failed").unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        code = 70
        try:
            code = run_tests(copy, order)
        except BaseException:  # noqa: BLE001 (as the interpreter does: print it, end with a status of its own)
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return Job(order, copy, pid, time.monotonic())


def run_tests(copy: Path, order: Order) -> int:
    """Pytest in this process, which has imported everything but the package and the tests."""
    os.setsid()
    os.chdir(copy)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    output = os.open(copy / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    (copy / "tmp").mkdir(exist_ok=True)
    os.environ |= {"PYTHONPATH": str(copy / "src"), "TMPDIR": str(copy / "tmp")}
    tempfile.tempdir = None
    sys.path[:] = [str(copy / "src"), *(place for place in sys.path if not place.startswith(str(ROOT / "tests")))]
    options = (
        "-m", "not slow", "-x", "-q", "-p", "no:cacheprovider", "--basetemp", str(copy / "tmp" / "pytest"),
        "-W", "ignore::pytest.PytestAssertRewriteWarning",  # hypothesis is imported before pytest starts
    )  # fmt: skip
    plugins = [FirstFailure(copy), Selection(order.tests) if order.mutants else Calling(copy)]
    code = int(pytest.main([*options, f"tests/{order.room}"], plugins=plugins))
    for name, module in sys.modules.items():
        if name.partition(".")[0] == "fedforget" and not str(module.__file__).startswith(str(copy)):
            raise RuntimeError(f"{name} was imported from {module.__file__}, not from the copy")
    return code


class FirstFailure:
    """Writes down which test failed first."""

    def __init__(self, copy: Path) -> None:
        self._file = copy / "failed"

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._write(report)

    def pytest_collectreport(self, report: Any) -> None:
        self._write(report)

    def _write(self, report: Any) -> None:
        if report.failed and not self._file.exists():
            self._file.write_text(json.dumps(report.nodeid or "collecting"), encoding="utf-8")


class Calling:
    """Writes down which functions of the package each test calls, and how long the test takes."""

    def __init__(self, copy: Path) -> None:
        self._file, self._source = copy / "calls", str(copy / "src" / "fedforget") + "/"
        self._calls: Calls = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        codes: set[CodeType] = set()

        def hook(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call":
                codes.add(frame.f_code)

        began = time.process_time()
        threading.setprofile(hook)
        sys.setprofile(hook)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            ours = [code for code in codes if code.co_filename.startswith(self._source)]
            called = {(code.co_filename.removeprefix(self._source), code.co_firstlineno) for code in ours}
            self._calls[item.nodeid] = time.process_time() - began, called

    def pytest_sessionfinish(self) -> None:
        self._file.write_bytes(pickle.dumps(self._calls))


class Selection:
    """Only these tests, in this order; all of them if none is named."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._rank = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._rank:
            items[:] = sorted(
                (item for item in items if item.nodeid in self._rank), key=lambda item: self._rank[item.nodeid]
            )


def tests_calling(mutant: Mutant, calls: Calls) -> list[str]:
    """The tests that call the mutated function: some quick ones in front, the others in their order."""
    function, place = (mutant.module, first_line_of_function(mutant)), f"tests/{mutant.room}/"
    found = {
        test: seconds
        for test, (seconds, called) in calls.items()
        if function in called and test.startswith(place)  # tests of other rooms call it as well
    }
    front = sorted(found, key=found.__getitem__)[:IN_FRONT]
    return [*front, *(test for test in found if test not in front)]


def first_line_of_function(mutant: Mutant) -> int:
    """Of the innermost function around the mutated line, as code objects count it; 0 outside of functions."""
    source = (ROOT / "src" / "fedforget" / mutant.module).read_text(encoding="utf-8")
    functions = [node for node in around(source, mutant.line) if isinstance(node, ast.FunctionDef)]
    return first_line(functions[-1]) if functions else 0


def place_of(source: str, line: int) -> str:
    return ".".join(node.name for node in around(source, line))


def around(source: str, line: int) -> list[ast.FunctionDef | ast.ClassDef]:
    """The classes and functions that hold a line, decorators included, from the outside in."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return sorted((node for node in nodes if first_line(node) <= line <= (node.end_lineno or 0)), key=first_line)


def first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def run_all(orders: Iterable[Order]) -> Iterator[Ended]:
    """What came of every order, as they end."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(private_copy()) for _ in range(AT_A_TIME)]
        running: list[Job] = []
        for order in orders:
            running.append(start(order, free.pop()))
            while not free:
                yield from collect(running, free)
        while running:
            yield from collect(running, free)


def collect(running: list[Job], free: list[Path]) -> Iterator[Ended]:
    time.sleep(0.02)
    for job in tuple(running):
        if (ended := job.ended()) is not None:
            yield ended
            shutil.rmtree(job.copy / "tmp", ignore_errors=True)
            for mutant, _ in job.order.mutants:
                original = ROOT / "src" / "fedforget" / mutant.module
                shutil.copyfile(original, job.copy / "src" / "fedforget" / mutant.module)
            running.remove(job)
            free.append(job.copy)


@contextlib.contextmanager
def private_copy() -> Iterator[Path]:
    """A copy of the tree whose byte code is checked by the hash of its source: two mutants may be equally long."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fedforget-mutation-", dir=place, ignore_cleanup_errors=True) as directory:
        copy = Path(directory)
        for name in ("src", "tests", "docs", "examples", "benchmarks"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "Makefile", "CONTRIBUTING.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, copy / name)
        compileall, modes = importlib.import_module("compileall"), importlib.import_module("py_compile")
        compileall.compile_dir(copy / "src", quiet=1, invalidation_mode=modes.PycInvalidationMode.CHECKED_HASH)
        yield copy


# ------------------------------------------------------------------------------------------------------- the results


def read() -> list[Mutant]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(encoding="utf-8", newline="") as file:
        rows: Iterable[dict[str, Any]] = csv.DictReader(file)
        return [Mutant(**{**row, "line": int(row["line"]), "seconds": int(row["seconds"])}) for row in rows]


def write(mutants: Iterable[Mutant]) -> None:
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        lines = csv.DictWriter(file, [field.name for field in fields(Mutant)], lineterminator="\n")
        lines.writeheader()
        lines.writerows(asdict(mutant) for mutant in mutants)


def interval(caught: int, tried: int) -> tuple[float, float]:
    """Wilson's 95 % interval."""
    z, rate = 1.959964, caught / tried
    middle = (rate + z * z / (2 * tried)) / (1 + z * z / tried)
    half = z / (1 + z * z / tried) * (rate * (1 - rate) / tried + z * z / (4 * tried * tried)) ** 0.5
    return middle - half, middle + half


# -------------------------------------------------------------------------------------------------------- the command


def main() -> None:
    os.nice(5)
    os.environ["OMP_NUM_THREADS"] = "1"  # two at a time share the processor
    if "--page" not in sys.argv:
        for name in PRELOADED:
            importlib.import_module(name)
        again() if "--again" in sys.argv else first_time()
    page, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    PAGE.write_text(page.rstrip() + "\n\n" + section() + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")


def first_time() -> None:
    """Run the mutants that are drawn and have no result; keep the verdicts of those that were drawn before."""
    drawn = {mutant.key: (mutant, source) for mutant, source in itertools.islice(draw(), COUNT)}
    known = read()
    verdicts = {(mutant.module, mutant.change): mutant for mutant in known}
    unmutated, calls = without_mutation()
    limits = {room: max(LIMIT, 3.0 * mutant.seconds) for room, mutant in unmutated.items()}
    results = {mutant.key: mutant for mutant in known if mutant.operator}
    if not results.keys() <= drawn.keys():
        results = {}  # the source has changed since: this is another draw

    def note(ended: Ended, passed: str) -> None:
        for mutant, _ in ended.order.mutants:
            old = verdicts.get((mutant.module, mutant.change), mutant)
            outcome = passed if ended.outcome == "survived" else ended.outcome
            results[mutant.key] = made = replace(
                mutant, outcome=outcome, by=ended.by, seconds=ended.seconds, verdict=old.verdict, reason=old.reason
            )
            report(made)
        write([*unmutated.values(), *sorted(results.values(), key=lambda mutant: mutant.key)])

    for ended in run_all(first_orders(drawn, results, limits, calls)):
        note(ended, "presumed" if ended.order.tests else "survived")
    together = batches([drawn[key] for key, mutant in results.items() if mutant.outcome == "presumed"], limits)
    while together:
        failed = []
        for ended in run_all(together):
            if ended.outcome == "survived" or len(ended.order.mutants) == 1:
                note(ended, "survived")
            else:
                failed.append(ended.order)
        together = [part for order in failed for part in halves(order)]


def first_orders(
    drawn: dict[Key, tuple[Mutant, str]], results: dict[Key, Mutant], limits: dict[str, float], calls: Calls
) -> Iterator[Order]:
    """Each mutant by itself, with the tests that call the mutated function, or with all if there are none."""
    for key, made in drawn.items():
        if key not in results:
            room = made[0].room
            yield Order(room, limits[room], (made,), tuple(tests_calling(made[0], calls)))


def batches(mutants: Iterable[tuple[Mutant, str]], limits: dict[str, float]) -> list[Order]:
    """Mutants that the tests which call them did not catch, some together: tests that pass on all catch none."""
    orders: list[Order] = []
    for made in mutants:
        room, module = made[0].room, made[0].module
        for number, order in enumerate(orders):
            modules = {mutant.module for mutant, _ in order.mutants}
            if order.room == room and module not in modules and len(modules) < TOGETHER:
                orders[number] = replace(order, mutants=(*order.mutants, made))
                break
        else:
            orders.append(Order(room, limits[room], (made,)))
    return orders


def halves(order: Order) -> list[Order]:
    middle = len(order.mutants) // 2
    return [replace(order, mutants=part) for part in (order.mutants[:middle], order.mutants[middle:])]


def without_mutation() -> tuple[dict[str, Mutant], Calls]:
    """How long the tests of each room take, and which functions each of them calls; remembered for the same files."""
    files = sorted(path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files if path != Path(__file__))).hexdigest()
    memory = ROOT / "build" / f"mutation-{digest[:16]}"
    if memory.exists():
        remembered: tuple[dict[str, Mutant], Calls] = pickle.loads(memory.read_bytes())
        return remembered
    rooms: dict[str, Mutant] = {}
    calls: Calls = {}
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    for ended in run_all(Order(room, 600.0) for room in ROOMS):
        room = ended.order.room
        if ended.outcome != "survived":
            raise SystemExit(f"the tests of {room} fail without a mutation: {ended}")
        rooms[room] = Mutant(f"{room}/", "", 0, "", "", "passed", commit, ended.seconds)
        calls |= pickle.loads((ended.copy / "calls").read_bytes())
        report(rooms[room])
    memory.parent.mkdir(exist_ok=True)
    memory.write_bytes(pickle.dumps((rooms, calls)))
    return rooms, calls


def again() -> None:
    """Run the survivors that change behaviour once more, wherever their lines are now."""
    results = read()
    wanted = [mutant for mutant in results if mutant.verdict == "real"]
    present = list(made_like(wanted))
    found = {mutant: same_mutants(mutant, [each for each, _ in present]) for mutant in wanted}
    chosen = {each.key for same in found.values() for each in same}
    made = {mutant.key: (mutant, source) for mutant, source in present if mutant.key in chosen}
    unmutated, calls = without_mutation()
    limits = {room: max(LIMIT, 3.0 * mutant.seconds) for room, mutant in unmutated.items()}
    since: dict[Place, str] = {}
    missed: list[Order] = []
    for ended in run_all(first_orders(made, {}, limits, calls)):
        if ended.outcome == "survived" and ended.order.tests:
            missed.append(replace(ended.order, tests=()))
        else:
            note_since(ended, since)
    for ended in run_all(missed):
        note_since(ended, since)
    caught = {
        mutant: "; ".join(dict.fromkeys(since[each.place] for each in same)) if same else GONE
        for mutant, same in found.items()
        if all(since[each.place] for each in same)
    }
    write(replace(mutant, caught_since=caught.get(mutant, "")) for mutant in results)
    if left := [mutant.place for mutant in wanted if mutant not in caught]:
        raise SystemExit(f"{len(left)} still survive: {left}")


def made_like(wanted: Sequence[Mutant]) -> Iterator[tuple[Mutant, str]]:
    """Every mutant of the present source that is one of these."""
    for path, operator, occurrence in (position for room in ROOMS for position in positions_in(room)):
        room, name = path.relative_to(ROOT / "src" / "fedforget").parts[0], operator.removeprefix("core/")
        alike = [mutant for mutant in wanted if (mutant.room, mutant.operator) == (room, name)]
        made = mutate(path, operator, occurrence) if alike else None
        if made is not None and any(mutant.code == made[0].code for mutant in alike):
            yield made


def same_mutants(mutant: Mutant, present: Sequence[Mutant]) -> list[Mutant]:
    """Those at its place; if there are none, those of the same text, whose function has another name now."""
    same = [each for each in present if each.place == mutant.place]
    text = [each for each in present if each.place[:2] == mutant.place[:2] and each.code == mutant.code]
    return same or text


def note_since(ended: Ended, since: dict[Place, str]) -> None:
    [(mutant, _)] = ended.order.mutants
    if since.get(mutant.place, "none yet"):  # else an equal line of the same function survives
        since[mutant.place] = "" if ended.outcome == "survived" else ended.by or ended.outcome
    report(replace(mutant, outcome=ended.outcome, by=ended.by, seconds=ended.seconds))


def report(mutant: Mutant) -> None:
    said = mutant.change.replace("\n", "  ")
    sys.stdout.write(f"{mutant.outcome:9}{mutant.seconds:4} s  {mutant.module}:{mutant.line}  {said}  {mutant.by}\n")
    sys.stdout.flush()


def section() -> str:
    """The section of docs/reliability.md, from the results alone."""
    results = read()
    drawn = [mutant for mutant in results if mutant.operator]
    unmutated = {mutant.room: mutant for mutant in results if not mutant.operator}
    seconds = {room: mutant.seconds for room, mutant in unmutated.items()}
    limits = ", ".join(f"`{room}` {max(LIMIT, 3.0 * seconds[room]):.0f} ({seconds[room]})" for room in ROOMS)
    gone = sum(mutant.caught_since == GONE for mutant in drawn)
    text = TEXT.format(count=len(drawn), seed=SEED, commit=unmutated[ROOMS[0]].by, limits=limits, gone=gone)
    paragraphs = [textwrap.fill(part, 120, break_on_hyphens=False) for part in text.split("\n\n")]
    rows = [row(room, [mutant for mutant in drawn if mutant.room == room]) for room in ROOMS]
    table = "\n".join([*COLUMNS, *rows, row("in all", drawn)])
    return "\n\n".join([HEADING, *paragraphs, table])


def row(name: str, mutants: Sequence[Mutant]) -> str:
    outcomes, verdicts = Counter(m.outcome for m in mutants), Counter(m.verdict for m in mutants)
    caught = outcomes["caught"] + outcomes["timeout"]
    low, high = interval(caught, len(mutants))
    since = sum(bool(m.caught_since) for m in mutants)
    cells = (
        name, len(mutants), caught, outcomes["timeout"], f"{caught / len(mutants):.1%}", f"{low:.1%} – {high:.1%}",
        outcomes["survived"], verdicts["equivalent"], verdicts["cosmetic"], verdicts["real"], since,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


COLUMNS = (
    "| room | drawn | caught | by time | rate | 95 % interval | survive | equivalent | text | behaviour | now caught |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)
TEXT = """Written by `make mutation`: {count} mutants, drawn at random (seed {seed}) from all that cosmic-ray makes of
five rooms at commit {commit}, each equally likely. Mutants that only touch docstrings, annotations or `if
TYPE_CHECKING` blocks are left out before the draw. Each is run with the fast tests of its own room alone; the slow
proofs and the tests of the command line, which use these rooms as well, are not asked. A mutant is caught when a test
fails, or when its tests need more processor time than the limit: in seconds, with the time of the unmutated tests in
brackets (while every call is noted), {limits}. Tests that call the mutated function come first. What passes them runs
all tests of the room, several mutants at once, and by itself if a test fails.

*Rate* is the share caught by the tests as they were when the mutants were drawn, with Wilson's interval. Every
survivor was read. *Equivalent* ones can't change what a caller sees, apart from the time or memory it takes; of others
only the *text* of a message changes. For each one that changes *behaviour* a test was added or sharpened, which the
mutant fails: *now caught*; {gone} of these are in code that was deleted since. `tests/mutation_results.csv` has every
mutant, what caught it, and the reason of each verdict; `python tests/mutation.py --again` runs those that changed
behaviour once more."""
GONE = "the code is gone"


if __name__ == "__main__":
    main()
