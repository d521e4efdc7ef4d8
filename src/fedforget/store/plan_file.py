"""``plan.toml``: what was decided before training, frozen. Nothing in it derives from the roster except K and b."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedforget.algorithm.plan import LocalOptimizer, Plan, ServerOptimizer
from fedforget.errors import NoSuchRun, PlanRefused, RunDamaged, RunTooNew
from fedforget.store.files import digest

NAME = "plan.toml"
FORMAT = 1
_HEADER = "# The plan of this FedForget run, frozen when it began. Changing it makes the run refuse to open.\n"

Settings = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The plan, what is trained on what, and the commitment to the server's seed."""

    plan: Plan
    model: Settings
    dataset: Settings
    server_commitment: bytes

    def encode(self) -> bytes:
        plan = asdict(self.plan)
        sections: dict[str, Mapping[str, Any]] = {
            "local_optimizer": plan.pop("local"),
            "server_optimizer": plan.pop("server"),
            "model": self.model,
            "dataset": self.dataset,
            "commitment": {"server": self.server_commitment.hex()},
        }
        lines = [_HEADER + f"format = {FORMAT}"]
        for name, values in {"plan": plan, **sections}.items():
            lines.append(f"\n[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        return ("\n".join(lines) + "\n").encode()

    @property
    def digest(self) -> str:
        return digest(self.encode())

    def differences(self, other: PlanFile) -> list[str]:
        """What is not the same, seeds aside, in words."""
        here, there = _flat(self), _flat(other)
        return [
            f"{key} is {here.get(key)!r}, not {there.get(key)!r}"
            for key in sorted(here.keys() | there.keys())
            if here.get(key) != there.get(key)
        ]

    @classmethod
    def decode(cls, data: bytes) -> PlanFile:
        """Raises ValueError, KeyError or TypeError where the text is not a plan."""
        text = tomllib.loads(data.decode())
        if text["format"] > FORMAT:
            raise RunTooNew(
                f"it has format {text['format']}, this version of FedForget knows {FORMAT}", hint="upgrade fedforget"
            )
        plan = Plan(
            **text["plan"],
            local=LocalOptimizer(**text["local_optimizer"]),
            server=ServerOptimizer(**text["server_optimizer"]),
        )
        return cls(plan, text["model"], text["dataset"], bytes.fromhex(text["commitment"]["server"]))

    @classmethod
    def read(cls, run: Path) -> PlanFile:
        """The plan of a run directory."""
        path = run / NAME
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            if (run / "server.db").exists():
                raise RunDamaged(
                    f"{path} is missing",
                    hint="restore it from a backup; if the run was never made whole, give `train --out` again",
                ) from error
            raise NoSuchRun(f"{run} holds no run", hint="make one with `fedforget train --out`") from error
        except OSError as error:
            raise NoSuchRun(
                f"{path} cannot be read: {error.strerror}", hint="check the path and permissions"
            ) from error
        try:
            return cls.decode(data)
        except RunTooNew as error:
            raise RunTooNew(f"{path} is too new: {error.message}", hint=error.hint) from error
        except KeyError as error:
            raise RunDamaged(f"{path} is damaged: it lacks {error}", hint="restore it from a backup") from error
        except (ValueError, TypeError, AttributeError, PlanRefused) as error:
            raise RunDamaged(f"{path} is damaged: {error}", hint="restore it from a backup") from error


def _flat(file: PlanFile) -> dict[str, Any]:
    flat = {field.name: getattr(file.plan, field.name) for field in fields(file.plan)}
    for group in ("local", "server"):
        flat |= {f"{group} {key}": value for key, value in asdict(flat.pop(group)).items()}
    flat |= {f"model {key}": value for key, value in file.model.items()}
    return flat | {f"dataset {key}": value for key, value in file.dataset.items() if key != "partition_seed"}
