"""The port for a client's own requests and its report to the server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from fedforget.algorithm.contents import CONTENT_BYTES
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.notes import notes_digest_of_client
from fedforget.algorithm.ports import ClientMemory
from fedforget.algorithm.seeds import Seed
from fedforget.algorithm.tree import leaves_of, root_of
from fedforget.errors import InvalidInput, UnknownTarget, shown
from fedforget.federation.standing import Addition, ClientRequest, Standing, addition_in, withdrawal_in

Samples = tuple[tuple[Id, bytes], ...]  # ids with the digests of their contents


class ClientLedger(Protocol):
    """One client's requests and report. Every change is durable before it returns, and idempotent."""

    def standing(self) -> Standing: ...

    def plan_digest(self) -> str | None:
        """Return the digest of the plan file that the client has; None if it has none."""

    def keep_plan(self, run: str, text: str) -> str:
        """Keep the plan file of a run and return its digest. Refuse another run or another plan than the known one."""

    # Withdrawals and additions

    def samples_of(self, given: Sequence[Id]) -> list[tuple[Id, ...]]:
        """Return the samples behind each id of a message: those of a handle, or a sample itself where that is allowed.

        A withdrawal that was carried out has none.
        """

    def joining(self, given: Samples) -> Samples:
        """Return the samples behind each id of a message. An addition that was carried out has none."""

    def removing(self, given: Sequence[Id] | None) -> None:
        """Note that these withdrawals (None: the whole client) are about to be carried out."""

    def removed(self, given: Sequence[Id] | None) -> None:
        """Note that these withdrawals (None: the whole client) are carried out."""

    def joined(self, given: Sequence[Id]) -> None:
        """Note that these additions are carried out."""

    def done(self, handles: Collection[str], facts: Mapping[str, Any]) -> None:
        """Purge the data of these withdrawals and additions: the server has finished them, with these facts."""

    # Rounds

    def before_training(self, round_: int, *, mixed: bool) -> None:
        """Refuse a learner or an environment that did not compute the earlier rounds. ``mixed``: accept another one."""

    def before_repeating(self, round_: int, *, bitwise: bool) -> None:
        """Refuse to compare bits with a round of another environment."""

    def repeated(self, *, agrees: bool | None) -> None:
        """Note whether the learner repeats what an earlier round computed."""

    def new_seed(self, key: str, given: Seed | None) -> Seed:
        """Draw a new seed; repeated calls with the same key return the same seed.

        ``given``: a seed that the server sent. A client that makes its own secrets refuses a given one.
        """


class LedgerInMemory:
    """A ``ClientLedger`` without a disk. ``contents``: content digests of the client's samples, also of later ones."""

    def __init__(
        self, client: Id, memory: ClientMemory, key: bytes = b"", contents: Mapping[Id, bytes] | None = None
    ) -> None:
        self._client, self._memory, self._key = client, memory, key
        self._contents = dict(contents or {})
        self._withdrawals: dict[str, tuple[ClientRequest, tuple[Id, ...]]] = {}
        self._additions: dict[str, tuple[Id, ...]] = {}
        self.carried_out: list[str] = []
        self.finished: dict[str, Mapping[str, Any]] = {}
        self._plan: tuple[str, str] | None = None

    # Requests made here

    def withdraw(self, withdrawal: ClientRequest, samples: Sequence[Id] = ()) -> None:
        self._withdrawals[withdrawal.handle] = withdrawal, tuple(samples)

    def add(self, handle: str, samples: Sequence[Id]) -> None:
        self._additions[handle] = tuple(samples)

    # What the party asks

    def standing(self) -> Standing:
        commitment = self._memory.commitments().get(self._client)
        if commitment is None:
            return Standing()
        memory, client = self._memory, self._client
        ids = memory.samples(client)
        contents = [self._contents.get(sample, bytes(CONTENT_BYTES)) for sample in ids]
        return Standing(
            root_of(leaves_of(self._key, ids, contents)),
            notes_digest_of_client(memory.first_steps(client), memory.witnesses(client)),
            commitment,
            {},
            tuple(each for each, _ in self._withdrawals.values() if each.handle not in self.carried_out),
            tuple(map(Addition, self._ready_additions(ids))),
        )

    def _ready_additions(self, present: IdSet) -> list[str]:
        """Return the pending additions, except those with a sample whose id is still present."""
        return [
            handle
            for handle, samples in self._additions.items()
            if handle not in self.carried_out and not any(sample in present for sample in samples)
        ]

    def plan_digest(self) -> str | None:
        return None if self._plan is None else self._plan[1]

    def keep_plan(self, run: str, text: str) -> str:
        self._plan = self._plan or (run, text)
        if self._plan != (run, text):
            raise InvalidInput(f"client {shown(self._client)} has another plan")
        return text

    def samples_of(self, given: Sequence[Id]) -> list[tuple[Id, ...]]:
        return [self._samples_behind(each) for each in given]

    def _samples_behind(self, given: Id) -> tuple[Id, ...]:
        handle = withdrawal_in(given)
        if handle is None:
            return (given,)
        if handle not in self._withdrawals:
            raise UnknownTarget(f"client {shown(self._client)} knows no withdrawal {handle}")
        return () if handle in self.carried_out else self._withdrawals[handle][1]

    def joining(self, given: Samples) -> Samples:
        found: list[tuple[Id, bytes]] = []
        for sample, content in given:
            handle = addition_in(sample)
            if handle is None:
                found.append((sample, content))
            elif handle not in self._additions:
                raise UnknownTarget(f"client {shown(self._client)} knows no addition {handle}")
            elif handle not in self.carried_out:
                found += [(each, self._contents.get(each, bytes(CONTENT_BYTES))) for each in self._additions[handle]]
        return tuple(found)

    def removing(self, given: Sequence[Id] | None) -> None:
        """Do nothing: memory does not survive a crash."""

    def removed(self, given: Sequence[Id] | None) -> None:
        handles = list(self._withdrawals) if given is None else [withdrawal_in(each) for each in given]
        self.carried_out += [each for each in handles if each is not None]

    def joined(self, given: Sequence[Id]) -> None:
        self.carried_out += [handle for each in given if (handle := addition_in(each)) is not None]

    def done(self, handles: Collection[str], facts: Mapping[str, Any]) -> None:
        for handle in handles:
            self.finished.setdefault(handle, dict(facts))
            self._withdrawals.pop(handle, None)
            self._additions.pop(handle, None)

    def before_training(self, round_: int, *, mixed: bool) -> None:
        """Do nothing: one process has one learner and one environment."""

    def before_repeating(self, round_: int, *, bitwise: bool) -> None:
        """Do nothing: one process has one learner and one environment."""

    def repeated(self, *, agrees: bool | None) -> None:
        """Do nothing: one process has one learner and one environment."""

    def new_seed(self, key: str, given: Seed | None) -> Seed:
        if given is None:
            raise InvalidInput(f"client {shown(self._client)} is given its seeds", hint=f"send one for {shown(key)}")
        return given
