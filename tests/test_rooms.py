"""The rooms of the package: who may import whom, and who pays for torch."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from fedforget.store import run_directory

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fedforget"
FLOWER = PACKAGE / "federation" / "flower"
STANDARD = set(sys.stdlib_module_names) | {"__future__"}


def ours(*names: str) -> set[str]:
    return {f"fedforget.{name}" for name in names}


# What each room may import beside the standard library and itself. A name allows everything below it.
ALLOWED: dict[str, set[str]] = {
    "algorithm": {"numpy", "cryptography", *ours("errors")},
    "planner": {"numpy", *ours("errors", "algorithm")},
    "disk": {"numpy", "cryptography", *ours("errors")},
    "requests": ours("errors", "algorithm", "disk"),
    "store": {"numpy", "safetensors", *ours("errors", "algorithm", "disk", "requests")},
    "training": {"numpy", "torch", "safetensors", *ours("errors", "algorithm")},
    "data": {"numpy", "sklearn", "datasets", *ours("errors", "algorithm")},
    "federation": {"numpy", "cryptography", *ours("errors", "algorithm")},
    "session": {
        "numpy",
        "torch",
        "cryptography",
        *ours("errors", "algorithm", "planner", "disk", "requests", "store", "training", "data", "federation"),
    },
    "evidence": {
        "numpy",
        "cryptography",
        *ours("errors", "algorithm", "disk", "requests", "store", "data", "federation", "training.environment"),
    },
    "client_side": {
        "numpy",
        "cryptography",
        *ours("errors", "algorithm", "disk", "requests", "store", "data", "federation", "evidence.receipts"),
        *ours("training.environment"),
    },
    "health": {
        "torch",
        "cryptography",
        *ours("errors", "algorithm", "disk", "requests", "store", "training", "evidence"),
    },
    "plots": {"numpy", "matplotlib", *ours("errors", "algorithm", "planner")},
    "baselines": {
        "numpy",
        *ours("errors", "algorithm", "disk", "store", "training", "data", "federation", "session"),
    },
    "experiments": {
        "numpy",
        "torch",
        "matplotlib",
        *ours("errors", "algorithm", "planner", "disk", "training", "data", "federation", "session", "plots"),
        *ours("baselines"),
    },
    "demo": {
        "matplotlib",
        *ours("errors", "algorithm", "disk", "requests", "store", "session", "plots", "builtin", "run"),
    },
}
_BELOW_RUN = (
    "errors",
    "algorithm",
    "planner",
    "disk",
    "requests",
    "store",
    "training",
    "data",
    "federation",
    "session",
)
# The same for the files of the top level. ``__init__`` and ``cli`` reach what they offer when it is used.
TOP: dict[str, set[str]] = {
    "__init__.py": ours("algorithm", "errors", "evidence", "planner", "requests", "run", "session"),
    "__main__.py": ours("cli"),
    "builtin.py": ours(*_BELOW_RUN, "run"),
    "errors.py": set(),
    "run.py": {"torch", *ours(*_BELOW_RUN, "evidence")},
}
ALLOWED["flower"] = {"torch", "flwr", *ours(*_BELOW_RUN, "builtin", "client_side", "run")}
ALLOWED["cli"] = {
    "click",
    "typer",
    "rich",
    *ours(*ALLOWED, "errors", "builtin", "run"),
    "fedforget.__version__",
}
WHOLE_PACKAGE = {"training/environment.py", "experiments/reproduce.py"}  # they read the version
LARGEST = 300  # lines of a module
LARGER = {
    "run.py": 330,  # the public API in one class: its methods repeat the options of rounds in their signatures
    "requests/processor.py": 330,  # the life of a batch from intake to receipt, in its order
}
NOT_IN_ALGORITHM = {"sqlite3", "socket", "time", "datetime", "random", "os", "pathlib", "subprocess", "secrets"}
NOT_IN_ALGORITHM_BUT = {"secrets": {"seeds.py"}}  # seeds may come from the operating system


@functools.cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Every module a file imports, at its top or inside functions, for types or for work."""
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module != "fedforget":
                yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names if node.module.startswith("fedforget"))


