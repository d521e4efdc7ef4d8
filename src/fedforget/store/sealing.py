"""Sealing a run: drop the keys that nothing needs any more, and set the seals of its files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedforget.disk.door import Door
from fedforget.disk.files import storage_errors
from fedforget.disk.seen import Signature, settled_signature
from fedforget.store.clients_part import ClientsPart
from fedforget.store.names import METRICS, RECORD, SERVER
from fedforget.store.record import Record
from fedforget.store.sealed_files import sealed_digest, sum_text
from fedforget.store.seals import Seal, Seals


@dataclass(slots=True)
class Sealing:
    """The seals of an open run."""

    path: Path
    part: ClientsPart
    record: Record
    seals: dict[str, Seal] = field(default_factory=dict)  # at the last closing; none after a crash
    read_whole: dict[str, Signature | None] = field(default_factory=dict)  # files compared with their seals

    def break_all(self) -> None:
        """Move the seals aside, durably, before any other byte changes."""
        Seals(self.path).break_all()

    def close_record(self, last: Callable[[], None] | None) -> None:
        """Drop keys and digests that nothing needs any more, and only then call ``last``, which says so."""

        def note_purged() -> None:
            Seals(self.path).forget_broken()
            if last is not None:
                last()

        database = self.record.database
        self.record.vault.purge(None if last is None else note_purged)
        if database.is_writing:
            database.close_folded()
            database.reopen()

    def set(self, changed: Collection[str]) -> None:
        """Seal every file. A file that did not change keeps its seal."""
        roots = self.part.roots()
        with storage_errors(self.path):
            for name in (SERVER, METRICS, *self.part.files, RECORD):
                found = self._new_digest(name, changed)
                if found is not None:
                    self.seals[name] = Seal(found, roots.get(name), settled_signature(Door(self.path), name))
                elif name in self.read_whole and self.part.was_read(name):
                    self.seals[name] = replace(self.seals[name], seen=self.read_whole[name])
        Seals(self.path).set(self.seals)

    def _new_digest(self, name: str, changed: Collection[str]) -> str | None:
        """Return the digest of a file that may differ from its seal; None if it did not change."""
        database = self.record.database
        if name == RECORD and database.page_sum is not None and name in self.seals:
            return sum_text(database.page_sum)
        if name == RECORD:  # after a crash, or after an error while its log was folded, the sum is not known
            found = sealed_digest(self.path, name)
            database.page_sum = int(found, 16)
            return found
        return sealed_digest(self.path, name) if name in changed or name not in self.seals else None
