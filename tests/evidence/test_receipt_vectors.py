"""The vectors of the receipt format, for the library and for the verifier that was written from the specification.

The verifier in ``examples/`` imports nothing of FedForget. Both accept every vector and refuse every forgery.
"""

from __future__ import annotations

import ast
import base64
import copy
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedforget.errors import InvalidInput, ReceiptRefused
from fedforget.evidence.receipts.check import ReceiptCheck, read_receipt
from fedforget.evidence.receipts.envelope import seal
from fedforget.evidence.receipts.receipt_key import public_pem
from fedforget.evidence.receipts.series import check_series
from tests.evidence import receipt_vectors
from tests.evidence.receipt_vectors import FILE, FORGED, KEY, openings, statements
from tests.evidence.test_receipt_encoding import KEY as ENCODING_KEY
from tests.evidence.test_receipt_encoding import (
    MIXED_ORDER,
    NO_POINT,
    NOT_CANONICAL,
    PEM,
    REFUSED,
    SMALL_ORDER,
    key_file,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
RECEIPT, SERIES = "verify_receipt", "verify_series"
VECTORS = json.loads(FILE.read_text())
RECEIPTS = {each["name"]: each for each in VECTORS["receipts"]}


@cache
def example(name: str = RECEIPT) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if name == SERIES:
        sys.modules[RECEIPT] = example(RECEIPT)  # which it imports from beside it
    spec.loader.exec_module(module)
    return module


def test_file_holds_what_the_library_gives() -> None:
    """``python -m tests.evidence.receipt_vectors`` writes it. The format is fixed."""
    assert FILE.read_text() == receipt_vectors.text()


@pytest.mark.parametrize(("example_name", "beside"), [(RECEIPT, set()), (SERIES, {RECEIPT})])
def test_example_imports_only_cryptography_and_the_standard_library(example_name: str, beside: set[str]) -> None:
    names = set()
    for node in ast.walk(ast.parse((EXAMPLES / f"{example_name}.py").read_text())):
        if isinstance(node, ast.Import):
            names |= {each.name.partition(".")[0] for each in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    assert names - {"cryptography"} - beside <= sys.stdlib_module_names


# What both say about a file


def written(directory: Path, name: str, value: Any) -> Path:
    path = directory / name
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


def by_library(directory: Path, envelope: Any, opening: Any = None, key: Any = KEY) -> ReceiptCheck:
    (directory / "key.pem").write_bytes(public_pem(key.public_key()))
    opened = None if opening is None else written(directory, "opening.json", opening)
    return read_receipt(written(directory, "receipt.json", envelope), directory / "key.pem", opened)


def by_example(directory: Path, envelope: Any, opening: Any = None, key: Any = KEY) -> int:
    """The exit code of the program."""
    (directory / "key.pem").write_bytes(public_pem(key.public_key()))
    more = [] if opening is None else ["--opening", str(written(directory, "opening.json", opening))]
    file = written(directory, "receipt.json", envelope)
    return int(example().main([str(file), "--key", str(directory / "key.pem"), *more]))


@pytest.mark.parametrize("name", RECEIPTS)
def test_every_vector_is_accepted_by_both(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    vector = RECEIPTS[name]
    found = by_library(tmp_path, vector["envelope"], vector["opening"])
    assert by_example(tmp_path, vector["envelope"], vector["opening"]) == 0
    shown = capsys.readouterr().out
    assert found.absence_shown is (True if vector["opening"] else None)
    assert ("absence" in shown) is bool(found.absence_shown)
    assert ("presence" in shown) is bool(found.presence_shown) is ("full" in name)


@pytest.mark.parametrize("name", FORGED)
def test_every_forgery_is_refused_by_both(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The key signed it: only what it says gives it away."""
    envelope = next(each["envelope"] for each in VECTORS["refused receipts"] if each["name"] == name)
    with pytest.raises(ReceiptRefused) as refusal:
        by_library(tmp_path, envelope)
    assert len(str(refusal.value)) > 20
    assert by_example(tmp_path, envelope) == 13
    assert "refused" in capsys.readouterr().err


@pytest.mark.parametrize("name", openings())
def test_every_wrong_opening_is_refused_by_both(tmp_path: Path, name: str) -> None:
    envelope = RECEIPTS["r-sample, full"]["envelope"]
    opening = next(each["opening"] for each in VECTORS["refused openings of r-sample"] if each["name"] == name)
    with pytest.raises(ReceiptRefused):
        by_library(tmp_path, envelope, opening)
    assert by_example(tmp_path, envelope, opening) == 13


@pytest.mark.parametrize("name", ["rejected", "superseded"])
def test_opening_of_a_receipt_without_proof_is_refused_by_both(tmp_path: Path, name: str) -> None:
    opening = RECEIPTS["r-sample, full"]["opening"]
    with pytest.raises(ReceiptRefused, match="no proof to open"):
        by_library(tmp_path, RECEIPTS[name]["envelope"], opening)
    assert by_example(tmp_path, RECEIPTS[name]["envelope"], opening) == 13


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"format": 1, "format": 2}', b"\xff", b" " * 2**21])
def test_opening_that_is_cut_or_something_else_is_refused_by_both(tmp_path: Path, data: bytes) -> None:
    envelope = RECEIPTS["r-sample, full"]["envelope"]
    with pytest.raises(ReceiptRefused, match="not the opening of a receipt"):
        by_library(tmp_path, envelope, data)
    assert by_example(tmp_path, envelope, data) == 13


def test_cut_opening_is_refused_by_both(tmp_path: Path) -> None:
    whole = json.dumps(RECEIPTS["r-sample, full"]["opening"]).encode()
    for length in range(0, len(whole), 11):
        with pytest.raises(ReceiptRefused):
            by_library(tmp_path, RECEIPTS["r-sample, full"]["envelope"], whole[:length])
        assert by_example(tmp_path, RECEIPTS["r-sample, full"]["envelope"], whole[:length]) == 13


@pytest.mark.parametrize("name", REFUSED)
def test_other_encodings_are_refused_by_the_example(tmp_path: Path, name: str) -> None:
    assert by_example(tmp_path, REFUSED[name], key=ENCODING_KEY) == 13


@pytest.mark.parametrize("raw", [*SMALL_ORDER, *NOT_CANONICAL, NO_POINT, MIXED_ORDER])
def test_weak_keys_are_refused_by_the_example(tmp_path: Path, raw: str) -> None:
    file = written(tmp_path, "receipt.json", RECEIPTS["r-client, full"]["envelope"])
    assert example().main([str(file), "--key", str(key_file(tmp_path / "key", raw))]) == 13


@pytest.mark.parametrize("data", [b"junk\n" + PEM, PEM + PEM, b"", PEM[:-2], PEM + b" " * 2**16])
def test_other_key_files_are_refused_by_the_example(tmp_path: Path, data: bytes) -> None:
    file = written(tmp_path, "receipt.json", RECEIPTS["r-client, full"]["envelope"])
    assert example().main([str(file), "--key", str(written(tmp_path, "key", data))]) == 13


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


OTHER_VALUES: list[Callable[[Any], Any]] = [
    lambda old: None, lambda old: [old], lambda old: {"value": old}, lambda old: 3, lambda old: True,
    lambda old: f"{old}x", lambda old: 1.5, lambda old: "00" * 32,
]  # fmt: skip


def with_value(statement: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(statement)
    holder: Any = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


@pytest.mark.parametrize("name", ["r-sample, full", "r-emptied, public", "rejected", "superseded"])
def test_both_agree_on_every_altered_field(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Signed anew with the key. What remains accepted, only the run can tell; the two never differ."""
    statement, refused = statements()[name][0], 0
    fields = [path for path in leaves(statement) if not any(isinstance(each, int) and each > 1 for each in path)]
    for number, path in enumerate(fields):
        old = statement
        for key in path:
            old = old[key]
        for change in OTHER_VALUES[number % 2 :: 2]:
            envelope = seal(with_value(statement, path, change(old)), KEY)
            try:
                by_library(tmp_path, envelope)
            except ReceiptRefused:
                refused += 1
                expected = 13
            else:
                expected = 0
            assert by_example(tmp_path, envelope) == expected, (path, change(old))
    capsys.readouterr()
    assert refused > len(fields)


# Series


def series(directory: Path, names: list[str], links: Any = None) -> tuple[list[str], int]:
    """The problems that the library finds, and the exit code of the example."""
    (directory / "key.pem").write_bytes(public_pem(KEY.public_key()))
    files = [written(directory, f"{name}.json", RECEIPTS[name]["envelope"]) for name in names]
    linked = [] if links is None else [written(directory, "links.json", links)]
    more = [part for each in linked for part in ("--links", str(each))]
    found = check_series(files, [directory / "key.pem"], linked)
    code = example(SERIES).main([*map(str, files), "--key", str(directory / "key.pem"), *more])
    return found.problems, code


LINKS = VECTORS["links from r-sample to r-text"]


def test_series_of_receipts_is_accepted_by_both_in_any_order(tmp_path: Path) -> None:
    names = VECTORS["series"]["receipts"]
    for some in (names, names[::-1], names[:2], names[1:3], [*names, *names]):
        assert series(tmp_path, some) == ([], 0)


def test_gap_is_shown_until_a_link_closes_it(tmp_path: Path) -> None:
    names = ["r-sample, full", "r-text, full"]
    problems, code = series(tmp_path, names)
    assert ("not shown" in problems[0], code) == (True, 13)
    assert series(tmp_path, names, LINKS) == ([], 0)


@pytest.mark.parametrize("name", [each["name"] for each in VECTORS["refused series"]])
def test_series_of_a_rewritten_record_is_refused_by_both(tmp_path: Path, name: str) -> None:
    """Its last event covers both histories; its ``previous`` is of the new one."""
    vector = next(each for each in VECTORS["refused series"] if each["name"] == name)
    (tmp_path / "key.pem").write_bytes(public_pem(KEY.public_key()))
    files = [written(tmp_path, f"{place}.json", each) for place, each in enumerate(vector["receipts"])]
    links = written(tmp_path, "links.json", vector["links"])
    assert len(check_series(files, [tmp_path / "key.pem"], [links]).problems) == 1
    assert example(SERIES).main([*map(str, files), "--key", str(tmp_path / "key.pem"), "--links", str(links)]) == 13
    assert all(by_example(tmp_path, each) == 0 for each in vector["receipts"])


def test_altered_link_is_refused_by_both(tmp_path: Path) -> None:
    names = ["r-sample, full", "r-text, full"]
    for path in leaves(LINKS):
        for change in OTHER_VALUES:
            old: Any = LINKS
            for key in path:
                old = old[key]
            altered = with_value(LINKS, path, change(old))
            if altered == LINKS:
                continue
            try:
                problems, code = series(tmp_path, names, altered)
            except ReceiptRefused:
                code = example(SERIES).main([*(str(tmp_path / f"{name}.json") for name in names), "--key",
                                       str(tmp_path / "key.pem"), "--links", str(tmp_path / "links.json")])  # fmt: skip
                problems = ["refused"]
            assert (bool(problems), code) == (True, 13), (path, altered)


def rewritten(change: Callable[[dict[str, Any]], Any], name: str = "r-client, full") -> dict[str, Any]:
    """A receipt of a record that was rewritten, signed by the same key."""
    changed = copy.deepcopy(statements()[name][0])
    change(changed["predicate"]["chain"])
    return seal(changed, KEY)


REWRITTEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another head": lambda chain: chain.update(head="ab" * 32),
    "another run": lambda chain: chain.update(run="ab" * 32),
    "another head before it": lambda chain: chain["previous"].update(head="ab" * 32),
    "no receipt before it": lambda chain: chain.update(previous=None),
    "the place of the one before it": lambda chain: chain.update(sequence=17, previous=None),
    "an earlier place": lambda chain: chain.update(sequence=18, previous={**chain["previous"], "sequence": 16}),
    "no steps": lambda chain: chain["previous"].update(steps=[]),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_receipt_of_a_rewritten_record_is_refused_by_both(tmp_path: Path, name: str) -> None:
    (tmp_path / "key.pem").write_bytes(public_pem(KEY.public_key()))
    files = [
        written(tmp_path, "first.json", RECEIPTS["r-sample, full"]["envelope"]),
        written(tmp_path, "second.json", rewritten(REWRITTEN[name])),
    ]
    assert not check_series(files, [tmp_path / "key.pem"]).ok
    assert example(SERIES).main([*map(str, files), "--key", str(tmp_path / "key.pem")]) == 13


def test_public_receipt_has_no_place_in_a_series(tmp_path: Path) -> None:
    with pytest.raises(ReceiptRefused, match="public receipt"):
        series(tmp_path, ["r-sample, full", "r-client, public"])
    files = [str(tmp_path / f"{name}.json") for name in ("r-sample, full", "r-client, public")]
    assert example(SERIES).main([*files, "--key", str(tmp_path / "key.pem")]) == 13


def test_series_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no public key"):
        check_series([written(tmp_path, "r.json", RECEIPTS["r-sample, full"]["envelope"])], [])


def test_receipts_signed_with_an_earlier_key_are_in_the_series(tmp_path: Path) -> None:
    """After ``--new-key`` an archive holds receipts of two keys."""
    (tmp_path / "key.pem").write_bytes(public_pem(KEY.public_key()))
    (tmp_path / "new.pem").write_bytes(PEM)
    files = [
        written(tmp_path, "first.json", RECEIPTS["r-sample, full"]["envelope"]),
        written(tmp_path, "second.json", seal(statements()["r-client, full"][0], ENCODING_KEY)),
    ]
    assert check_series(files, [tmp_path / "key.pem", tmp_path / "new.pem"]).ok
    assert check_series(files, [tmp_path / "new.pem", tmp_path / "key.pem"]).ok
    with pytest.raises(ReceiptRefused, match="another key"):
        check_series(files, [tmp_path / "key.pem"])


# The parts of the format, by their definitions


def test_labels_and_values_of_the_example_are_those_of_the_vectors() -> None:
    for each in VECTORS["tree"]["labels"]:
        assert example().block(each["id"]).hex() == each["block"]
        made = example().hashed(b"fedforget/tree/1", b"\2", bytes.fromhex(each["salt"] + each["block"]))
        assert made.hex() == each["label"]
    for each in VECTORS["tree"]["values"]:
        made = example().hashed(b"fedforget/tree/1", b"\3", bytes.fromhex(each["salt"] + each["content"]))
        assert made.hex() == each["value"]


def test_chain_of_the_example_is_that_of_the_vectors() -> None:
    chain = VECTORS["chain"]
    hashes = [bytes(32), *map(bytes.fromhex, chain["hashes"])]
    for number, digest in enumerate(chain["digests"], start=1):
        assert example(SERIES).shortcut(number) == chain["shortcuts"][number - 1]
        covered = hashes[number - 1] + hashes[chain["shortcuts"][number - 1]] + bytes.fromhex(digest)
        assert example().hashed(b"fedforget/link/1", number.to_bytes(8, "big"), covered) == hashes[number]
    for each in chain["proofs"]:
        found = example(SERIES).follow(each["older"], hashes[each["older"]], each["newer"], each["steps"])
        assert found == hashes[each["newer"]]


def test_payload_of_every_vector_is_the_canonical_form() -> None:
    for vector in VECTORS["receipts"]:
        payload = base64.b64decode(vector["envelope"]["payload"])
        assert payload == json.dumps(json.loads(payload), sort_keys=True, separators=(",", ":")).encode()
        assert payload.isascii()
