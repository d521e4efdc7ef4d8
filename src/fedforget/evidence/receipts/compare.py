"""Compare receipts with their run: every claim with the record, and the recomputed rounds by replaying them.

The check builds the statement that the run issued at the receipt's time, and names each field that differs. Beyond that
it compares the digests with their MACs, and the run as it is now with the receipt if nothing has changed since.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from fedforget.algorithm.learn import Progress
from fedforget.errors import shown
from fedforget.evidence.receipts.check import ReceiptCheck
from fedforget.evidence.receipts.proofs import Target, from_hex
from fedforget.evidence.receipts.shape import Statement
from fedforget.evidence.receipts.statement import Ending, build_statement
from fedforget.evidence.replay import Replayer, replay_rounds
from fedforget.requests.chain import EventChain
from fedforget.requests.lifecycle import Stage
from fedforget.store import record_audit
from fedforget.store.commitments import commitments_digest
from fedforget.store.record import FORGOTTEN
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest

_PROVEN = ("target", "absence", "presence", "data_root_after", "data_root_before")
_GROUPS = [("predicate", name) for name in ("request", "chain", "counterfactual")]
_HEAD = ("predicate", "chain", "head")
_OTHER = {  # how messages name a differing field; "another {field}" by default
    "subject": "another state digest",
    "target": "another target",
    "data_root_after": "another root of the data after",
    "data_root_before": "another root of the data before",
    "data_root_mac": "another keyed digest of the data",
    "data_root_mac_before": "another keyed digest of the data before",
    "absence": "another proof of absence",
    "presence": "another proof of presence",
    "out_of_reach": "other exports",
    "re_execute": "another command that re-executes it",
    "rounds": "another number of rounds",
    "run": "another beginning",
    "previous": "another receipt before it",
    "times": "other times",
    "sequence": "another place in the event chain",
    "commitments": "another set of commitments to seeds",
    "state_mac": "another keyed digest of the state",
    "state_mac_before": "another keyed digest of the state before",
    "superseded": "a state that is not superseded",
    "seeds_tainted": "another account of tainted seeds",
    "version": "another version of the code",
    "first_changed_step": "another first changed step",
    "recomputed_steps": "another number of recomputed steps",
    "recomputed_rounds": "another number of recomputed rounds",
    "guarantee_covers": "another account of what the guarantee covers",
    "mixed_environments": "another account of environments",
}


def compare(found: ReceiptCheck, run: OpenRun) -> None:
    """Compare a receipt with the record and content of a run. Add the differences to ``found.problems``."""
    problem = record_audit.find_problem(run.record, run.server.seed_origin)
    found.problems += [problem] if problem is not None else _problems(found.statement, run)
    found.run_ok = not found.problems
    found.seeds_tainted_now = run.record.book.tainted


def check_with_run(
    found: ReceiptCheck, run: OpenRun, engine: Replayer, sample: int | None = None, on_round: Progress | None = None
) -> None:
    """Compare a receipt with a run, and replay the rounds recomputed for it: ``sample`` random ones, or all."""
    compare(found, run)
    if not found.run_ok:
        return
    rounds: Sequence[int] = recomputed_rounds(run, found.statement["predicate"]["request"]["id"])
    if sample is not None:
        rounds = secrets.SystemRandom().sample(rounds, min(sample, len(rounds)))
    with engine.computing():
        engine.check_data(run)
        replayed = replay_rounds(run, engine, rounds, on_round)
    found.rounds_replayed, found.bitwise_equal = replayed.rounds, replayed.bitwise_equal
    found.within_tolerance = replayed.within_tolerance
    found.problems += replayed.problems


def _problems(statement: Statement, run: OpenRun) -> list[str]:
    identifier = statement["predicate"]["request"]["id"]
    known = run.record.book.receipts_of([identifier])
    receipt = next((each for each in known if each.id == identifier and not each.is_open), None)
    if receipt is None:
        other = "it is another run, or its record was cut off"
        return [f"the run has not carried out request {shown(identifier)}: {other}"]
    ending = Ending.read(run, receipt)
    differing = _differing_paths(statement, _expected_statement(statement, run, ending))
    problems = [_head_problem(statement, ending.chain) if path == _HEAD else _in_words(path) for path in differing]
    if ending.is_erasure:
        problems += [*_mac_problems(statement, run, ending), *_problems_now(statement, run, ending)]
    return list(dict.fromkeys(problems))


def _expected_statement(given: Statement, run: OpenRun, ending: Ending) -> Statement:
    """Return the statement that the run issued for this request at the receipt's time.

    What later requests or ``forget_itself`` removed from the record is taken from the receipt.
    """
    expected = build_statement(run, ending, public=given["predicate"]["form"] == "public")
    predicate, request = expected["predicate"], expected["predicate"]["request"]
    if predicate.get("superseded"):
        expected["subject"], predicate["superseded"] = given["subject"], not given["subject"]
    if "absence" in predicate and predicate["absence"] is None:  # only an archived receipt holds the proof
        predicate |= {name: given["predicate"].get(name) for name in _PROVEN if name in predicate}
    if "model" in predicate and predicate["model"] is None:
        predicate["model"] = given["predicate"].get("model")
    if request["pseudonym"] is None and ending.is_before(FORGOTTEN):
        request["pseudonym"] = given["predicate"]["request"]["pseudonym"]
    return expected


def _differing_paths(given: Any, expected: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every field that differs, or that only one of the two has."""
    if isinstance(given, dict) and isinstance(expected, dict):
        for name in {**expected, **given}:
            if name in given and name in expected:
                yield from _differing_paths(given[name], expected[name], (*path, name))
            else:
                yield (*path, name)
    elif _text(given) != _text(expected):
        yield path


