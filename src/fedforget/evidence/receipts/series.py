"""Check that archived receipts lie in one event chain: a rewritten record is detected.

Every full receipt proves that it continues the receipt before it. Where receipts are missing between two of an archive,
the run can give a link: a proof that the last missing one, which the newer receipt names, follows the older. A link to
the newer receipt itself would show less: an event has two ways back, and a rewritten record could take the other one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedforget.disk.door import read_named
from fedforget.disk.files import path_of
from fedforget.errors import InvalidInput, ReceiptRefused
from fedforget.evidence.receipts import strict_json
from fedforget.evidence.receipts.check import read_receipt
from fedforget.evidence.receipts.proofs import from_hex
from fedforget.evidence.receipts.shape import Statement, are_pairs
from fedforget.requests.links import HASH_BYTES, Step, follow
from fedforget.store.run_directory import OpenRun

FORMAT = "urn:fedforget:links:1"
_LARGEST = 2**63
_GAP = "get the receipts between them, or `fedforget receipt link RUN FILES --out LINKS`, and give --links"

Links = dict[tuple[bytes, int, int], list[Step]]  # the run and two places in its chain → the steps between them


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a receipt in the event chain, with its proof that it continues the previous receipt."""

    file: str
    request: str
    run: bytes
    sequence: int
    head: bytes
    previous: tuple[int, bytes] | None  # the place of the receipt before it, and the head there
    steps: list[Step]


@dataclass(slots=True)
class SeriesCheck:
    """The result of checking a series, with every problem found."""

    receipts: list[dict[str, Any]] = field(default_factory=list)  # in the order of the chain
    links_used: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def check_series(
    files: Sequence[str | Path], keys: Sequence[str | Path], links: Sequence[str | Path] = ()
) -> SeriesCheck:
    """Check the signatures of receipts, and that each continues the previous one. Needs no run."""
    places = sorted((read_place(file, keys) for file in files), key=lambda place: place.sequence)
    known, run = read_links(links), places[0].run if places else b""
    found = SeriesCheck([{"file": each.file, "request": each.request, "sequence": each.sequence} for each in places])
    found.problems += [f"{each.file} is of another run than {places[0].file}" for each in places if each.run != run]
    found.problems += [problem for each in places for problem in _own_problem(each)]
    for older, newer in pairwise(places):
        if older.run == newer.run:
            _compare(older, newer, known, found)
    return found


def read_place(file: str | Path, keys: Sequence[str | Path]) -> Place:
    """Read a full receipt that one of the keys signed, and return its place in the chain."""
    if not keys:
        raise InvalidInput("no public key is given", hint="give the keys that the receipts were signed with")
    predicate = _signed_by_one(file, keys)["predicate"]
    if predicate["form"] != "full":
        raise ReceiptRefused(
            f"{file} is a public receipt, which does not state its place in the chain",
            hint="give the full receipt of the same request",
        )
    chain = predicate["chain"]
    try:
        previous = chain["previous"]
        before = None if previous is None else (previous["sequence"], from_hex(previous["head"]))
        steps = [] if previous is None else _steps(previous["steps"])
        run, head = from_hex(chain["run"]), from_hex(chain["head"])
    except ValueError as error:
        raise ReceiptRefused(f"{file} does not have a place in a chain: {error}", hint="give another copy") from error
    return Place(str(file), predicate["request"]["id"], run, chain["sequence"], head, before, steps)


def _signed_by_one(file: str | Path, keys: Sequence[str | Path]) -> Statement:
    """Return the statement that one of the keys signed. Raise the refusal of the last key."""
    for key in keys[:-1]:
        with contextlib.suppress(ReceiptRefused):
            return read_receipt(file, key).statement
    return read_receipt(file, keys[-1]).statement


def _own_problem(place: Place) -> Iterable[str]:
    """Check the proof that a receipt continues the previous one."""
    if place.previous is not None:
        sequence, head = place.previous
        if follow(sequence, head, place.sequence, place.steps) != place.head:
            yield f"{place.file} does not prove that it continues the previous receipt"


