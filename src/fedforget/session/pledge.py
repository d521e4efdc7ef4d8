"""A pledge identifies the learner that began a rewind to round 0, which leaves no witness to compare a learner with.

The process that begins such a batch trains one remaining client for a few steps from the initial model, and stores a
keyed digest of the result in the intent. A process that finishes the batch after a crash repeats the steps and compares
the digests. The pledge is deleted with the intent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from fedforget.algorithm.forget import Decision
from fedforget.algorithm.ids import Id
from fedforget.algorithm.witness import Repetition, fixed_steps
from fedforget.errors import DataChanged, InvalidInput, TrainingFailed
from fedforget.federation.local import InlineTrainer
from fedforget.requests.intents import Intent, Pledge
from fedforget.session.engine import Engine
from fedforget.session.sample_check import SampleCheck
from fedforget.store.run_directory import OpenRun
from fedforget.training.environment import arithmetic, numeric_environment


def make_pledge(engine: Engine, run: OpenRun, decision: Decision) -> Pledge | None:
    """Return the pledge for a decision that is about to be carried out. None if no remaining client can train."""
    touched, leaving = _touched([decision]), set(decision.leaving)
    for client in sorted(run.server.roster, key=lambda client: client in touched):  # clients that lose nothing first
        if client not in leaving:
            mac = _repeat(engine, run, client, decision)
            return None if mac is None else Pledge(client, _environment(), mac)
    return None


def repeat_pledge(engine: Engine, run: OpenRun, pending: Sequence[Intent]) -> Repetition | None:
    """Repeat a pledge that was made in this environment. None if there is none, or if nothing can be concluded.

    Another batch may have changed the samples of a pledge's client. Then only agreement is conclusive.
    """
    for intent in pending:
        pledge = intent.pledge
        if pledge is None or pledge.environment != _environment() or pledge.client not in run.server.roster:
            continue
        try:
            agrees = _repeat(engine, run, pledge.client, intent.decision) == pledge.mac
        except (DataChanged, InvalidInput):
            continue  # a request may follow that erases what is already gone from the data
        others = _touched(each.decision for each in pending if each is not intent)
        if agrees or pledge.client not in others:
            return Repetition(pledge.client, 0, agrees)
    return None


def pledged_elsewhere(pending: Sequence[Intent]) -> bool:
    """Return whether an unfinished batch has a pledge from another environment."""
    return any(intent.pledge is not None and intent.pledge.environment != _environment() for intent in pending)


def _touched(decisions: Iterable[Decision]) -> set[Id]:
    return {
        client
        for decision in decisions
        for client in (
            *decision.leaving,
            *(request.client for request in decision.requests),
            *(new.client for new in decision.joining),
        )
    }


def _repeat(engine: Engine, run: OpenRun, client: Id, decision: Decision) -> bytes | None:
    """Train on the client's first remaining samples and return the keyed digest. None if the learner fails on them."""
    leaving = [
        request.sample for request in decision.requests if request.client == client and request.sample is not None
    ]
    joining = [sample for new in decision.joining if new.client == client for sample, _ in new.samples]
    samples = run.clients.samples(client).without([*leaving, *joining])
    initial = run.server.load(0).model
    work = fixed_steps(client, samples, initial, engine.plan.batch_size)
    SampleCheck(run.clients).require_unchanged(engine.data, work)
    try:
        checksum = InlineTrainer(engine.learner()).train_one(work).checksum
    except TrainingFailed:
        return None
    return None if checksum is None else run.record.pseudonyms.mac("pledge", checksum)


def _environment() -> str:
    """Return a digest of what the arithmetic depends on. In another environment every round is recomputed anyway."""
    text = repr(arithmetic(numeric_environment()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
