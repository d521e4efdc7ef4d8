"""``plan.toml``: the frozen decisions of a run. Only K and b in it derive from the roster."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedforget.algorithm.plan import LocalOptimizer, Plan, ServerOptimizer
from fedforget.disk.door import Door
from fedforget.disk.files import digest
from fedforget.disk.parsing import parse_toml
from fedforget.disk.read_only import too_old
from fedforget.errors import InvalidInput, NoSuchRun, PlanRefused, RunDamaged, RunTooNew, RunTooOld
from fedforget.store.tensor_header import Layout, state_layouts

NAME = "plan.toml"
FORMAT = 3
OWN = "own"  # the name of a model or dataset that the user supplies
_MOST = 2**22  # bytes
_HEADER = "# The plan of this FedForget run, frozen when it began. Changing it makes the run refuse to open.\n"

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_TEXT = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(rf"#.*|\[[a-z_]+\]|(?:[A-Za-z0-9_-]+|{_TEXT}) = (?:{_TEXT}|[-+0-9.eE]+|true|false)|")

Settings = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The plan, the model and dataset, and the commitment to the server's seed."""

    plan: Plan
    model: Settings
    dataset: Settings
    server_commitment: bytes
    tensors: Mapping[str, str]  # of the module: whether each is trainable, its type and its shape

    def encode(self) -> bytes:
        plan = asdict(self.plan)
        sections: dict[str, Mapping[str, Any]] = {
            "local_optimizer": plan.pop("local"),
            "server_optimizer": plan.pop("server"),
            "model": self.model,
            "dataset": self.dataset,
            "commitment": {"server": self.server_commitment.hex()},
            "tensors": self.tensors,
        }
        lines = [_HEADER + f"format = {FORMAT}"]
        for name, values in {"plan": plan, **sections}.items():
            lines.append(f"\n[{name}]")
            lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in values.items()]
        encoded = ("\n".join(lines) + "\n").encode()
        if len(encoded) > _MOST:
            raise InvalidInput(
                f"the model has {len(self.tensors)} tensors, too many to name in {NAME}",
                hint=f"a plan has at most {_MOST} bytes: stack tensors of one kind",
            )
        return encoded

    @property
    def is_built_in(self) -> bool:
        """Whether the model and the data can be built from the plan alone."""
        return OWN not in (self.model.get("name"), self.dataset.get("name"))

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts that a stored state may have; ValueError if a tensor is not described as in a plan."""
        return state_layouts(self.tensors, moments=self.plan.server.name != "average")

    @property
    def digest(self) -> str:
        return digest(self.encode())

    def differences(self, other: PlanFile) -> list[str]:
        """Return the differences as text, seeds aside."""
        here, there = _flat(self), _flat(other)
        return [
            f"{key} is {here.get(key)!r}, not {there.get(key)!r}"
            for key in sorted(here.keys() | there.keys())
            if here.get(key) != there.get(key)
        ]

    @classmethod
    def decode(cls, data: bytes) -> PlanFile:
        """Parse a plan; raise ValueError, KeyError or TypeError if the text is not one."""
        _check_format(data.decode())
        text = parse_toml(data)
        plan = Plan(
            **text["plan"],
            local=LocalOptimizer(**text["local_optimizer"]),
            server=ServerOptimizer(**text["server_optimizer"]),
        )
        model, dataset, tensors = (_settings(text[section]) for section in ("model", "dataset", "tensors"))
        commitment = bytes.fromhex(text["commitment"]["server"])
        file = cls(plan, model, dataset, commitment, {name: str(kind) for name, kind in tensors.items()})
        _ = file.layouts  # raises
        return file

    @classmethod
    def read(cls, run: Path) -> PlanFile:
        """Read the plan of a run directory; raise RunDamaged, RunTooOld, RunTooNew or NoSuchRun."""
        return cls.parsed(run, read_bytes(run))

    @classmethod
    def parsed(cls, run: Path, data: bytes) -> PlanFile:
        """Parse the plan of a run directory; raise RunDamaged, RunTooOld or RunTooNew."""
        path = run / NAME
        try:
            return _decoded(data)
        except RunTooOld as error:
            raise too_old(path) from error
        except RunTooNew as error:
            raise RunTooNew(f"{path} is too new: {error.message}", hint=error.hint) from error
        except KeyError as error:
            raise RunDamaged(f"{path} is damaged: it lacks {error}") from error
        except (ValueError, TypeError, AttributeError, OverflowError, PlanRefused) as error:
            raise RunDamaged(f"{path} is damaged: {str(error)[:200]}") from error


@lru_cache(maxsize=4)
def _decoded(data: bytes) -> PlanFile:
    """Parse the same bytes once: a process that opens a run for each request reads the same plan each time."""
    return PlanFile.decode(data)


def require_plan(run: Path) -> None:
    """Raise NoSuchRun or RunDamaged unless the directory has a plan. Does not read it."""
    with _errors(run):
        if Door(run).status(NAME) is None:
            raise FileNotFoundError


def read_bytes(run: Path) -> bytes:
    """Return the plan of a run directory as bytes."""
    with _errors(run):
        return Door(run).read(NAME, _MOST)


@contextlib.contextmanager
def _errors(run: Path) -> Iterator[None]:
    path = run / NAME
    try:
        yield
    except FileNotFoundError as error:
        if (run / "server.db").exists():
            raise RunDamaged(
                f"{path} is missing",
                hint="restore it from a backup; if `train --out` was interrupted while creating the run, give it again",
            ) from error
        raise NoSuchRun(f"{run} holds no run", hint="make one with `fedforget train --out`") from error
    except OSError as error:
        raise NoSuchRun(f"{path} cannot be read: {error.strerror}", hint="check the path and permissions") from error


def _check_format(text: str) -> None:
    """Require our format version and only lines that we write; crafted TOML could take very long to parse."""
    found = re.search(r"^format = ([0-9]{1,9})$", text, re.MULTILINE)
    if found is None:
        raise KeyError("format")
    if int(found[1]) > FORMAT:
        known = f"this version of FedForget knows {FORMAT}"
        raise RunTooNew(f"it has format {found[1]}, {known}", hint="upgrade fedforget")
    if int(found[1]) < FORMAT:
        raise RunTooOld("made by an older version")
    for line in text.split("\n"):
        if not _LINE.fullmatch(line):
            raise ValueError(f"{line[:60]!r} is not a line of a plan")


def _settings(found: Any) -> Settings:
    """Require the settings of a model or dataset: a table of texts and numbers."""
    if not isinstance(found, dict) or not all(isinstance(value, str | int | float) for value in found.values()):
        raise ValueError("the settings of a model or dataset are names and numbers")
    return found


def _key(name: str) -> str:
    """Return a TOML key: bare if TOML allows it, else quoted."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")


def _flat(file: PlanFile) -> dict[str, Any]:
    flat = {field.name: getattr(file.plan, field.name) for field in fields(file.plan)}
    for group in ("local", "server"):
        flat |= {f"{group} {key}": value for key, value in asdict(flat.pop(group)).items()}
    flat |= {f"model {key}": value for key, value in file.model.items()}
    return flat | {f"dataset {key}": value for key, value in file.dataset.items() if key != "partition_seed"}
