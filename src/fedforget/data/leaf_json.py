"""LEAF's JSON: images by writer in ``train/`` and ``test/``, or the lines of each role, with or without gzip."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedforget.data.rows import WINDOW, Array
from fedforget.errors import DataDamaged

_SIDE = 28
_ENDS = (".json", ".json.gz")


def find_json(folder: Path) -> list[Path]:
    """Return the JSON files of a folder, in the order of their names."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name.endswith(_ENDS))


def read_writers(folder: Path) -> dict[str, tuple[Array, Array]]:
    """Return each writer's images (n, 28, 28) as bytes, and labels."""
    found: dict[str, tuple[Array, Array]] = {}
    for path in find_json(folder):
        for writer, data in _users(path):
            try:
                grey = np.asarray(data["x"], np.float32).reshape(-1, _SIDE, _SIDE)
                labels = np.asarray(data["y"], np.uint8)
            except (KeyError, OverflowError, TypeError, ValueError) as error:
                raise _damaged(path, f"the images of {writer}: {error}") from error
            if len(grey) != len(labels):
                raise _damaged(path, f"{writer} has {len(grey)} images and {len(labels)} labels")
            found[writer] = np.rint(grey * 255).astype(np.uint8), labels
    return found


def read_roles(folder: Path) -> dict[str, str]:
    """Return each role's text: its lines (LEAF's ``--raw``), or its windows put together again."""
    found: dict[str, str] = {}
    for path in find_json(folder):
        for role, data in _users(path):
            if isinstance(data, dict) and isinstance(data.get("raw"), str):
                found[role] = data["raw"]
            elif isinstance(data, dict) and data.keys() >= {"x", "y"}:
                found[role] = text_of_windows(data["x"], data["y"], f"{path}: {role}")
            else:
                raise _damaged(path, f"{role} has neither lines nor windows")
    return found


def text_of_windows(x: list[str], y: list[str], what: str) -> str:
    """Return the text whose windows of 80 characters these are, each one character after the last."""
    text = (x[0] if x else "") + "".join(y)
    if len(x) != len(y) or any(window != text[place : place + WINDOW] for place, window in enumerate(x)):
        raise DataDamaged(
            f"{what}: its windows do not follow each other", hint="give all of its windows, in the order of the text"
        )
    return text


def _users(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            content = json.load(file)
        users, data = content["users"], content["user_data"]
        pairs = [(str(user), data[user]) for user in users]
    except KeyError as error:
        raise _damaged(path, f"it lacks {error}") from error
    except (EOFError, OSError, TypeError, ValueError, zlib.error) as error:
        raise _damaged(path, str(error)) from error
    yield from pairs


def _damaged(path: Path, why: str) -> DataDamaged:
    return DataDamaged(f"{path} is truncated or altered: {why[:300]}", hint="get the file again")
