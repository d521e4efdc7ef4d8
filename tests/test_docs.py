"""The documentation says what is: commands, exit codes, tables, keys, fields, messages, rooms and links."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import sqlite3
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click
import pytest
import typer
from typer.testing import CliRunner

import fedforget
from fedforget import errors
from fedforget.algorithm import ports
from fedforget.cli import app as cli
from fedforget.cli import proving
from fedforget.requests.lifecycle import Stage
from fedforget.store import metrics, plan_file, record, run_directory, server_store, uses
from fedforget.store.plan_file import PlanFile
from tests.cli.commandline import good, train
from tests.test_rooms import ALLOWED

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
cli.commands()  # importing the modules fills the program


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows_of(text: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not set(line) <= set("|-: ")]
    return [[cell.strip() for cell in line[1:].rstrip().removesuffix("|").split("|")] for line in lines]


def test_every_command_is_documented() -> None:
    everything = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    group = typer.main.get_command(cli.app)
    assert isinstance(group, click.Group)
    missing = [
        name for name in group.commands if f"fedforget {name}" not in everything and f"`{name}`" not in everything
    ]
    assert missing == []


def commands_in(text: str) -> set[tuple[str, ...]]:
    """The commands that a text gives in code, without options: the program's name and what follows it in lower case."""
    spans = re.findall(r"`fedforget ([^`]+)`", text)
    return {tuple(re.match(r"[a-z-]+(?: [a-z-]+)*", span)[0].split()) for span in spans}  # type: ignore[index]


def options_in(text: str) -> dict[tuple[str, ...], set[str]]:
    found: dict[tuple[str, ...], set[str]] = {}
    for span in re.findall(r"`fedforget ([^`]+)`", text):
        (name,) = commands_in(f"`fedforget {span}`")
        found.setdefault(name, set()).update(re.findall(r"--[a-z-]+", span))
    return found


def test_every_command_of_the_claims_exists_with_its_options() -> None:
    group = typer.main.get_command(cli.app)
    named = options_in(text_of("claims.md"))
    assert len(named) > 5
    for words, options in named.items():
        command: click.Command = group
        for word in words:
            assert isinstance(command, click.Group), words
            command = command.commands[word]
        known = {name for parameter in command.params for name in parameter.opts}
        assert options <= known, (words, options - known)


def test_every_claim_names_its_support_and_a_command() -> None:
    rows = rows_of(text_of("claims.md"))[1:]
    assert len(rows) > 10
    for claim, support, command, excluded in rows:
        assert claim.startswith("**")
        assert commands_in(command) or "search the directory" in command, claim
        assert "tests/" in support, claim
        assert len(excluded) > 20, claim
        for file in re.findall(r"`(tests/[^`]+)`", support):
            assert (ROOT / file).is_file(), file


# Exit codes


def all_errors() -> list[type[errors.FedForgetError]]:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return [value for value in classes if issubclass(value, errors.FedForgetError)] + [proving.VerificationFailed]


def documented_codes() -> dict[int, list[list[str]]]:
    found: dict[int, list[list[str]]] = {}
    for cells in rows_of(text_of("exit-codes.md")):
        if cells[0].isdigit():
            found.setdefault(int(cells[0]), []).append(cells)
    return found


def test_every_exit_code_is_documented_with_a_remedy() -> None:
    documented = documented_codes()
    ends = {0} | {value for name, value in vars(cli).items() if name.startswith("EXIT_")}
    assert set(documented) == {error.exit_code for error in all_errors()} | ends
    for code, rows in documented.items():
        for cells in rows:
            assert len(cells) == 4, cells
            assert cells[2], f"{code}: when"
            assert code == 0 or len(cells[3]) > 15, f"{code}: what to do"


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_error_has_its_code_in_the_table(error: type[errors.FedForgetError]) -> None:
    rows = documented_codes()[error.exit_code]
    assert any(f"`{error.code}`" in cells[1] for cells in rows), error.code


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_error_is_in_the_tree_with_what_it_is_for(error: type[errors.FedForgetError]) -> None:
    """The command line's own stands in its module."""
    if error in (errors.FedForgetError, proving.VerificationFailed):
        return
    told = re.search(rf"^ +{error.__name__} +(\S.*)$", errors.__doc__ or "", re.MULTILINE)
    assert told is not None
    assert len(told[1].partition("(exit")[0].strip()) > 10, told[1]


def test_no_row_of_the_table_names_a_code_that_does_not_exist() -> None:
    named = {
        code for rows in documented_codes().values() for cells in rows for code in re.findall(r"`(.+?)`", cells[1])
    }
    ends = {"usage", "unexpected", "interrupted", "terminated"}
    assert named == {error.code for error in all_errors()} | ends


