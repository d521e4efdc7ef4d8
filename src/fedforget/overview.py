"""What can be told about a run, and taken out of it, without its module and its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.errors import InvalidInput, ModelWithdrawn
from fedforget.store import run_directory
from fedforget.store.files import require_place, storage_errors, write_durably
from fedforget.store.run_directory import OpenRun

SAFETENSORS = ".safetensors"


@dataclass(frozen=True, slots=True)
class Status:
    """Where a run stands."""

    run: str
    rounds_done: int
    rounds: int
    steps_done: int
    steps: int
    clients: int
    samples: int
    clients_per_round: int
    batch_size: int
    local_steps: int
    rho_s: float
    rho_c: float
    model_digest: str | None
    withdrawn: bool
    accuracy: float | None
    accuracies: dict[int, float]
    requests: int
    open_requests: list[dict[str, Any]]
    pending: bool
    seed_origin: str
    tainted: bool


def status_of(run: OpenRun) -> Status:
    """Where a run stands; needs neither model nor data."""
    plan, server, sizes = run.file.plan, run.server, run.clients.sizes()
    withdrawn = not len(server.roster)
    receipts = run.record.book.receipts()
    handed_in = [receipt for _, submission in run.inbox.submissions() for receipt in submission.receipts()]
    return Status(
        run=str(run.path),
        rounds_done=server.rounds_done,
        rounds=plan.rounds,
        steps_done=server.rounds_done * plan.local_steps,
        steps=plan.steps,
        clients=len(server.roster),
        samples=sum(sizes.values()),
        clients_per_round=plan.clients_per_round,
        batch_size=plan.batch_size,
        local_steps=plan.local_steps,
        rho_s=plan.realised_rho_s(sizes.values()),
        rho_c=plan.realised_rho_c(len(server.roster)),
        model_digest=None if withdrawn else server.model_digest(),
        withdrawn=withdrawn,
        accuracy=run.record.metrics.accuracy(server.rounds_done),
        accuracies=run.record.metrics.accuracies(),
        requests=len(receipts),
        open_requests=[
            {"id": r.id, "level": r.level, "state": r.state, "deadline": r.deadline, "days_left": r.days_left()}
            for r in (*receipts, *handed_in)
            if r.is_open
        ],
        pending=bool(run.record.batches.pending()),
        seed_origin=server.seed_origin,
        tainted=run.record.book.tainted,
    )


def export_run(path: Path, file: Path) -> tuple[str, int]:
    """Write the current model of a run; needs neither its module nor its data. Returns its digest and round."""
    from fedforget.training.export import exported  # noqa: PLC0415

    _check_place(path, file)
    place = require_place(file)
    with run_directory.reading(path) as run:
        if not len(run.server.roster):
            raise withdrawn_error(path)
        write_durably(place, exported(run.server.load(run.server.rounds_done).model, is_safetensors(file)))
        return run.server.model_digest(), run.server.rounds_done


def is_safetensors(file: Path) -> bool:
    return file.suffix.lower() == SAFETENSORS


def _check_place(path: Path, file: Path) -> None:
    """A mistyped name must not become a new directory."""
    if file.resolve().is_relative_to(path.resolve()):
        raise InvalidInput(f"{file} is inside the run", hint="export to a place outside the run directory")
    with storage_errors(file):
        if not file.parent.is_dir():
            raise InvalidInput(f"there is no directory {file.parent}", hint="make it first, or export somewhere else")


def withdrawn_error(path: Path) -> ModelWithdrawn:
    return ModelWithdrawn(
        f"every client of {path} was erased: its model is withdrawn", hint="start a new run with other clients"
    )
