"""The whole content of a file of the clients' books, in memory: it is checked, changed and encoded here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.contents import CONTENT_BYTES, Contents
from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.ids import BLOCK_BYTES, Id, id_block
from fedforget.algorithm.seeds import Seed, commitments_of
from fedforget.algorithm.tree import LABEL_BYTES
from fedforget.disk.door import Door
from fedforget.store.books.layout import (
    NUMBER_BYTES,
    STRING,
    Column,
    Header,
    are_ascending,
    damaged,
    header_of,
    names_of,
    numbers_of,
    read,
    read_errors,
)


@dataclass(slots=True)
class Book:
    """The whole content of a file, in memory."""

    number: int
    clients: Column
    ends: NDArray[np.int64]  # after the last sample of each client
    seeds: Column
    nonces: Column
    roots: Column
    samples: Column
    contents: Column
    names: dict[bytes, str]  # the string behind each block of one
    root: bytes = bytes(LABEL_BYTES)

    @classmethod
    def read(cls, path: Path, number: int) -> Book:
        """Read and check a file."""
        with read_errors(path), Door(path.parent).opened(path.name) as descriptor:
            header = header_of(path, descriptor, number)
            data = read(descriptor, 0, header.size)
        if len(data) != header.size:
            raise damaged(path, "it has become shorter")
        return cls._parsed(path, data, header)

    @classmethod
    def _parsed(cls, path: Path, data: bytes, header: Header) -> Book:
        starts, whole = header.starts, np.frombuffer(data, np.uint8)

        def column(name: str, width: int, rows: int) -> Column:
            return whole[starts[name] : starts[name] + width * rows].reshape(rows, width)

        n, m = header.clients, header.samples
        clients, samples = column("clients", BLOCK_BYTES, n), column("samples", BLOCK_BYTES, m)
        ends = numbers_of(column("ends", NUMBER_BYTES, n))
        if (n and (int(ends[0]) < 1 or (np.diff(ends) < 1).any())) or m != (int(ends[-1]) if n else 0):
            raise damaged(path, "the samples of a client are missing or invalid")
        if not are_ascending(clients) or not are_ascending(samples, ends[:-1]):
            raise damaged(path, "its ids are not in order, or not ids")
        name_ends = numbers_of(column("name ends", NUMBER_BYTES, n + m if header.names else 0))
        names = _all_names(path, np.concatenate([clients, samples]), name_ends, data[starts["text"] :])
        return cls(
            number=header.number,
            clients=clients,
            ends=ends,
            seeds=column("seeds", SEED_BYTES, n),
            nonces=column("nonces", SEED_BYTES, n),
            roots=column("roots", LABEL_BYTES, n),
            samples=samples,
            contents=column("contents", CONTENT_BYTES, m),
            names=names,
            root=header.root,
        )

    @classmethod
    def made(cls, number: int, parts: Iterable[tuple[Sequence[Id], Sequence[Seed], Contents, Sequence[bytes]]]) -> Book:
        """Return a book with these clients in ascending order, with their seeds, their samples and their roots."""
        clients, seeds, nonces, roots, samples, contents = (bytearray() for _ in range(6))
        sizes, names = [np.empty(0, np.int64)], dict[bytes, str]()
        for ids, own_seeds, own, own_roots in parts:
            clients += b"".join(map(id_block, ids))
            seeds += b"".join(seed.value for seed in own_seeds)
            nonces += b"".join(seed.nonce for seed in own_seeds)
            roots += b"".join(own_roots)
            samples += own.blocks.tobytes()
            contents += own.digests
            sizes.append(own.sizes)
            names |= {id_block(client): client for client in ids if isinstance(client, str)}
            names.update(own.names)
        return cls(
            number=number,
            clients=_rows(clients, BLOCK_BYTES),
            ends=np.concatenate(sizes).cumsum(),
            seeds=_rows(seeds, SEED_BYTES),
            nonces=_rows(nonces, SEED_BYTES),
            roots=_rows(roots, LABEL_BYTES),
            samples=_rows(samples, BLOCK_BYTES),
            contents=_rows(contents, CONTENT_BYTES),
            names=names,
        )

    def encoded(self) -> bytes:
        """Return the bytes of the file."""
        names = self._encoded_names()
        header = Header(self.number, len(self.clients), len(self.samples), len(names), self.root)
        columns = (self.clients, self.ends.astype(">u8"), self.seeds, self.nonces, self.roots, self.samples)
        return b"".join([header.encoded(), *(each.tobytes() for each in (*columns, self.contents)), names])

    def _encoded_names(self) -> bytes:
        blocks = np.concatenate([self.clients, self.samples])
        strings = np.flatnonzero(blocks[:, 0] == STRING)
        if not len(strings):
            return b""
        texts = [self.names[block].encode() for block in map(bytes, blocks[strings])]
        lengths = np.zeros(len(blocks), np.int64)
        lengths[strings] = [len(text) for text in texts]
        return lengths.cumsum().astype(">u8").tobytes() + b"".join(texts)

    def place(self, client: Id) -> int | None:
        return _bisected(self.clients, id_block(client), 0, len(self.clients))

    def rows(self, place: int) -> tuple[int, int]:
        """Return the first row of the samples of the client in this row, and the one after the last."""
        return (int(self.ends[place - 1]) if place else 0), int(self.ends[place]) if place < len(self.ends) else len(
            self.samples
        )

    def contents_of(self, places: Sequence[int]) -> Contents:
        """Return the samples of the clients in some rows. Without names."""
        chosen = np.asarray(places, np.intp)
        sizes = np.diff(self.ends, prepend=0)[chosen]
        starts = self.ends[chosen] - sizes
        rows = np.arange(int(sizes.sum())) + np.repeat(starts - (sizes.cumsum() - sizes), sizes)
        return Contents(sizes, self.samples[rows], self.contents[rows].tobytes())

    def client(self, place: int) -> Id:
        block = bytes(self.clients[place])
        return self.names[block] if block[0] else int.from_bytes(block, "big")

    def without(self, clients: list[int], samples: list[int]) -> None:
        """Drop rows of clients with all their samples, and rows of samples."""
        gone = np.zeros(len(self.samples), bool)
        gone[samples] = True
        for place in clients:
            gone[slice(*self.rows(place))] = True
        stays = np.ones(len(self.clients), bool)
        stays[clients] = False
        self.ends = (self.ends - gone.cumsum()[self.ends - 1] if len(self.ends) else self.ends)[stays]
        self.clients, self.seeds, self.nonces, self.roots = (
            column[stays] for column in (self.clients, self.seeds, self.nonces, self.roots)
        )
        self.samples, self.contents = self.samples[~gone], self.contents[~gone]

    def row(self, place: int, sample: Id) -> int | None:
        """Return the row of a sample of the client in a row."""
        start, stop = self.rows(place)
        return _bisected(self.samples, id_block(sample), start, stop)

    def commitments(self) -> list[bytes]:
        """Return each client's commitment, computed from its seed and nonce."""
        return commitments_of(self.seeds.tobytes(), self.nonces.tobytes())

    def set_roots(self, roots: Mapping[int, bytes]) -> None:
        self.roots = _changed(self.roots, roots)

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        """Replace the seeds of the clients here that have a new one."""
        here = {place: client for place in range(len(self.ends)) if (client := self.client(place)) in seeds}
        self.seeds = _changed(self.seeds, {place: seeds[client].value for place, client in here.items()})
        self.nonces = _changed(self.nonces, {place: seeds[client].nonce for place, client in here.items()})

    def insert_clients(self, new: Mapping[Id, Seed]) -> None:
        """Insert clients that are not there, without samples and without a root."""
        ordered = sorted((id_block(client), client) for client in new)
        places = [_position(self.clients, block, 0, len(self.clients)) for block, _ in ordered]
        seeds = [new[client] for _, client in ordered]
        self._know(new)
        self.ends = np.insert(self.ends, places, [int(self.ends[place - 1]) if place else 0 for place in places])
        self.clients = _inserted(self.clients, places, [block for block, _ in ordered])
        self.seeds = _inserted(self.seeds, places, [seed.value for seed in seeds])
        self.nonces = _inserted(self.nonces, places, [seed.nonce for seed in seeds])
        self.roots = _inserted(self.roots, places, [bytes(LABEL_BYTES)] * len(places))

    def insert_samples(self, new: Mapping[int, Mapping[Id, bytes]]) -> None:
        """Insert samples at the clients in these rows, those that are not there."""
        rows, blocks, contents, added = list[int](), list[bytes](), list[bytes](), np.zeros(len(self.clients), np.int64)
        for place in sorted(new):
            start, stop = self.rows(place)
            for block, sample in sorted((id_block(sample), sample) for sample in new[place]):
                row = _position(self.samples, block, start, stop)
                if row == stop or self.samples[row].tobytes() != block:
                    rows.append(row)
                    blocks.append(block)
                    contents.append(new[place][sample])
                    added[place] += 1
            self._know(new[place])
        self.samples = _inserted(self.samples, rows, blocks)
        self.contents = _inserted(self.contents, rows, contents)
        self.ends = self.ends + added.cumsum()

    def _know(self, ids: Iterable[Id]) -> None:
        self.names |= {id_block(identifier): identifier for identifier in ids if isinstance(identifier, str)}


