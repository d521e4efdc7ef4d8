"""``client.toml``: a client's id and the key of its labels. Written last: a directory without it is created again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.ids import Id, canonical_id
from fedforget.disk.door import Door
from fedforget.disk.files import write_durably
from fedforget.disk.parsing import parse_toml
from fedforget.errors import InvalidId, NoSuchRun, RunDamaged, RunTooNew

CLIENT = "client.toml"
FORMAT = 1
_MOST = 2**16  # bytes
_HEADER = "# A client of a FedForget run. It holds a secret: keep it private, and keep a backup of this directory.\n"
_LINE = re.compile(r'#.*|\[dataset\]|[a-z_]+ = (?:"(?:[^"\\]|\\.)*"|[-+0-9.e]+)|')

Settings = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Identity:
    """A client's id, the key of its samples' labels, and the source of its data.

    ``sample_key`` is secret: with it, a reader of a root could test guesses of ids.
    """

    client: Id
    sample_key: bytes
    seed_origin: str
    dataset: Settings = field(default_factory=dict)

    def encode(self) -> bytes:
        values: Settings = {
            "format": FORMAT,
            "client": str(self.client),
            "sample_key": self.sample_key.hex(),
            "seed_origin": self.seed_origin,
        }
        lines = [f"{key} = {_literal(value)}" for key, value in values.items()]
        lines += ["", "[dataset]", *(f"{key} = {_literal(value)}" for key, value in self.dataset.items())]
        return (_HEADER + "\n".join(lines) + "\n").encode()

    def write(self, state: Path) -> None:
        write_durably(state / CLIENT, self.encode(), mode=0o600)

    @classmethod
    def read(cls, state: Path) -> Identity:
        """Read the identity of a state directory. Raise NoSuchRun, RunDamaged or RunTooNew."""
        require_client(state)
        path = state / CLIENT
        try:
            return cls._decoded(path, Door(state).read(CLIENT, _MOST))
        except (ValueError, KeyError, TypeError, AttributeError, InvalidId) as error:
            raise RunDamaged(
                f"{path} is damaged: {str(error)[:200]}", hint="restore the state directory from a backup"
            ) from error

    @classmethod
    def _decoded(cls, path: Path, data: bytes) -> Identity:
        for line in data.decode().split("\n"):
            if not _LINE.fullmatch(line):
                raise ValueError(f"{line[:60]!r} is not a line of such a file")
        text = parse_toml(data)
        if text["format"] > FORMAT:
            raise RunTooNew(f"{path} has format {text['format']}", hint="upgrade fedforget")
        key = bytes.fromhex(text["sample_key"])
        if len(key) != SEED_BYTES or text["seed_origin"] not in ("given", "system") or text["format"] != FORMAT:
            raise ValueError("a value is invalid")
        return cls(canonical_id(text["client"]), key, text["seed_origin"], dict(text["dataset"]))


def _literal(value: str | int | float) -> str:
    """Return a value as TOML writes it. JSON escapes some characters as surrogate pairs, which TOML rejects."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def require_client(state: Path) -> None:
    """Raise NoSuchRun unless the directory is a client's state directory."""
    try:
        found = Door(state).status(CLIENT)
    except OSError as error:
        raise NoSuchRun(f"{state} cannot be read: {error.strerror}", hint="check --state-dir") from error
    if found is None:
        raise NoSuchRun(
            f"{state} is not the state directory of a client",
            hint="check --state-dir, or make one with `fedforget client init`",
        )
