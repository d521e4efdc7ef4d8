"""Export the current model of a run, and note in the record that it left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedforget.disk.files import digest, require_place, storage_errors, write_durably
from fedforget.errors import InvalidInput, RunBusy, StorageFailed
from fedforget.session.status import withdrawn_error
from fedforget.store import run_directory

SAFETENSORS = ".safetensors"


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported model. ``noted``: the record of the run says so."""

    model_digest: str
    rounds_done: int
    noted: bool


def export_run(path: Path, file: Path) -> Exported:
    """Write the current model of a run; needs neither its module nor its data.

    The export is noted before the file is written: a receipt may name an export that failed, but misses none.
    """
    from fedforget.training.export import exported  # noqa: PLC0415

    place = require_place(file, outside=path)
    with storage_errors(file):  # a mistyped name must not become a new directory
        if not file.parent.is_dir():
            raise InvalidInput(f"there is no directory {file.parent}", hint="make it first, or export somewhere else")
    with run_directory.reading(path) as run:
        if not len(run.server.roster):
            raise withdrawn_error(path)
        model, rounds_done, crashed = run.server.model_digest(), run.server.rounds_done, run.crashed
        data = exported(run.server.load(rounds_done).model, is_safetensors(file))
    noted = not crashed and _note(path, model, digest(data))
    write_durably(place, data)
    return Exported(model, rounds_done, noted)


def _note(path: Path, model: str, file_digest: str) -> bool:
    """Note an export in the record. Return False if the run cannot be written."""
    try:
        with run_directory.writing(path) as run:
            if run.record.batches.unfinished() or not len(run.server.roster) or run.server.model_digest() != model:
                raise RunBusy(f"the model of {path} changed while it was exported", hint="give the same command again")
            run.record.exported(file_digest)
    except StorageFailed:
        return False
    return True


def is_safetensors(file: Path) -> bool:
    return file.suffix.lower() == SAFETENSORS
