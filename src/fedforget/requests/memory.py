"""The ports of the request processor without a disk, for enumerating the law of whole request histories."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import OnRound, Server
from fedforget.algorithm.ports import ClientMemory, State
from fedforget.requests.intake import Intake
from fedforget.requests.intents import BatchFacts, Intent, Outcome
from fedforget.requests.leaves import TargetLeaves
from fedforget.requests.lifecycle import Basis, Receipt, Stage, Submission
from fedforget.requests.processor import Processor


@dataclass(slots=True)
class MembersInMemory:
    """``Membership`` from the memories of both parties."""

    server: Server
    clients: ClientMemory
    path: Path = Path("memory")

    def has(self, target: Request) -> bool:
        return target.client in self.server.memory.roster and (
            target.sample is None or target.sample in self._samples(target)
        )

    def _samples(self, target: Request) -> IdSet:
        return self.clients.samples(target.client)


@dataclass(slots=True)
class BookInMemory:
    """A ``Book`` in dictionaries. It keeps no receipts and no idempotency keys."""

    tainted: bool = False
    _waiting: dict[str, Request] = field(default_factory=dict)
    _bases: dict[str, str] = field(default_factory=dict)
    erased: dict[Request, str] = field(default_factory=dict)

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def flush(self) -> None: ...

    def pending(self) -> dict[str, Request]:
        return dict(self._waiting)

    def pending_of(self, identifiers: Sequence[str]) -> dict[str, Request]:
        return {identifier: self._waiting[identifier] for identifier in identifiers if identifier in self._waiting}

    def pending_ids(self, targets: Sequence[Request]) -> dict[Request, str]:
        return {request: identifier for identifier, request in self._waiting.items() if request in targets}

    def pending_under(self, targets: Collection[Request], leaving: Collection[Id]) -> dict[str, Request]:
        return {
            identifier: request
            for identifier, request in self._waiting.items()
            if request in targets or request.client in leaving
        }

    def bases_of(self, identifiers: Sequence[str]) -> set[str]:
        return {self._bases[identifier] for identifier in identifiers}

    def id_of(self, target: Request) -> str | None:
        return self.erased.get(target) or self.erased.get(Request(target.client))

    def was_erased_by(self, identifier: str, target: Request) -> bool:
        return self.erased.get(target) == identifier

    def ids_of_key(self, submission: Submission) -> list[str] | None:  # noqa: ARG002
        return None

    def receipts_of(self, identifiers: Sequence[str]) -> list[Receipt]:  # noqa: ARG002
        return []

    def knows(self, identifier: str) -> bool:
        return identifier in self._bases

    def receive(
        self,
        submission: Submission,
        known: Mapping[Request, str],
        *,
        record_alias: bool = False,  # noqa: ARG002
        places: range | None = None,
    ) -> list[str]:
        for place in range(len(submission.requests)) if places is None else places:
            identifier, request = submission.ids[place], submission.requests[place]
            if request not in known:
                self._waiting[identifier], self._bases[identifier] = request, submission.basis
        return [known.get(r, i) for i, r in zip(submission.ids, submission.requests, strict=True)]

    def begin(self, identifier: str) -> None:
        """Note that the request is in a batch now."""
        del self._waiting[identifier]

    def cancel(self, identifier: str) -> None:
        del self._waiting[identifier]

    def reject(self, submission: Submission, reasons: Mapping[Request, str], places: range | None = None) -> None: ...

    def ask_again(self, submission: Submission, ids: Iterable[str]) -> None: ...

    def add_aliases(self, aliases: Sequence[str], ids: Sequence[str]) -> None: ...

    def taint_unless_exogenous(self, basis: str) -> None:
        self.tainted |= basis != Basis.EXOGENOUS


@dataclass(slots=True)
class BatchesInMemory:
    """``Batches`` in a dictionary."""

    book: BookInMemory
    on_stage: Callable[[Stage], None] = lambda _: None  # called when a batch has come to a stage
    _stages: dict[Intent, Stage] = field(default_factory=dict)

    def unfinished(self) -> list[Intent]:
        return list(self._stages)

    def stage(self, intent: Intent) -> Stage:
        return self._stages[intent]

    def enter(self, intent: Intent, facts: BatchFacts) -> None:  # noqa: ARG002
        for identifier in intent.ids:
            self.book.begin(identifier)
        self._advance(intent, Stage.ACCEPTED)

    def removed(self, intent: Intent, rounds_left: int) -> None:  # noqa: ARG002
        for identifier, request in zip(intent.ids, intent.decision.requests, strict=True):
            self.book.erased[request] = identifier
            if request.client in intent.decision.leaving:
                self.book.erased.setdefault(Request(request.client), identifier)
        self._advance(intent, Stage.REMOVED)

    def completed(self, intent: Intent, outcome: Outcome) -> None:  # noqa: ARG002
        if self._stages[intent] == Stage.REMOVED:
            self._advance(intent, Stage.RECOMPUTED)
        self._advance(intent, Stage.COMPLETED)

    def purged(self, intent: Intent) -> None:
        del self._stages[intent]

    def _advance(self, intent: Intent, stage: Stage) -> None:
        self._stages[intent] = stage
        self.on_stage(stage)


class InboxInMemory:
    """An ``Inbox`` in a dictionary, in the order of receipt."""

    def __init__(self) -> None:
        self._left: dict[int, Submission] = {}
        self._numbers = count()

    def leave(self, submission: Submission) -> int:
        place = next(self._numbers)
        self._left[place] = submission
        return place

    def __bool__(self) -> bool:
        return bool(self._left)

    def submissions(self) -> list[tuple[int, Submission]]:
        return list(self._left.items())

    def take_away(self, place: int) -> None:
        del self._left[place]

    def clean(self) -> None: ...


@dataclass(slots=True)
class WorkInMemory:
    """A ``Work`` that checks and measures nothing. It calls ``on_round`` after each computed round."""

    on_round: Callable[[], None] = lambda: None
    seed_origin: str = "system"

    def check_learner(self, rewind_to: int, leaving: Sequence[Request] = ()) -> None: ...

    def check_state(self, rewind_to: int) -> None: ...

    def check_books(self, decision: Decision | None = None) -> None: ...

    def pledge(self, decision: Decision) -> None: ...

    def begin_rounds(self) -> None: ...

    @contextlib.contextmanager
    def learning(self, goal: int) -> Iterator[OnRound]:  # noqa: ARG002
        def after(_round: int, _state: State) -> None:
            self.on_round()

        yield after

    def state_digest(self) -> str:
        return ""

    def data_root(self) -> bytes:
        return b""

    def leaves_of(self, targets: Sequence[Request]) -> tuple[TargetLeaves, ...]:  # noqa: ARG002
        return ()

    def outcome(self) -> Outcome:
        return Outcome(0, None, "", "", "", "", mixed_environments=False)

    def applied(self) -> None: ...

    def purge(self, last: Callable[[], None]) -> None:
        last()


def processor_in_memory(
    server: Server, clients: ClientMemory, work: WorkInMemory, inbox: InboxInMemory, batches: BatchesInMemory
) -> Processor:
    """Return the production processor on memories of both parties."""
    return Processor(server, Intake(MembersInMemory(server, clients), batches.book, inbox), batches, work)
