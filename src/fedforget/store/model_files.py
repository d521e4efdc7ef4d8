"""One safetensors file per kept state, named by the digest of its bytes and checked against it on every load."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedforget.algorithm.ports import State
from fedforget.errors import InvalidInput, RunDamaged
from fedforget.store.files import TEMPORARY, digest, storage_errors, storage_failure, sync_directory, write_durably

SUFFIX = ".safetensors"
_OPTIMIZER = "server-optimizer/"


def encode(state: State) -> bytes:
    """The bytes of a state: the model's tensors under their own names, the server optimiser's under a prefix."""
    tensors: dict[str, NDArray[np.generic]] = {}
    for name, tensor in state.model.items():
        if name.startswith(_OPTIMIZER):
            raise InvalidInput(f"a tensor of the model is called {name!r}", hint=f"rename it: {_OPTIMIZER} is taken")
        tensors[name] = np.asarray(tensor, order="C")
    for name, tensor in (state.optimizer or {}).items():
        tensors[_OPTIMIZER + name] = np.asarray(tensor, order="C")
    return save(tensors)


def decode(data: bytes) -> State:
    tensors = load(data)
    optimizer = {name.removeprefix(_OPTIMIZER): t for name, t in tensors.items() if name.startswith(_OPTIMIZER)}
    model = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OPTIMIZER)}
    return State(model, optimizer or None)


class ModelFiles:
    """The ``models/`` directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, name: str) -> Path:
        return self._directory / (name + SUFFIX)

    def write(self, state: State) -> str:
        """Make a state durable; returns its digest."""
        data = encode(state)
        name = digest(data)
        if not self._holds(name, data):
            write_durably(self.path(name), data)
        return name

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.path(name).read_bytes() == data
        except OSError:
            return False

    def size_of_one(self) -> int:
        """Bytes of a file; all of a run are about alike."""
        with storage_errors(self._directory):
            return next((path.stat().st_size for path in self._directory.glob("*" + SUFFIX)), 0)

    def read(self, name: str) -> State:
        path = self.path(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise storage_failure(path, error) from error
            raise RunDamaged(f"the model file {path} cannot be read: {error.strerror}", hint=self._remedy) from error
        if digest(data) != name:
            raise RunDamaged(
                f"the model file {path} is torn or altered (its digest is not its name)", hint=self._remedy
            )
        try:
            return decode(data)
        except SafetensorError as error:
            raise RunDamaged(f"the model file {path} is not a safetensors file: {error}", hint=self._remedy) from error

    @property
    def _remedy(self) -> str:
        return f"`fedforget doctor {self._directory.parent} --rebuild` computes it again, or restore it from a backup"

    def drop(self, names: Iterable[str]) -> None:
        """Unlink these, durably."""
        for name in names:
            with storage_errors(self.path(name)):
                self.path(name).unlink(missing_ok=True)
                sync_directory(self._directory)

    def keep_only(self, names: Iterable[str]) -> None:
        """Unlink every file that no round refers to, and torn temporary ones."""
        wanted = {name + SUFFIX for name in names}
        with storage_errors(self._directory):
            gone = [path for path in self._directory.iterdir() if path.name not in wanted]
            for path in gone:
                if path.name.endswith((SUFFIX, TEMPORARY)):
                    path.unlink()
            if gone:
                sync_directory(self._directory)