def test_error_codes_are_unique() -> None:
    codes = [error.code for error in all_errors()]
    assert len(set(codes)) == len(codes)


def test_docstring_of_errors_has_the_same_codes() -> None:
    told = dict(re.findall(r"^ +(\w+) .*\(exit (\d+)\)", errors.__doc__ or "", re.MULTILINE))
    assert {name: int(code) for name, code in told.items()} == {
        error.__name__: error.exit_code
        for error in all_errors()
        if error.__module__ == errors.__name__ and error.__base__ is errors.FedForgetError
    }


# The run directory


def documented_tables(database: str) -> dict[str, list[str]]:
    section = text_of("run-directory.md").split(f"\n## {database}\n")[1].split("\n## ")[0]
    tables: dict[str, list[str]] = {}
    current = ""
    for cells in rows_of(section):
        if cells[0] == "table":
            continue
        current = cells[0].strip("`") or current
        tables.setdefault(current, []).extend(re.findall(r"`(\w+)`", cells[1]))
    return tables


def real_tables(schema: str) -> dict[str, list[str]]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    tables = {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in names}
    connection.close()
    return tables


@pytest.mark.parametrize(
    ("database", "schema"),
    [
        ("server.db", server_store.SCHEMA),
        ("uses.db", uses.SCHEMA),
        ("metrics.db", metrics.SCHEMA),
        ("record.db", record.SCHEMA),
    ],
)
def test_every_table_and_column_is_documented(database: str, schema: str) -> None:
    assert documented_tables(database) == real_tables(schema)


def keys_of(schema: str) -> dict[str, list[str]]:
    """The keys that each key-value table may hold: those that its constraint names."""
    tables = re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", schema, re.DOTALL)
    return {name: re.findall(r"WHEN '(\w+)' THEN", body) for name, body in tables if "CASE key" in body}


@pytest.mark.parametrize(("database", "schema"), [("server.db", server_store.SCHEMA), ("record.db", record.SCHEMA)])
def test_every_key_of_a_key_value_table_is_documented(database: str, schema: str) -> None:
    section = text_of("run-directory.md").split(f"\n## {database}\n")[1].split("\n## ")[0]
    keys = keys_of(schema)
    assert keys
    for table, names in keys.items():
        (row,) = [cells for cells in rows_of(section) if cells[0] == f"`{table}`"]
        assert [name for name in names if f"`{name}`" not in row[2]] == []


def test_every_part_of_the_plan_file_is_documented() -> None:
    from fedforget.algorithm.plan import Plan  # noqa: PLC0415 (only here)

    section = text_of("run-directory.md").split("\n## plan.toml\n")[1].split("\n## ")[0]
    lines = PlanFile(Plan(1, 1, 1, 1), {}, {}, b"", {}).encode().decode().splitlines()
    keys = [line.split(" = ")[0] for line in lines if " = " in line]
    sections = [line for line in lines if line.startswith("[")]
    assert [word for word in (*keys, *sections) if f"`{word}`" not in section] == []
    assert plan_file.NAME in text_of("run-directory.md")


def test_every_stage_of_a_request_is_documented() -> None:
    section = text_of("run-directory.md").split("\n## How a request becomes durable\n")[1].split("\n## ")[0]
    order = re.findall(r"`(\w+)`", "\n".join(cells[0] for cells in rows_of(section)[1:]))
    assert order == list(Stage)


# Links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_internal_links_have_targets(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(target)
    assert missing == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_hints_of_the_program_name_pages_that_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"docs/[\w/-]+\.md", source))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


