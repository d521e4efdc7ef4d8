"""Model files: one safetensors file per kept state, named by the digest of its bytes, which every load verifies."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedforget.algorithm.ports import State
from fedforget.disk.door import Door, chunks
from fedforget.disk.files import (
    TEMPORARY,
    digest,
    new_hasher,
    storage_errors,
    storage_failure,
    sync_directory,
    unlink_leftover,
    write_durably,
)
from fedforget.errors import InvalidInput, RunDamaged
from fedforget.store import hints
from fedforget.store.tensor_header import OPTIMIZER, Layout, require_header

SUFFIX = ".safetensors"


def encode(state: State) -> bytes:
    """Encode a state: the model's tensors under their own names, the server optimizer's under a prefix."""
    tensors: dict[str, NDArray[np.generic]] = {}
    for name, tensor in state.model.items():
        if name.startswith(OPTIMIZER):
            raise InvalidInput(f"a tensor of the model is called {name!r}", hint=f"rename it: {OPTIMIZER} is reserved")
        tensors[name] = np.asarray(tensor, order="C")
    for name, tensor in (state.optimizer or {}).items():
        tensors[OPTIMIZER + name] = np.asarray(tensor, order="C")
    return save(tensors)


def decode(data: bytes) -> State:
    tensors = load(data)
    optimizer = {name.removeprefix(OPTIMIZER): t for name, t in tensors.items() if name.startswith(OPTIMIZER)}
    model = {name: tensor for name, tensor in tensors.items() if not name.startswith(OPTIMIZER)}
    return State(model, optimizer or None)


class ModelFiles:
    """The ``models/`` directory. Reads only files with one of the ``allowed`` layouts; without any, all layouts."""

    def __init__(self, directory: Path, allowed: tuple[Layout, ...] = ()) -> None:
        self._directory = directory
        self._allowed = allowed
        self.door = Door(directory.parent, directory.name)

    def path(self, name: str) -> Path:
        return self._directory / (name + SUFFIX)

    def write(self, state: State) -> str:
        """Write a state durably and return its digest."""
        data = encode(state)
        name = digest(data)
        if not self._holds(name, data):
            write_durably(self.path(name), data, mode=0o600)
        return name

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.door.size(name + SUFFIX) == len(data) and self.door.read(name + SUFFIX, len(data)) == data
        except (OSError, RunDamaged):
            return False

    def require_layout(self, name: str) -> None:
        """Raise RunDamaged if the tensors of a file are not those of the plan. Reads its header only."""
        if self.door.status(name + SUFFIX) is not None:
            with self._opened(name):
                pass

    def size_of_one(self) -> int:
        """Return the size of some model file in bytes; all of a run are about equal. 0 if there is none."""
        names = self.door.names(SUFFIX)
        return (self.door.size(names[0]) or 0) if names else 0

    def read(self, name: str) -> State:
        path = self.path(name)
        with self._opened(name) as file:
            data = b"".join(chunks(file))
        if digest(data) != name:
            raise self._altered(path)
        try:
            return decode(data)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RunDamaged(f"the model file {path} is not a safetensors file: {error}", hint=self._remedy) from error

    def check(self, name: str) -> None:
        """Verify a file against its digest without holding it in memory."""
        hasher = new_hasher()
        with self._opened(name) as file:
            for chunk in chunks(file):
                hasher.update(chunk)
        if hasher.hexdigest() != name:
            raise self._altered(self.path(name))

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """Open a model file whose header matches its size and the plan."""
        path = self.path(name)
        try:
            with self.door.opened(name + SUFFIX) as file:
                require_header(file, path, self._allowed)
                yield file
        except RunDamaged as error:
            raise RunDamaged(f"the model file {error.message}", hint=self._remedy) from error
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise storage_failure(path, error) from error
            raise RunDamaged(f"the model file {path} cannot be read: {error.strerror}", hint=self._remedy) from error

    def _altered(self, path: Path) -> RunDamaged:
        return RunDamaged(f"the model file {path} is torn or altered (its digest is not its name)", hint=self._remedy)

    @property
    def _remedy(self) -> str:
        return f"recompute it with {hints.rebuild(self._directory.parent)}, or restore it from a backup"

    def drop(self, names: Iterable[str]) -> None:
        """Unlink these files durably."""
        for name in names:
            with storage_errors(self.path(name)):
                self.path(name).unlink(missing_ok=True)
                sync_directory(self._directory)

    def keep_only(self, names: Iterable[str]) -> None:
        """Unlink every other model file, and temporary files."""
        wanted = {name + SUFFIX for name in names}
        with storage_errors(self._directory):
            gone = [path for path in self._directory.iterdir() if path.name not in wanted]
            for path in gone:
                if path.name.endswith((SUFFIX, TEMPORARY)):
                    unlink_leftover(path)
            if gone:
                sync_directory(self._directory)