def within(module: str, allowed: set[str]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in allowed)


def rooms() -> list[str]:
    return sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists())


def test_the_rooms_are_there() -> None:
    assert set(rooms()) == set(ALLOWED)
    assert {path.name for path in PACKAGE.glob("*.py")} == set(TOP)
    assert len(TOP) <= 6


def wrong_imports(paths: Iterable[Path], allowed: set[str]) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in sorted(paths)
        for module in imports_of(path)
        if module.partition(".")[0] not in STANDARD
        and not within(module, allowed)
        and not (module == "fedforget" and str(path.relative_to(PACKAGE)) in WHOLE_PACKAGE)
    ]


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    inside = FLOWER if room == "federation" else None
    paths = [path for path in (PACKAGE / room).rglob("*.py") if path.parent != inside]
    assert wrong_imports(paths, ALLOWED[room] | {f"fedforget.{room}"}) == []


def test_only_the_folder_for_flower_in_federation_uses_flwr_and_no_other_file_there_needs_it() -> None:
    allowed = ALLOWED["federation"] | {"flwr", "fedforget.federation"}
    assert wrong_imports(FLOWER.glob("*.py"), allowed) == []
    outside = [path for path in (PACKAGE / "federation").glob("*.py") if within_flower(imports_of(path))]
    assert outside == []


@pytest.mark.parametrize("name", sorted(TOP))
def test_a_file_of_the_top_level_imports_only_what_it_may(name: str) -> None:
    assert wrong_imports([PACKAGE / name], TOP[name]) == []


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("run.py", "import fedforget.plots.costs"),
        ("run.py", "import matplotlib"),
        ("algorithm/learn.py", "import fedforget"),
        ("algorithm/learn.py", "from fedforget import Run"),
        ("cli/app.py", "import torch"),
    ],
)
def test_an_import_from_elsewhere_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, line: str
) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(line + "\n")
    room = place.partition("/")[0]
    allowed = TOP[place] if place in TOP else ALLOWED[room] | {f"fedforget.{room}"}
    assert wrong_imports([path], allowed)


def test_the_algorithm_has_no_disk_clock_or_network() -> None:
    wrong = [
        f"{path.name} imports {module}"
        for path in sorted((PACKAGE / "algorithm").glob("*.py"))
        for module in imports_of(path)
        if module in NOT_IN_ALGORITHM and path.name not in NOT_IN_ALGORITHM_BUT.get(module, set())
    ]
    assert wrong == []


def test_flower_is_imported_by_its_own_files_only() -> None:
    """Flower is an extra: nothing else may need it."""
    users = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if "flwr" in map(_top, imports_of(path))
    }
    assert users
    assert all(map(_of_flower, users))
    flower = {f"fedforget.{user[:-3].replace('/', '.')}" for user in users}
    importers = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if set(imports_of(path)) & flower
    }
    assert all(map(_of_flower, importers))


def _of_flower(path: str) -> bool:
    return path.startswith(("federation/flower/", "flower/"))


def within_flower(modules: Iterable[str]) -> bool:
    return any(within(module, {"fedforget.federation.flower"}) for module in modules)


def _top(module: str) -> str:
    return module.partition(".")[0]


def test_only_main_imports_cli() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "cli" and path.name != "__main__.py"
        for module in imports_of(path)
        if within(module, {"fedforget.cli", "typer", "click", "rich"})
    ]
    assert wrong == []


def test_errors_import_nothing() -> None:
    assert set(imports_of(PACKAGE / "errors.py")) <= {"__future__"}