INDEFINITE = re.compile(r"\b(?:whoever|somebody|nobody|everybody|anybody|someone|anyone)\b", re.IGNORECASE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_the_actor(page: Path) -> None:
    """Caller, process, client, server, operator, auditor; code aside."""
    prose = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    assert INDEFINITE.findall(prose) == []


def prose_of(path: Path) -> Iterator[str]:
    """Yield the comments, docstrings and function names of a source file, not its other strings."""
    text = path.read_text(encoding="utf-8")
    if not INDEFINITE.search(text.replace("_", " ")):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
            yield getattr(node, "name", "").replace("_", " ")


@pytest.mark.parametrize("directory", ["src", "tests", "examples", "benchmarks"])
def test_sources_name_the_actor(directory: str) -> None:
    files = list((ROOT / directory).rglob("*.py"))
    assert files
    found = [(path.name, text) for path in files for text in prose_of(path) if INDEFINITE.search(text)]
    assert found == []


def test_changelog_tells_everything_once() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = [entry.strip()[:60] for entry in re.split(r"\n(?=- |#)", text) if entry.startswith("- ")]
    assert [entry for entry in set(entries) if entries.count(entry) > 1] == []


def test_every_page_is_linked_from_the_readme_or_an_index() -> None:
    indexes = [ROOT / "README.md", ROOT / "docs" / "decisions" / "README.md"]
    linked = {
        (index.parent / target.partition("#")[0]).resolve()
        for index in indexes
        for target in re.findall(r"\]\(([^)\s]+)\)", index.read_text(encoding="utf-8"))
    }
    assert [str(page.relative_to(ROOT)) for page in PAGES[1:] if page not in linked] == []


def test_the_plan_in_the_readme_is_what_the_command_prints() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("\n## How often it recomputes\n")[1].split("\n## ")[0]
    command, *printed = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    result = CliRunner().invoke(cli.app, command.split()[1:])
    assert result.exit_code == 0
    assert "\n".join(printed) in result.stdout
    assert len(printed) == 5


# The API


def public_dataclasses() -> list[str]:
    return [name for name in fedforget.__all__ if dataclasses.is_dataclass(getattr(fedforget, name))]


@pytest.mark.parametrize("name", public_dataclasses())
def test_every_field_of_a_public_dataclass_is_documented(name: str) -> None:
    """In the entry or the entries that name the class, inside code."""
    kind = getattr(fedforget, name)
    entries = [entry for entry in text_of("api.md").split("\n\n") if re.search(rf"`{name}[`(.]", entry)]
    documented = {
        word for entry in entries for code in re.findall(r"`([^`]+)`", entry) for word in re.findall(r"\w+", code)
    }
    fields = [field.name for field in dataclasses.fields(kind)]
    fields += [each for each, value in vars(kind).items() if isinstance(value, property)]
    assert [field for field in fields if field not in documented] == []


# The architecture


def test_every_message_is_documented() -> None:
    """Every dataclass of the ports, so that no message is left out."""
    here = [value for value in vars(ports).values() if dataclasses.is_dataclass(value) and isinstance(value, type)]
    names = [value.__name__ for value in here if value.__module__ == ports.__name__]
    assert len(names) > 10
    assert [name for name in names if f"`{name}`" not in text_of("architecture.md")] == []


def documented_rooms() -> dict[str, list[str]]:
    section = text_of("architecture.md").split("\n## The rooms\n")[1].split("\n## ")[0]
    return {cells[0].strip("`/"): cells for cells in rows_of(section)[1:]}


@pytest.mark.parametrize("room", [*sorted(ALLOWED), "cli"])
def test_every_room_is_documented_with_what_it_may_import(room: str) -> None:
    _, holds, rooms, packages = documented_rooms()[room]
    assert len(holds) > 10
    if room == "cli":
        return
    ours = {name.removeprefix("fedforget.") for name in ALLOWED[room] if name.startswith("fedforget.")} - {"errors"}
    names = {"sklearn": "scikit-learn"}
    others = {names.get(name, name) for name in ALLOWED[room] if not name.startswith("fedforget.")}
    assert set(packages.replace(",", "").split()) == others
    if rooms == "all of the above":
        above = list(documented_rooms())
        assert ours == set(above[: above.index(room)])
    else:
        assert set(re.findall(r"`([\w.]+)`", rooms)) == ours


def test_every_source_file_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`(\w+(?:/\w+)*\.py)`", text_of("architecture.md")))
    assert len(named) > 20
    places = (ROOT, ROOT / "src" / "fedforget")
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


def test_one_forget_goes_through_the_files_in_the_order_of_the_architecture(tmp_path: Path) -> None:
    """The first file of each row, as a subsequence of the files whose functions are called."""
    rows = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \|", text_of("architecture.md"), re.MULTILINE)
    documented = [file for _, file in rows]
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len(rows) > 12
    train(tmp_path / "run")
    used = next(
        (client, sample)
        for client, sample, step in steps_of(tmp_path / "run")
        if step is not None and step > 2  # so that a round before it stays
    )
    package, called = str(ROOT / "src" / "fedforget") + "/", list[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(package) and (not called or called[-1] != file):
            called.append(file)

    sys.setprofile(note)
    try:
        good("forget", tmp_path / "run", "--client", str(used[0]), "--sample", str(used[1]), "--federation", "inline")
    finally:
        sys.setprofile(None)
    way = iter(file.removeprefix(package) for file in called)
    missing = [file for file in documented if file not in way]  # a test of an iterator consumes it
    assert missing == []


def steps_of(run: Path) -> list[tuple[int, int, int | None]]:
    with run_directory.reading(run) as found:
        return [
            (int(client), int(sample), found.clients.first_steps(client).get(sample))
            for client in found.server.roster
            for sample in found.clients.samples(client)
        ]
