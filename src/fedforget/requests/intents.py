"""The intent of a batch: everything that is needed to carry it out, also after a crash."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.ids import Id, canonical_id
from fedforget.algorithm.ports import Enrolled, Newcomer
from fedforget.algorithm.seeds import Seed
from fedforget.disk.parsing import parse_object
from fedforget.requests.leaves import TargetLeaves


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The facts for the receipts of a batch that are known when it begins."""

    guarantee: str = ""
    recomputed_steps: int = 0
    steps_alone: tuple[int, ...] = ()  # steps that carrying out each request individually would have recomputed
    state_before: str = ""  # the digest of the state before the batch
    data_root: bytes = b""  # the root of the tree over the data before the batch
    leaves: tuple[TargetLeaves, ...] = ()  # of each request's target
    added: Mapping[str, Any] = field(default_factory=dict)  # for the event: how many clients and samples join


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state after a batch, as its receipts describe it."""

    rounds_done: int
    model_digest: str | None
    state_digest: str
    plan_digest: str
    commitments: str  # one digest of all of them
    version: str
    mixed_environments: bool
    data_root: bytes = b""  # the root of the tree over the data
    learner: str = ""  # a digest of the names of the module's parts and of the loss, and of the module's structure


@dataclass(frozen=True, slots=True)
class Pledge:
    """A keyed digest of a few steps of the learner that began a batch (``session.pledge``)."""

    client: Id
    environment: str
    mac: bytes

    @classmethod
    def decode(cls, raw: Any) -> Pledge | None:
        if raw is None:
            return None
        client, environment, mac = raw
        return cls(canonical_id(client), str(environment), bytes.fromhex(mac))


@dataclass(frozen=True, slots=True)
class Intent:
    """A batch of requests that are carried out together, with everything that is needed to finish it after a crash."""

    ids: tuple[str, ...]
    decision: Decision
    pledge: Pledge | None = None  # set if the batch leaves no round with a witness

    @property
    def batch_id(self) -> str:
        return self.decision.batch_id

    @property
    def only_recomputes(self) -> bool:
        """Whether the batch removes and adds nothing: it only computes all rounds again."""
        return not self.ids and not self.decision.joining and self.decision.new_seeds is None

    def encode(self) -> str:
        decision, pledge = self.decision, self.pledge
        return json.dumps(
            {
                "requests": [[request.client, request.sample] for request in decision.requests],
                "first_changed_steps": decision.first_changed_steps,
                "leaving": decision.leaving,
                "goal": decision.goal,
                "rewind_to": decision.rewind_to,
                "reseed": None if decision.new_seeds is None else decision.new_seeds.hex(),
                "joining": [
                    [
                        new.client,
                        None if new.seed is None else [new.seed.value.hex(), new.seed.nonce.hex()],
                        [[sample, content.hex()] for sample, content in new.samples],
                        None if new.enrolled is None else [new.enrolled.commitment.hex(), new.enrolled.root.hex()],
                    ]
                    for new in decision.joining
                ],
                "pledge": None if pledge is None else [pledge.client, pledge.environment, pledge.mac.hex()],
            }
        )

    @classmethod
    def being_purged(cls, batch_id: str, ids: Sequence[str]) -> Intent:
        """Return the intent of a batch whose key is dropped: only its end has to be recorded."""
        return cls(tuple(ids), Decision((), (), (), 0, 0, batch_id=batch_id))

    @classmethod
    def decode(cls, batch_id: str, ids: Sequence[str], body: str | bytes) -> Intent:
        raw = parse_object(body)
        joining = tuple(
            Newcomer(
                canonical_id(client),
                None if seed is None else Seed(*map(bytes.fromhex, seed)),
                tuple((canonical_id(sample), bytes.fromhex(content)) for sample, content in samples),
                None if enrolled is None else Enrolled(*map(bytes.fromhex, enrolled)),
            )
            for client, seed, samples, enrolled in raw.get("joining", ())
        )
        decision = Decision(
            requests=tuple(Request(client, sample) for client, sample in raw["requests"]),
            first_changed_steps=tuple(None if step is None else _count(step) for step in raw["first_changed_steps"]),
            leaving=tuple(map(canonical_id, raw["leaving"])),
            goal=_count(raw["goal"]),
            rewind_to=_count(raw["rewind_to"]),
            joining=joining,
            new_seeds=None if raw["reseed"] is None else bytes.fromhex(raw["reseed"]),
            batch_id=batch_id,
        )
        if not len(decision.first_changed_steps) == len(decision.requests) == len(ids):
            raise ValueError("its requests, steps and ids differ in number")
        return cls(tuple(ids), decision, Pledge.decode(raw.get("pledge")))


def new_batch_id() -> str:
    return "b-" + secrets.token_hex(8)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r:.40} is not a whole number from 0")
    return value
