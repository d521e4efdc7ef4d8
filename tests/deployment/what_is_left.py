"""What is left in Flower's files after erasures: searched before and after `fedforget superlink-purge`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedforget.client_side.directory import reading
from tests.deployment.forensics import Wanted, pieces_of, search, tensors_of
from tests.deployment.superlink import NAME, Deployment

THERE = ("--federation", f"flower:{NAME}")
CLIENTS = ("ward-4f1c9000", "ward-77b02e32", "ward-c95d3f64", "ward-e2216b96")  # other samples each
PLAN = ("--data", "digits", "--clients-per-round", 2, "--batch-size", 8, "--local-steps", 2, "--rounds", 4)
WARDS = """
import hashlib
from sklearn.datasets import load_digits


def samples(client):
    x, y = load_digits(return_X_y=True)
    first = int(client[-2:], 16)
    rows = range(first, first + 40)
    return {name(client, row): ((x[row] / 16).astype("float32"), int(y[row])) for row in rows}


def name(client, row):
    return "patient-" + hashlib.blake2b(f"{client}/{row}".encode(), digest_size=10).hexdigest()
"""
PIECES = "pieces of models and updates"
PLACES = {
    "the SuperLink's database and its log": r"state\.db.*",
    "logs of SuperLink, SuperNodes and commands": r".*\.log",
    "temporary files": "tmp",
    "directories of clients": r"state-.*",
    "the run directory": r"run",
    "the rest of FLWR_HOME": r"(?!evidence|old-|wards|__pycache__|.*\.json$|.*\.fault$).*",
}


def after_erasures(there: Deployment) -> dict[str, Any]:
    """Train, erase a sample at its client and a client at the server, search, purge, and search again."""
    run = there.folder / "run"
    _start(there)
    enrolled = [part for client in CLIENTS for part in ("--enrolled", f"{client}.json")]
    _good(there, "train", "--out", run, *PLAN, *enrolled, *THERE)
    sample, content = _used_sample(there.folder / f"state-{CLIENTS[0]}")
    old = _old_tensors(there, run)
    wanted_texts = _texts(there, sample, content)
    _good(there, "client", "forget", "--state-dir", f"state-{CLIENTS[0]}", "--sample", sample, "--basis", "exogenous")
    _good(there, "run-pending", run, *THERE)
    _good(there, "forget", run, "--client", CLIENTS[1], "--basis", "exogenous", *THERE)
    present = [tensor for model in _models(run) for tensor in tensors_of(model)]
    wanted = Wanted(wanted_texts, pieces_of(old, pieces_of(present)))
    assert wanted.pieces, "the erasures superseded no model"
    before = _searched(there.folder, wanted)
    purged = _good(there, "superlink-purge", "state.db")
    after = _searched(there.folder, wanted)
    database = "the SuperLink's database and its log"
    assert before[database]["hits"].get(PIECES), f"the search finds no model before the purge: {before}"
    left = {place: found["hits"] for place, found in after.items() if found["hits"].keys() - {"ids of clients"}}
    assert not left, f"after the purge there are: {left}"
    return {"before": before, "after": after, "pieces": len(wanted.pieces), "purge": purged.split()}


def _start(there: Deployment) -> None:
    there.start_superlink()
    (there.folder / "wards.py").write_text(WARDS)
    (there.folder / "evidence").mkdir()
    for client in CLIENTS:
        _good(
            there, "client", "init", "--state-dir", f"state-{client}", "--client", client, "--data", "wards:samples",
            "--out", f"{client}.json",
        )  # fmt: skip
        there.register(f"node-{client}")
        there.fault(f"node-{client}").write_text(f"record {there.folder / 'evidence'}")
        there.start_node(f"node-{client}", there.folder / f"state-{client}")


def _good(there: Deployment, *arguments: object) -> str:
    done = there.fedforget(*arguments, timeout=900)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}\n{there.log('superlink')[-2000:]}"
    return done.stdout


def _used_sample(state: Path) -> tuple[str, bytes]:
    """The first sample that a client used, and the digest of its content."""
    with reading(state) as opened:
        steps = opened.memory.first_steps(opened.client)
        sample = min(steps or opened.book.contents(), key=lambda each: steps.get(each, 0))
        return str(sample), opened.book.contents()[sample]


def _texts(there: Deployment, sample: str, content: bytes) -> dict[str, bytes]:
    with reading(there.folder / f"state-{CLIENTS[1]}") as opened:
        erased = opened.book.contents()
    texts = {"ids of clients": CLIENTS[1].encode()}
    for number, (each, digest) in enumerate([(sample, content), *list(erased.items())[:10]]):
        texts |= {
            f"sample {number}": str(each).encode(),
            f"digest {number}": digest,
            f"hex {number}": digest.hex().encode(),
        }
    return texts


def _models(run: Path) -> list[Path]:
    return sorted((run / "models").glob("*.safetensors"))


def _old_tensors(there: Deployment, run: Path) -> set[bytes]:
    """The tensors of every model and every update until now."""
    updates = {each.read_bytes() for each in (there.folder / "evidence").iterdir()}
    return updates | {tensor for model in _models(run) for tensor in tensors_of(model)}


def after_a_simulation() -> dict[str, Any]:
    """Train in a Flower simulation, forget a client there, and search what Flower and Ray wrote."""
    with tempfile.TemporaryDirectory(prefix="ffs") as short:  # Ray's sockets need short paths
        folder, run = Path(short), Path(short) / "run"
        (folder / "tmp").mkdir()
        given = {"TMPDIR": str(folder / "tmp"), "FLWR_HOME": str(folder / "tmp" / "home")}
        how = ("--federation", "flower-simulation")
        command = [sys.executable, "-m", "fedforget"]
        plan = [*map(str, PLAN), "--clients", "4", "--seed", "5"]
        old = set[bytes]()
        for arguments in (["train", "--out", str(run), *plan], ["forget", str(run), "--client", "1"]):
            old = {tensor for model in _models(run) for tensor in tensors_of(model)}
            subprocess.run(
                [*command, *arguments, *how], env={**os.environ, **given}, timeout=1500, check=True, capture_output=True
            )
        present = [tensor for model in _models(run) for tensor in tensors_of(model)]
        wanted = Wanted({}, pieces_of(old, pieces_of(present)))
        assert wanted.pieces, "the erasure superseded no model"
        ray = [path for path in (Path("/tmp/ray"),) if path.exists()]
        found = search([folder / "tmp", *ray, run], wanted)
        assert not found.hits, found
        return {"files": found.files, "bytes": found.searched, "hits": found.hits, "pieces": len(wanted.pieces)}


def _searched(folder: Path, wanted: Wanted) -> dict[str, Any]:
    """Search each kind of place."""
    left, found = sorted(folder.iterdir()), dict[str, Any]()
    for place, pattern in PLACES.items():
        paths = [path for path in left if re.fullmatch(pattern, path.name)]
        left = [path for path in left if path not in paths]
        if place.startswith("temporary"):
            paths += [path for path in (Path("/tmp/ray"),) if path.exists()]
        one = search(paths, wanted)
        found[place] = {"files": one.files, "bytes": one.searched, "hits": one.hits, "where": sorted(one.where)}
    return found


def table(facts: Mapping[str, Any]) -> str:
    rows = [
        "| place | files | bytes | pieces before | ids and digests before | after the purge |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for place, before in facts["before"].items():
        after, hits = facts["after"][place]["hits"], before["hits"]
        others = sum(hits.values()) - hits.get(PIECES, 0)
        left = "; ".join(f"{count:,} {name}" for name, count in after.items()) or "nothing"
        rows.append(
            f"| {place} | {before['files']} | {before['bytes']:,} | {hits.get(PIECES, 0):,} | {others:,} | {left} |"
        )
    return "\n".join(rows) + f"\n\n{facts['pieces']:,} different pieces were searched."
