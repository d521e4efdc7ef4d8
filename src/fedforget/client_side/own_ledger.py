"""A client's ledger on disk: how the party reads and changes the state directory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.algorithm.seeds import Seed, SeedSource
from fedforget.client_side.directory import OpenDirectory
from fedforget.client_side.own_requests import OwnRequests
from fedforget.client_side.rules import Here, Rules
from fedforget.disk.files import digest, write_durably
from fedforget.errors import FedForgetError, InvalidInput, PlanRefused, UnknownTarget, shown
from fedforget.federation.ledger import Samples
from fedforget.federation.standing import Addition, Standing, addition_in, withdrawal_in
from fedforget.store import plan_file
from fedforget.store.plan_file import PlanFile


class OwnLedger:
    """A ``ClientLedger`` on disk. ``here`` returns environment and learner; it is called only to compute."""

    def __init__(self, state: OpenDirectory, here: Callable[[], Here]) -> None:
        self._state, self._record, self._here = state, state.record, here
        self._requests, self._rules = OwnRequests(state), Rules(state)

    def standing(self) -> Standing:
        state = self._state
        if state.book.is_empty:
            return Standing()
        return Standing(
            state.book.root,
            state.uses.digest_of_client(state.client),
            state.book.seed.commitment,
            self._rules.environment(),
            self._requests.withdrawals(),
            self._ready_additions(),
        )

    def _ready_additions(self) -> tuple[Addition, ...]:
        """Return the pending additions whose ids are free; others wait until the old content is erased."""
        present = self._state.book.samples
        waiting = self._record.arriving().items()
        return tuple(Addition(handle) for handle, group in waiting if not any(each in present for each in group))

    # The plan

    def plan_digest(self) -> str | None:
        known = self._state.plan()
        return None if known is None else known.digest

    def keep_plan(self, run: str, text: str) -> str:
        self._require_run(run)
        try:
            given = PlanFile.decode(text.encode())
        except (KeyError, ValueError, TypeError, AttributeError, FedForgetError) as error:
            raise InvalidInput(
                f"the server sent a plan that cannot be read: {error}", hint="compare the versions of FedForget"
            ) from error
        known = self._state.plan()
        if known is not None and replace(known, server_commitment=given.server_commitment) != given:
            raise PlanRefused(
                f"client {shown(self._state.client)} takes part under another plan "
                f"({'; '.join(known.differences(given)[:3])})",
                hint="a plan is frozen: a run with another one needs state directories of its own",
            )
        if self._record.value("run") is None:
            self._record.note(("took part", {"plan": digest(text.encode())}), run=run)
        if known == given:
            return given.digest
        self._state.begin_writing()
        write_durably(self._state.path / plan_file.NAME, given.encode(), mode=0o600)
        return given.digest

    def _require_run(self, run: str) -> None:
        known = self._record.value("run")
        if known not in (None, run):
            raise InvalidInput(
                f"client {shown(self._state.client)} takes part in another run",
                hint="make another state directory for another run",
            )

    # Withdrawals

    def samples_of(self, given: Sequence[Id]) -> list[tuple[Id, ...]]:
        return [self._requests.samples_of(self._handle(each, withdrawal_in(each))) for each in given]

    def _handle(self, given: Id, handle: str | None) -> str:
        """Return a handle that this client made. Refuse sample ids: a server could test guesses with them."""
        if handle is None or not self._record.knows_handle(handle):
            raise UnknownTarget(
                f"client {shown(self._state.client)} made no request {shown(given)}",
                hint="samples are erased at the client: `fedforget client forget --state-dir DIR --sample ID`",
            )
        return handle

    def removing(self, given: Sequence[Id] | None) -> None:
        handles = None if given is None else [self._handle(each, withdrawal_in(each)) for each in given]
        self._requests.begin(handles)

    def removed(self, given: Sequence[Id] | None) -> None:  # noqa: ARG002 (the intents say what was removed)
        self._requests.apply()

    # Additions

    def joining(self, given: Samples) -> Samples:
        waiting = self._record.arriving()
        handles = [self._handle(sample, addition_in(sample)) for sample, _ in given]
        return tuple(each for handle in handles for each in waiting.get(handle, {}).items())

    def joined(self, given: Sequence[Id]) -> None:
        handles = {handle for each in given if (handle := addition_in(each)) is not None}
        waiting = self._record.arriving()
        self._record.arrived(handles, sum(len(waiting[each]) for each in handles & waiting.keys()))

    def done(self, handles: Collection[str], facts: Mapping[str, Any]) -> None:
        self._requests.finish(handles, facts)

    # Rounds

    def before_training(self, round_: int, *, mixed: bool) -> None:
        self._rules.before_training(round_, self._here(), mixed=mixed)

    def before_repeating(self, round_: int, *, bitwise: bool) -> None:
        self._rules.before_repeating(round_, self._here(), bitwise=bitwise)

    def repeated(self, *, agrees: bool | None) -> None:
        self._rules.repeated(self._here(), agrees=agrees)

    def new_seed(self, key: str, given: Seed | None) -> Seed:
        """Draw a new seed and write the book before the key. A crash in between makes the next call draw again."""
        if given is not None:
            raise InvalidInput(
                f"client {shown(self._state.client)} draws its own seed", hint="let the server send a key instead"
            )
        book = self._state.book
        if self._record.value("reseeded") == key:
            return book.seed
        seed = SeedSource(None).client(self._state.client)
        book.reseed(seed)
        self._record.note(("reseeded", {"commitment": seed.commitment.hex()}), reseeded=key)
        return seed


class OwnEpoch:
    """A ``ClientEpoch`` on disk. No server can raise it before the client has joined a run."""

    def __init__(self, state: OpenDirectory) -> None:
        self._record = state.record

    def now(self) -> int:
        return int(self._record.value("epoch"))

    def raise_to(self, epoch: int) -> None:
        if self._record.value("run") is not None:
            self._record.note(epoch=epoch, last_round=0)

    def last_round(self) -> int:
        return int(self._record.value("last_round") or 0)

    def trains(self, round_: int) -> None:
        self._record.note(last_round=round_)
