"""What the processor of requests asks of a run: its book, its journal of batches, its inbox, and work around rounds.

On disk these are tables of the record and files of the run directory; ``memory`` has them without a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.learn import OnRound
from fedforget.requests.intents import BatchFacts, Intent, Outcome, Pledge
from fedforget.requests.lifecycle import Receipt, Stage, Submission


class Book(Protocol):
    """The requests of a run, and what became of each."""

    @property
    def tainted(self) -> bool:
        """Whether a request since the last new seeds may have looked at the draws or the model."""

    def transaction(self) -> AbstractContextManager[None]:
        """Everything inside is durable together, or not at all."""

    def waiting(self) -> Mapping[str, Request]:
        """Accepted requests that are in no batch yet, by id."""

    def basis_of(self, identifier: str) -> str: ...

    def id_of(self, target: Request) -> str | None:
        """The request under which a target was last erased, by itself or with its client."""

    def ids_of_key(self, submission: Submission) -> list[str] | None:
        """The requests that came with this idempotency key before."""

    def receipts_of(self, identifiers: Sequence[str]) -> list[Receipt]: ...

    def was_erased_by(self, identifier: str, target: Request) -> bool:
        """Whether the request is, or was, for exactly this target."""

    def flush(self) -> None:
        """Bring everything into the file itself."""

    def knows(self, identifier: str) -> bool: ...

    def receive(self, submission: Submission, known: Mapping[Request, str], *, record_alias: bool = False) -> list[str]:
        """Accept requests, except those that are known under another id. Call inside a transaction."""

    def reject(self, submission: Submission, reasons: Mapping[Request, str]) -> None: ...

    def ask_again(self, submission: Submission, ids: Iterable[str]) -> None:
        """Pending requests are asked for once more: the earlier deadline and the weaker basis count."""

    def also_known_as(self, told: Sequence[str], ids: Sequence[str]) -> None: ...

    def taint_unless_exogenous(self, basis: str) -> None: ...


class Batches(Protocol):
    """Batches of requests that are carried out together, from their intent until they are purged."""

    def pending(self) -> list[Intent]: ...

    def stage(self, intent: Intent) -> Stage: ...

    def enter(self, intent: Intent, facts: BatchFacts) -> None:
        """Commit the intent of a batch. Call inside a transaction of the book."""

    def removed(self, intent: Intent, rounds_left: int) -> None: ...

    def recomputed(self, intent: Intent) -> None: ...

    def completed(self, intent: Intent, outcome: Outcome) -> None: ...

    def purged(self, intent: Intent) -> None: ...


class Inbox(Protocol):
    """Submissions that were handed in while a process was at work on the run."""

    def __bool__(self) -> bool: ...

    def submissions(self) -> Sequence[tuple[Any, Submission]]:
        """Each with its place in the inbox, in the order of receipt."""

    def take_away(self, place: Any) -> None: ...

    def clean(self) -> None: ...


class Work(Protocol):
    """What a run does around the rounds that it computes."""

    @property
    def seed_origin(self) -> str: ...

    def check_data(self, leaving: Sequence[Request] = ()) -> None:
        """Refuse data that are not what they were, apart from what is leaving. Changes nothing."""

    def check_learner(self, rewind_to: int, leaving: Sequence[Request] = ()) -> None:
        """Refuse a learner or an environment that did not compute the rounds up to ``rewind_to``. Changes nothing."""

    def check_state(self, rewind_to: int) -> None:
        """Refuse a state that cannot be read. Changes nothing."""

    def pledge(self, decision: Decision) -> Pledge | None:
        """What shows, after a crash, that the same learner finishes the batch. None if witnesses do."""

    def begin_rounds(self) -> None:
        """Note in which environment the next rounds are computed, before the first of them is committed."""

    def learning(self, goal: int) -> AbstractContextManager[OnRound]:
        """Around rounds up to ``goal``: progress and measurements. Yields what is to be called after each round."""

    def state_digest(self) -> str: ...

    def outcome(self) -> Outcome:
        """What stands after a batch, measured."""

    def applied(self) -> None:
        """Batches that a crash interrupted are applied: check that nothing was lost since."""

    def purge(self, last: Callable[[], None]) -> None:
        """Leave nothing on disk of what was removed. The changes that ``last`` makes are durable together with that."""
