"""Openings of clients: an auditor computes every draw of a client with one, and so checks when a sample was first used.

An opening holds the client's seed and the ids of its samples with their content digests. It reveals all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedforget.algorithm.client import Client
from fedforget.algorithm.contents import CONTENT_BYTES
from fedforget.algorithm.draws import SEED_BYTES, PrfPriorities
from fedforget.algorithm.ids import Id, IdSet, canonical_id
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import JoinQuery
from fedforget.algorithm.seeds import Seed
from fedforget.algorithm.tree import leaves_of, root_of
from fedforget.client_side.directory import OpenDirectory
from fedforget.disk.parsing import parse_object
from fedforget.errors import FedForgetError, InvalidInput, ReceiptRefused

FORMAT = 1
_FIELDS = {"format", "client", "seed", "nonce", "sample_key", "samples"}


@dataclass(frozen=True, slots=True)
class OwnOpening:
    """A client's seed, the key of its labels, and its samples with their content digests. All of it is secret."""

    client: Id
    seed: Seed
    key: bytes
    contents: Mapping[Id, bytes]

    @classmethod
    def of(cls, state: OpenDirectory) -> OwnOpening:
        return cls(state.client, state.book.seed, state.who.sample_key, state.book.contents())

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "format": FORMAT,
            "client": self.client,
            "seed": self.seed.value.hex(),
            "nonce": self.seed.nonce.hex(),
            "sample_key": self.key.hex(),
            "samples": [[sample, content.hex()] for sample, content in self.contents.items()],
        }
        return json.dumps(fields, indent=1).encode() + b"\n"

    @classmethod
    def parsed(cls, data: bytes) -> OwnOpening:
        try:
            return cls._parsed(parse_object(data))
        except (ValueError, KeyError, TypeError, AttributeError, FedForgetError) as error:
            raise InvalidInput(
                f"this is not the opening of a client: {str(error)[:200]}",
                hint="the client writes one with `fedforget client receipt --opening FILE`",
            ) from error

    @classmethod
    def _parsed(cls, raw: Mapping[str, Any]) -> OwnOpening:
        if raw.keys() != _FIELDS or raw["format"] != FORMAT:
            raise ValueError("its fields or its format are others")
        contents = {canonical_id(sample): _bytes(content, CONTENT_BYTES) for sample, content in raw["samples"]}
        seed = Seed(_bytes(raw["seed"], SEED_BYTES), _bytes(raw["nonce"], SEED_BYTES))
        return cls(canonical_id(raw["client"]), seed, _bytes(raw["sample_key"], SEED_BYTES), contents)

    def root(self, erased: Mapping[Id, bytes] | None = None) -> bytes:
        """Return the root over the samples and over ``erased`` ones, which have left since."""
        contents = {**self.contents, **(erased or {})}
        ids = IdSet.of_canonical(contents)
        return root_of(leaves_of(self.key, ids, [contents[each] for each in ids]))

    def require(self, commitment: bytes, root: bytes, erased: Mapping[Id, bytes] | None = None) -> None:
        """Raise ReceiptRefused unless seed and samples match the client's commitment and root."""
        if self.seed.commitment != commitment:
            raise ReceiptRefused(
                "the seed is not the one that the client committed to", hint="ask the client for its opening again"
            )
        if self.root(erased) != root:
            raise ReceiptRefused(
                "the samples do not have this root",
                hint="give the root of the time of the opening; or the one before the erasure, with --content",
            )

    def first_use(self, plan: Plan, rounds: Iterable[int], sample: Id) -> int | None:
        """Return the first step of these rounds that used a sample, or would have used it; None if none did.

        ``rounds``: those in which the server drew the client.
        """
        others = IdSet(each for each in self.contents if each != sample)
        client = Client(self.client, others, PrfPriorities(self.seed.value), plan)
        return client.what_would_join(JoinQuery(self.client, (sample,), tuple(sorted(rounds)))).first_step


def _bytes(text: str, size: int) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != size:
        raise ValueError("a value has another length")
    return found