def _rows(data: bytearray, width: int) -> Column:
    return np.frombuffer(data, np.uint8).reshape(-1, width)


def _changed(column: Column, values: Mapping[int, bytes]) -> Column:
    """Return a column with other values in some rows."""
    made = column.copy()
    made[list(values)] = _rows(bytearray().join(values.values()), column.shape[1])
    return made


def _inserted(column: Column, places: Sequence[int], values: Sequence[bytes]) -> Column:
    """Return a column with more values, each before the row that is at its place now."""
    return np.insert(column, places, _rows(bytearray().join(values), column.shape[1]), axis=0)


def _all_names(path: Path, blocks: Column, ends: NDArray[np.int64], text: bytes) -> dict[bytes, str]:
    strings = blocks[:, 0] == STRING
    if not strings.any() and not len(ends) and not text:
        return {}
    lengths = np.diff(ends, prepend=0)
    sound = strings.any() and len(ends) == len(blocks) and not (lengths < 0).any() and int(ends[-1]) == len(text)
    if not sound or lengths[~strings].any():
        raise damaged(path, "the names of its ids are missing or invalid")
    return names_of(path, blocks, np.concatenate([[0], ends]), text)


def _position(blocks: Column, block: bytes, low: int, high: int) -> int:
    return bisect_left(range(high), block, low, high, key=lambda row: blocks[row].tobytes())


def _bisected(blocks: Column, block: bytes, low: int, high: int) -> int | None:
    place = _position(blocks, block, low, high)
    return place if place < high and blocks[place].tobytes() == block else None
