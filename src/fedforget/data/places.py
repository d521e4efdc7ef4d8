"""Find a dataset: in the given data directory, in FEDFORGET_DATA, where it was found last, or on the hub."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from fedforget.data import hub
from fedforget.data.registry import Dataset
from fedforget.data.source import Source
from fedforget.errors import DataMissing

VARIABLE = "FEDFORGET_DATA"
log = logging.getLogger("fedforget")


def find(dataset: Dataset, data_dir: Path | None = None, *, online: bool = True) -> Source:
    """Read a dataset from the first place that has it, and note that place for the next command.

    If a directory is given, no other is searched. ``online``: download it if it is in no directory.
    """
    looked = []
    for base, why in _directories(dataset.name, data_dir):
        looked.append(f"{base} ({why})")
        source = read_below(dataset, base)
        if source is not None:
            _note(dataset.name, base)
            return source
    if online and hub.is_installed():
        try:
            return dataset.hub_reader(dataset.shape, dataset.hub_id, None)
        except DataMissing as error:
            looked.append(error.message.removeprefix("cannot read "))
    elif online:
        looked.append(f"{dataset.hub_id} on the Hugging Face hub (the extra 'data' is not installed)")
    where = "; ".join(looked) if looked else "nowhere: no directory is given"
    raise DataMissing(
        f"{dataset.name} was not found; looked in {where}",
        hint=f"put {dataset.files} into DIR/{dataset.folders[0]} and give --data-dir DIR or {VARIABLE}=DIR; "
        f"or pip install 'fedforget[data]' to download it",
    )


def read_below(dataset: Dataset, base: Path) -> Source | None:
    """Read a dataset from a data directory, or from the dataset's own folder; None if neither has it."""
    for folder in _folders(dataset, base):
        for read in dataset.readers:
            source = read(dataset.shape, folder)
            if source is not None:
                return source
        if hub.is_installed() and hub.find_parquet(folder):
            return dataset.hub_reader(dataset.shape, dataset.hub_id, folder)
    return None


def _folders(dataset: Dataset, base: Path) -> Iterator[Path]:
    """Return the dataset's folders in a data directory.

    The directory itself counts only if it has the name of such a folder: files of MNIST and Fashion-MNIST have the same
    names.
    """
    named = [base / folder for folder in dataset.folders]
    own = [base] if any(str(base.absolute()).endswith(f"/{folder}") for folder in dataset.folders) else []
    yield from (folder for folder in (*named, *own) if folder.is_dir())


def _directories(name: str, given: Path | None) -> Iterator[tuple[Path, str]]:
    if given is not None:
        yield given, "--data-dir"
        return
    if os.environ.get(VARIABLE):
        yield Path(os.environ[VARIABLE]), VARIABLE
    if (last := _noted().get(name)) is not None:
        yield Path(last), "where it was found last"


def _notes() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedforget" / "data.json"


def _noted() -> dict[str, str]:
    try:
        found = json.loads(_notes().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: place for name, place in pairs if isinstance(place, str)}


def _note(name: str, base: Path) -> None:
    """Remember where a dataset is. Only a convenience: a failure is logged."""
    known, place = _noted(), str(base.absolute())
    if known.get(name) == place:
        return
    try:
        path = _notes()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**known, name: place}, indent=1) + "\n", encoding="utf-8")
    except (OSError, RuntimeError) as error:
        log.info("cannot note where %s is: %s", name, error)
