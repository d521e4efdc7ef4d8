"""Find the samples of one client: its part of a dataset, or what a function of the user returns."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.data.federations import Federation, recorded
from fedforget.errors import FedForgetError, InvalidInput, quoted, shown

# The keys under which ``client.toml`` names a function of the user, and the directory of its module
OWN, _DIRECTORY = "own", "own_directory"


def samples_of(federation: Federation, client: Id) -> dict[Id, Any]:
    """Return one client's samples of a partitioned dataset, as id → (x, y)."""
    owners = federation.owners()
    if client not in owners:
        raise InvalidInput(
            f"the dataset has no client {shown(client)}",
            hint="check the client, the number of clients and the partition",
        )
    samples = federation.data({client: owners[client]})[client]
    return {sample: samples.sample(sample) for sample in samples.ids}


def function_noted(name: str, directory: Path) -> dict[str, str]:
    """Return what ``client.toml`` notes of a function of the user: its name, and where its module is."""
    return {OWN: name, _DIRECTORY: str(directory)}


def is_of_function(noted: Mapping[str, Any]) -> bool:
    return OWN in noted


def samples_of_function(name: str, client: Id, directory: Path) -> Any:
    """Call a function of the user, ``MODULE:FUNCTION``, with the client's id. Its module may be in the directory."""
    module, _, function = name.partition(":")
    sys.path.insert(0, str(directory))
    try:
        return getattr(importlib.import_module(module), function)(client)
    except (FedForgetError, MemoryError):
        raise
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the data of {quoted(name)} cannot be read: there is no module {quoted(str(error.name))}",
            hint=f"it was looked for in {directory} and on PYTHONPATH: name its folder in PYTHONPATH, also where the "
            "SuperNode is started, or move it back",
        ) from error
    except Exception as error:
        raise InvalidInput(
            f"the data of {quoted(name)} cannot be read: {type(error).__name__}: {error}",
            hint="restore the data source; nothing was changed",
        ) from error
    finally:
        sys.path.remove(str(directory))


def samples_recorded(
    noted: Mapping[str, Any], client: Id, state_dir: Path, *, data_dir: Path | None = None, hint: str
) -> Any:
    """Return a client's samples from the source that its state directory records.

    ``hint``: how the caller gives samples to a directory that records no source.
    """
    if OWN in noted:
        return samples_of_function(str(noted[OWN]), client, Path(str(noted.get(_DIRECTORY, Path.cwd()))))
    if "name" not in noted:
        raise InvalidInput(f"{state_dir} was made in Python and records no source of its samples", hint=hint)
    try:
        federation = recorded(noted, data_dir, state_dir)
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidInput(f"{state_dir} names a dataset that cannot be read: {error}", hint=hint) from error
    return samples_of(federation, client)
