"""The leaves of requests' targets in the tree over the data, and the salts behind their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.tree import Leaf, labels_of, leaves_of, salts_of
from fedforget.requests.leaves import TargetLeaves
from fedforget.store.books.books import Books
from fedforget.store.books.tree import sample_key


def target_leaves(books: Books, targets: Sequence[Request]) -> tuple[TargetLeaves, ...]:
    """Return the leaves of targets that are in the data: of the client, and of the sample if there is one."""
    by_client: dict[Id, list[Id]] = {}
    for target in targets:
        by_client.setdefault(target.client, []).extend(() if target.sample is None else (target.sample,))
    clients = _client_leaves(books, by_client)
    samples = {client: _sample_leaves(books, client, wanted) for client, wanted in by_client.items() if wanted}
    return tuple(
        TargetLeaves(clients[each.client], None if each.sample is None else samples[each.client][each.sample])
        for each in targets
    )


def _client_leaves(books: Books, clients: Mapping[Id, object]) -> dict[Id, Leaf]:
    ids = IdSet.of_canonical(clients)
    return {client: books.leaf_of(client, label) for client, label in zip(ids, labels_of(books.key, ids), strict=True)}


def _sample_leaves(books: Books, client: Id, samples: Sequence[Id]) -> dict[Id, Leaf]:
    contents = books.contents(client, samples)
    ids = IdSet.of_canonical(contents)
    leaves = leaves_of(sample_key(books.key, id_block(client)), ids, [contents[sample] for sample in ids])
    return dict(zip(ids, leaves, strict=True))


def salts_of_target(key: bytes, target: Request) -> tuple[bytes, bytes | None]:
    """Return the salt of a client, and that of the sample if the target is one. ``key``: that of the tree."""
    client = salts_of(key, IdSet([target.client]))[0]
    if target.sample is None:
        return client, None
    return client, salts_of(sample_key(key, id_block(target.client)), IdSet([target.sample]))[0]
