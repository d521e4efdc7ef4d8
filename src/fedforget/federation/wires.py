"""Wires that add one concern to another wire: signatures are verified, and silence is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedforget.algorithm.ids import Id
from fedforget.errors import ClientUnreachable, FedForgetError, SignatureRefused
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.federation.signing import verified
from fedforget.federation.traffic import Traffic

log = logging.getLogger("fedforget")


class Wire(Protocol):
    """Carries parcels to clients and brings their answers back."""

    def everyone(self, asked: Parcel) -> list[Parcel]:
        """Ask every node that can be reached now, and return the answers."""

    def exchange(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        """Return the answer of each client in the order of the parcels, or the error in its place.

        A parcel may be delivered more than once. ClientUnreachable stands for a client that did not answer in time.
        """

    def close(self) -> None: ...


KeyOf = Callable[[Id], Ed25519PublicKey | None]


class Signatures:
    """Knows the clients' public keys. A client without one signs nothing (a simulation, a test in one process).

    ``impostors``: why a node that claims to be a client was not accepted. The client itself may answer all the same.
    """

    def __init__(self, key_of: KeyOf, impostors: MutableMapping[Id, FedForgetError] | None = None) -> None:
        self._key_of = key_of
        self.impostors: MutableMapping[Id, FedForgetError] = {} if impostors is None else impostors

    def checked(self, client: Id, asked: Parcel, answer: Parcel) -> Parcel:
        """Return an answer without its signature. Raise SignatureRefused unless the client signed it."""
        key = self._key_of(client)
        if key is None:
            return answer
        if "client" in answer.body and parcels.client_in(answer) != client:
            raise SignatureRefused(f"another client answered for client {client}", hint="look at its node")
        return verified(key, asked, answer)

    def client_of(self, asked: Parcel, answer: Parcel | None) -> Id | None:
        """Return which client a node has proved to answer for; None if it is none of this run."""
        if answer is None:
            return None
        if "client" not in answer.body:
            log.warning("a node answers for no client: %s", answer.body.get("error"))
            return None
        client: Id | None = None
        try:
            client = parcels.client_in(answer)
            self.checked(client, asked, answer)
        except FedForgetError as error:
            log.warning("a node was not accepted: %s", error.message)
            if client is not None:
                self.impostors[client] = error
            return None
        return client


class SignedWire:
    """A ``Wire`` that verifies the signature of each answer."""

    def __init__(self, wire: Wire, signatures: Signatures) -> None:
        self._wire, self._signatures = wire, signatures

    def everyone(self, asked: Parcel) -> list[Parcel]:
        answers = ((self._signatures.client_of(asked, answer), answer) for answer in self._wire.everyone(asked))
        return [
            self._signatures.checked(client, asked, answer)
            if client is not None
            else Parcel({"error": {"code": SignatureRefused.code, "message": "it is not signed", "hint": ""}})
            for client, answer in answers
        ]

    def exchange(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        answers = self._wire.exchange(asked)
        return [self._checked(*each, answer) for each, answer in zip(asked, answers, strict=True)]

    def _checked(self, client: Id, asked: Parcel, answer: Parcel | FedForgetError) -> Parcel | FedForgetError:
        if isinstance(answer, FedForgetError):
            return answer
        try:
            return self._signatures.checked(client, asked, answer)
        except FedForgetError as error:
            return error

    def close(self) -> None:
        self._wire.close()


class GuardedWire:
    """A ``Wire`` that sends only removals to clients with a known problem.

    ``problems``: the problem of each.
    """

    def __init__(self, wire: Wire, problems: Mapping[Id, FedForgetError]) -> None:
        self._wire, self._problems = wire, problems

    def everyone(self, asked: Parcel) -> list[Parcel]:
        return self._wire.everyone(asked)

    def exchange(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        sound = [each for each in asked if each[0] not in self._problems or _removes_all(each[1])]
        answers = iter(self._wire.exchange(sound) if sound else ())
        return [
            self._problems[each[0]] if each[0] in self._problems and not _removes_all(each[1]) else next(answers)
            for each in asked
        ]

    def close(self) -> None:
        self._wire.close()


def _removes_all(parcel: Parcel) -> bool:
    return parcel.body["kind"] == parcels.DONE or (
        parcel.body["kind"] == parcels.REMOVE and parcel.body["samples"] is None
    )


class CountingWire:
    """A ``Wire`` that counts the bytes of parcels and answers."""

    def __init__(self, wire: Wire, traffic: Traffic) -> None:
        self._wire, self._traffic = wire, traffic

    def everyone(self, asked: Parcel) -> list[Parcel]:
        answers = self._wire.everyone(asked)
        for answer in answers:
            self._traffic.sent(asked)
            self._traffic.received(answer)
        return answers

    def exchange(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        for _, parcel in asked:
            self._traffic.sent(parcel)
        answers = self._wire.exchange(asked)
        for answer in answers:
            if isinstance(answer, Parcel):
                self._traffic.received(answer)
        return answers

    def close(self) -> None:
        self._wire.close()


class Attendance(Protocol):
    """Records which clients answer."""

    def answered(self, *clients: Id) -> None: ...

    def fell_silent(self, client: Id, round_: int) -> None: ...


class AttentiveWire:
    """A ``Wire`` that records when clients fall silent and when they answer again."""

    def __init__(self, wire: Wire, attendance: Attendance) -> None:
        self._wire, self._attendance = wire, attendance

    def everyone(self, asked: Parcel) -> list[Parcel]:
        answers = self._wire.everyone(asked)
        self._attendance.answered(*(parcels.client_in(each) for each in answers if "error" not in each.body))
        return answers

    def exchange(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        answers = self._wire.exchange(asked)
        for (client, parcel), answer in zip(asked, answers, strict=True):
            if isinstance(answer, ClientUnreachable | SignatureRefused):
                self._attendance.fell_silent(client, int(parcel.body.get("round", 0)))
        self._attendance.answered(
            *(each[0] for each, answer in zip(asked, answers, strict=True) if isinstance(answer, Parcel))
        )
        return answers

    def close(self) -> None:
        self._wire.close()