def test_no_two_modules_import_each_other() -> None:
    """No circles, not even between files of one room."""
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    graph = {
        name: {module for module in imports_of(path) if module in names and module not in {name, "fedforget"}}
        for name, path in names.items()
        if name not in {"fedforget", "fedforget.cli"}
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " → ".join((*above, name))
        if name not in done:
            for module in graph.get(name, ()):
                visit(module, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def loaded_after(program: str, *arguments: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running a program."""
    ending = "\nfinally:\n    import sys, json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    lines = "\n".join("    " + line for line in program.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", f"try:\n{lines}{ending}", *arguments], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_importing_the_package_is_cheap() -> None:
    loaded = loaded_after("import fedforget; fedforget.__version__")
    assert not loaded & {"torch", "sklearn", "numpy", "typer", "sqlite3"}


def test_the_algorithm_needs_no_torch() -> None:
    files = sorted(path.stem for path in (PACKAGE / "algorithm").glob("*.py") if path.stem != "__init__")
    program = "\n".join(f"import fedforget.algorithm.{name}" for name in files)
    assert not loaded_after(program) & {"torch", "sklearn", "sqlite3"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rooms") / "run"
    plan = ["--clients", "5", "--clients-per-round", "1", "--batch-size", "2", "--local-steps", "1", "--rounds", "1"]
    program = [sys.executable, "-m", "fedforget", "train", *plan, "--out", str(path)]
    subprocess.run(program, capture_output=True, check=True)
    return path


PLAN = "plan --clients 60 --samples 200 --rho-s 0.2 --rho-c 0.9 --rounds 20 --local-steps 5"


@pytest.mark.parametrize("command", [PLAN, "status RUN", "state RUN", "forget RUN --help"])
def test_commands_that_only_look_do_not_load_torch(run: Path, command: str) -> None:
    arguments = [str(run) if word == "RUN" else word for word in command.split()]
    loaded = loaded_after("import sys\nfrom fedforget.cli import main\nmain(sys.argv[1:])", *arguments)
    assert not loaded & {"torch", "sklearn"}


def test_forgetting_undrawn_data_does_not_load_torch(run: Path) -> None:
    """A request that changes no draw needs neither the model nor the data."""
    with run_directory.reading(run) as found:
        used = {client: found.clients.first_steps(client) for client in found.server.roster}
        client, sample = next((c, s) for c in used for s in found.clients.samples(c) if s not in used[c])
    arguments = ["forget", str(run), "--client", str(client), "--sample", str(sample), "--basis", "exogenous"]
    loaded = loaded_after("import sys\nfrom fedforget.cli import main\nmain(sys.argv[1:])", *arguments)
    assert not loaded & {"torch", "sklearn", "scipy"}
    with run_directory.reading(run) as found:
        assert not found.clients.has(client, sample)


def test_training_on_digits_does_not_load_scikit_learn(tmp_path: Path) -> None:
    plan = ["--clients", "5", "--clients-per-round", "1", "--batch-size", "2", "--local-steps", "1", "--rounds", "1"]
    arguments = ["train", *plan, "--out", str(tmp_path / "run"), "--federation", "inline"]
    loaded = loaded_after("import sys\nfrom fedforget.cli import main\nmain(sys.argv[1:])", *arguments)
    assert not loaded & {"sklearn", "scipy"}


MODULES = sorted(PACKAGE.rglob("*.py"))


def test_modules_are_small() -> None:
    sizes = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: size for name, size in sizes.items() if size > LARGER.get(name, LARGEST)} == {}


def test_modules_say_in_their_first_line_what_they_are_for() -> None:
    """One sentence on the first line, or a sentence that goes on in the next ones."""
    unsaid = []
    for path in MODULES:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = docstring.partition("\n")[0]
        starts = path.read_text(encoding="utf-8").startswith('"""')
        if not starts or len(first.split()) < 4 or not first.endswith((".", ":")):
            unsaid.append(f"{path.relative_to(PACKAGE)}: {first}")
    assert unsaid == []