def _compare(older: Place, newer: Place, links: Links, found: SeriesCheck) -> None:
    both = f"{older.file} (event {older.sequence}) and {newer.file} (event {newer.sequence})"
    if older.sequence == newer.sequence:
        if older.head != newer.head:  # the requests of a batch end at one place
            found.problems.append(f"{both} have the same place in the chain: the record was rewritten")
    elif newer.previous is None or newer.previous[0] < older.sequence:
        found.problems.append(f"{newer.file} does not follow {older.file}: the record was rewritten between {both}")
    elif newer.previous[0] == older.sequence:
        if newer.previous[1] != older.head:
            found.problems.append(f"{newer.file} continues another receipt than {older.file}: the record was rewritten")
    else:
        between, head = newer.previous
        steps = links.get((newer.run, older.sequence, between))
        if steps is None:
            found.problems.append(f"it is not shown that {newer.file} follows {older.file}: {_GAP}")
        elif follow(older.sequence, older.head, between, steps) != head:
            found.problems.append(f"the link between {both} does not lead from one to what the other continues")
        else:
            found.links_used += 1


def make_links(run: OpenRun, places: Sequence[Place]) -> dict[str, Any]:
    """Return the run's proofs that what each of these receipts continues follows the receipt before it."""
    chain, beginning = run.record.chain, run.record.chain.hash_at(1)
    for place in places:
        event = chain.at(place.sequence)
        if place.run != beginning or event is None or event.hash != place.head:
            raise ReceiptRefused(
                f"{place.file} is not in the event chain of {run.path}: it is another run, or its record was rewritten",
                hint="check it with `fedforget receipt verify FILE --key PUB --run RUN`",
            )
    made = []
    for older, newer in pairwise(sorted({place.sequence: place for place in places}.values(), key=_sequence)):
        if newer.previous is not None and newer.previous[0] > older.sequence:
            between = newer.previous[0]
            steps = _written(chain.proof(between, older.sequence))
            made.append({"older": older.sequence, "newer": between, "steps": steps})
    return {"format": FORMAT, "run": beginning.hex(), "links": made}


def _sequence(place: Place) -> int:
    return place.sequence


def read_links(files: Sequence[str | Path]) -> Links:
    """Read files of links; raise ReceiptRefused if one holds anything else."""
    found: Links = {}
    for file in files:
        path = path_of(file, "a file of links")
        try:
            found |= _parsed(strict_json.parse(read_named(path, strict_json.LONGEST)))
        except (ValueError, RecursionError) as error:
            raise ReceiptRefused(f"{path} is not a file of links: {error}", hint=_GAP) from error
    return found


def _parsed(raw: Any) -> Links:
    if not isinstance(raw, dict) or raw.keys() != {"format", "run", "links"} or not isinstance(raw["links"], list):
        raise ValueError("its fields are others")
    if raw["format"] != FORMAT:
        raise ValueError("it has another format")
    run = from_hex(raw["run"])
    return {(run, older, newer): steps for older, newer, steps in map(_link, raw["links"])}


def _link(raw: Any) -> tuple[int, int, list[Step]]:
    if not isinstance(raw, dict) or raw.keys() != {"older", "newer", "steps"} or not isinstance(raw["steps"], list):
        raise ValueError("the fields of a link are others")
    older, newer = raw["older"], raw["newer"]
    if type(older) is not int or type(newer) is not int or not 0 < older < newer < _LARGEST:
        raise ValueError("the places of a link are not in order")
    return older, newer, _steps(raw["steps"])


def _steps(raw: list[Any]) -> list[Step]:
    if not are_pairs(raw):
        raise ValueError("a step is not two hashes")
    steps = [(from_hex(digest), from_hex(beside)) for digest, beside in raw]
    if any(len(part) != HASH_BYTES for step in steps for part in step):
        raise ValueError("a hash is not 32 bytes long")
    return steps


def _written(steps: Iterable[Step]) -> list[list[str]]:
    return [[digest.hex(), beside.hex()] for digest, beside in steps]