def _text(value: Any) -> str:
    """Return JSON text: unlike Python values, it distinguishes 1 from true, and 8 from 8.0."""
    return json.dumps(value, sort_keys=True)


def _in_words(path: tuple[str, ...]) -> str:
    name = path[:3][-1] if path[:2] in _GROUPS else path[:2][-1]  # all fields below "times" are "times"
    return f"the run's record has {_OTHER.get(name, f'another {name}')} for this request"


def _head_problem(statement: Statement, chain: EventChain) -> str:
    """Return why the chain head is not the event with which this request ended."""
    if chain.has(statement["predicate"]["chain"]["head"]):
        return "the head of the event chain is not the event with which this request ended: an older head was inserted"
    return "the head of the event chain is not in the run's record: the record was replaced or cut off"


def _mac_problems(statement: Statement, run: OpenRun, ending: Ending) -> Iterator[str]:
    """Compare the digests of state and model with their MACs, which the record keeps when it deletes the digests."""
    if ending.is_before(FORGOTTEN):  # the key of the MACs is destroyed
        return
    predicate, mac = statement["predicate"], run.record.pseudonyms.mac
    for name, digest in (("state", _state_digest_in(statement)), ("model", predicate.get("model"))):
        if digest is not None and mac(name, digest.encode()).hex() != ending.outcome.get(f"{name}_mac"):
            yield f"the {name} digest is not that of the {name} after this request"
    begun = ending.events["begun"].body
    roots = ("data_root_after", ending.outcome.get("data_root")), ("data_root_before", begun.get("data_root_before"))
    for name, noted in roots:
        root = predicate.get(name)
        if root is not None and mac("data root", from_hex(root)).hex() != noted:
            when = name.rpartition("_")[2]
            yield f"the root of the data {when} this request is another one"
    if predicate["target"] is not None:
        target = Target.parse(predicate["target"])
        if mac("target", target.client + (target.sample or b"")).hex() != begun.get("target"):
            yield "the receipt is about another target than this request"


def _problems_now(statement: Statement, run: OpenRun, ending: Ending) -> Iterator[str]:
    """Compare the receipt with the run as it is now, unless a later request has changed the run."""
    if ending.is_before("reseeded", "added", Stage.REMOVED):
        return
    predicate, digest = statement["predicate"], _state_digest_in(statement)
    if run.file.digest != predicate["counterfactual"].get("plan"):
        yield "the run now has another plan"
    if commitments_digest(run) != predicate["counterfactual"].get("commitments"):
        yield "the run is now committed to other seeds: a seed was replaced"
    if digest is not None and not ending.is_before("trained") and state_digest(run) != digest:
        yield "the run's state is not the one after this request"


def _state_digest_in(statement: Statement) -> str | None:
    """Return the state digest in a receipt, or None."""
    subject = statement["subject"]
    return str(subject[0]["digest"]["blake2b-256"]) if subject else None


def recomputed_rounds(run: OpenRun, identifier: str) -> range:
    """Return the rounds that were recomputed for a request, counted from 1."""
    receipt, plan = run.record.book.receipt(identifier), run.file.plan
    if not receipt.recomputed_steps:
        return range(0)
    model_round = run.record.book.round_of(identifier)
    rounds = receipt.recomputed_steps // plan.local_steps
    return range(model_round - rounds + 1, min(model_round, run.server.rounds_done) + 1)
