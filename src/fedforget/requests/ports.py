"""The ports of the request processor: the book, the batches, the inbox, and the work around rounds.

On disk these are tables of the record and files of the run directory; ``memory`` implements them without a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import OnRound
from fedforget.requests.intents import BatchFacts, Intent, Outcome, Pledge
from fedforget.requests.leaves import TargetLeaves
from fedforget.requests.lifecycle import Receipt, Stage, Submission


class Book(Protocol):
    """The requests of a run and their receipts."""

    @property
    def tainted(self) -> bool:
        """Whether a request since the last new seeds may depend on the draws or the model."""

    def transaction(self) -> AbstractContextManager[None]:
        """Make all changes inside durable together, or none."""

    def pending(self) -> Mapping[str, Request]:
        """Return the pending requests by id: accepted, and in no batch yet."""

    def pending_of(self, identifiers: Sequence[str]) -> Mapping[str, Request]:
        """Return those of these requests that are pending."""

    def pending_ids(self, targets: Sequence[Request]) -> Mapping[Request, str]:
        """Return the id of each target's pending request."""

    def pending_under(self, targets: Collection[Request], leaving: Collection[Id]) -> Mapping[str, Request]:
        """Return the pending requests for these targets, and for anything of clients that leave."""

    def bases_of(self, identifiers: Sequence[str]) -> set[str]:
        """Return the bases that these requests have."""

    def id_of(self, target: Request) -> str | None:
        """Return the id of the request that last erased a target, individually or with its client; None if none did."""

    def ids_of_key(self, submission: Submission) -> list[str] | None:
        """Return the ids of the requests that used this idempotency key before. Refuse the key for other requests."""

    def receipts_of(self, identifiers: Sequence[str]) -> list[Receipt]: ...

    def was_erased_by(self, identifier: str, target: Request) -> bool:
        """Return whether the request is or was for exactly this target."""

    def flush(self) -> None:
        """Fold the write-ahead log into the file."""

    def knows(self, identifier: str) -> bool: ...

    def receive(
        self,
        submission: Submission,
        known: Mapping[Request, str],
        *,
        record_alias: bool = False,
        places: range | None = None,
    ) -> list[str]:
        """Accept requests, except those that are known under another id. Call inside a transaction.

        ``places``: only this part of the submission. The last part also remembers its idempotency key.
        """

    def reject(self, submission: Submission, reasons: Mapping[Request, str], places: range | None = None) -> None: ...

    def ask_again(self, submission: Submission, ids: Iterable[str]) -> None:
        """Update pending requests that are submitted once more: the earlier deadline and the weaker basis win."""

    def add_aliases(self, aliases: Sequence[str], ids: Sequence[str]) -> None:
        """Record a second id for each of these requests."""

    def taint_unless_exogenous(self, basis: str) -> None: ...


class Batches(Protocol):
    """Batches of requests, from their intent until they are purged."""

    def unfinished(self) -> list[Intent]: ...

    def stage(self, intent: Intent) -> Stage: ...

    def enter(self, intent: Intent, facts: BatchFacts) -> None:
        """Commit the intent of a batch. Call inside a transaction of the book."""

    def removed(self, intent: Intent, rounds_left: int) -> None: ...

    def completed(self, intent: Intent, outcome: Outcome) -> None:
        """Record that a batch is learned again up to its goal, and what came of it."""

    def purged(self, intent: Intent) -> None: ...


class Inbox(Protocol):
    """Submissions that were made while another process had the run open."""

    def __bool__(self) -> bool: ...

    def leave(self, submission: Submission) -> Any:
        """Make a submission durable, and return its place."""

    def submissions(self) -> Sequence[tuple[Any, Submission]]:
        """Return each submission with its place in the inbox, in the order of receipt."""

    def take_away(self, place: Any) -> None: ...

    def clean(self) -> None: ...


class Work(Protocol):
    """What a run does before, around and after the rounds that a batch computes."""

    @property
    def seed_origin(self) -> str: ...

    def check_learner(self, rewind_to: int, leaving: Sequence[Request] = ()) -> None:
        """Refuse a learner or an environment that did not compute the rounds up to ``rewind_to``. Changes nothing."""

    def check_state(self, rewind_to: int) -> None:
        """Refuse a state that cannot be read. Changes nothing."""

    def check_books(self, decision: Decision | None = None) -> None:
        """Refuse if a client's book that a decision needs cannot be read; None: all, for rounds. Changes nothing."""

    def pledge(self, decision: Decision) -> Pledge | None:
        """Return a digest that shows after a crash whether the same learner continues; None if witnesses show it."""

    def begin_rounds(self) -> None:
        """Record the environment of the next rounds, before the first of them is committed."""

    def learning(self, goal: int) -> AbstractContextManager[OnRound]:
        """Report and measure rounds up to ``goal``. Yield the function to call after each round."""

    def state_digest(self) -> str: ...

    def data_root(self) -> bytes:
        """Return the root of the tree over the data."""

    def leaves_of(self, targets: Sequence[Request]) -> tuple[TargetLeaves, ...]:
        """Return the leaves of targets that are in the data now."""

    def outcome(self) -> Outcome:
        """Measure the state after a batch."""

    def applied(self) -> None:
        """Check, after interrupted batches were applied again, that no commit was lost."""

    def purge(self, last: Callable[[], None]) -> None:
        """Purge removed data from the disk, then make the changes of ``last``."""
