"""A client's own data: a function of the user, which the state directory names, and where its module is found."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.client_side.identity import Settings
from fedforget.errors import FedForgetError, InvalidInput, quoted

_FUNCTION, _DIRECTORY = "own", "own_directory"  # keys of client.toml


def noted(function: str) -> Settings:
    """Return what ``client.toml`` notes of a function: its name, and the working directory, where its module is."""
    return {_FUNCTION: function, _DIRECTORY: str(Path.cwd())}


def is_noted(settings: Mapping[str, Any]) -> bool:
    return _FUNCTION in settings


def noted_samples(settings: Mapping[str, Any], client: Id) -> Any:
    """Return a client's samples from the function that its state directory names."""
    return samples_of(str(settings[_FUNCTION]), client, str(settings.get(_DIRECTORY, "")))


def samples_of(name: str, client: Id, directory: str = "") -> Any:
    """Call ``MODULE:FUNCTION`` with a client's id. The module is also looked for in the directory."""
    module, _, function = name.partition(":")
    place = directory or str(Path.cwd())
    sys.path.insert(0, place)
    try:
        importlib.invalidate_caches()
        return getattr(importlib.import_module(module), function)(client)
    except FedForgetError:
        raise
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the data of {quoted(name)} cannot be read: there is no module {quoted(str(error.name))}",
            hint=f"it was looked for in {place} and on PYTHONPATH: name its folder in PYTHONPATH, also where the "
            "SuperNode is started, or move it back",
        ) from error
    except Exception as error:
        raise InvalidInput(
            f"the data of {quoted(name)} cannot be read: {type(error).__name__}: {error}",
            hint="bring the source back; nothing was changed",
        ) from error
    finally:
        sys.path.remove(place)
