"""The status of a run, and what in it needs an operator. Neither needs the module or the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.disk.lock import is_at_work
from fedforget.errors import AttentionNeeded, ModelWithdrawn, shown
from fedforget.requests.inbox import open_requests
from fedforget.requests.selection import OPEN, OPEN_STATES, Selection
from fedforget.store import hints
from fedforget.store.run_directory import OpenRun, unfinished_error
from fedforget.training.environment import is_mixed

MOST_OPEN = 1000  # open requests that the status names


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a run, its open requests, and its clients on other machines."""

    run: str
    rounds_done: int
    rounds: int
    steps_done: int
    steps: int
    clients: int
    samples: int | None  # None: only the clients know
    clients_per_round: int
    batch_size: int
    local_steps: int
    rho_s: float | None
    rho_c: float
    model_digest: str | None
    withdrawn: bool
    accuracy: float | None
    accuracies: dict[int, float]
    requests: int
    states: dict[str, int]  # how many requests are in each state
    open_count: int  # requests that are not closed, those in the inbox included
    open_requests: list[dict[str, Any]]  # those with the next deadlines
    overdue: list[str]  # of these
    pending: bool
    seed_origin: str
    tainted: bool
    environments: list[dict[str, Any]]  # which rounds each trained; more than one kind is a mixed run
    mixed_environments: bool
    silent: list[dict[str, Any]]  # clients on other machines that do not answer, the longest silence first
    problems: list[dict[str, Any]]  # of clients on other machines at the last contact: what is wrong, what helps
    enrolled: int  # enrolled clients that join at the next contact
    undelivered: int  # erased clients that were not yet notified


def status_of(run: OpenRun) -> Status:
    """Return the progress of a run and its open requests. Needs neither model nor data."""
    plan, server = run.file.plan, run.server
    sizes = None if run.is_remote else run.clients.sample_counts().tolist()
    withdrawn = not len(server.roster)
    trained = run.record.environments.of_rounds(server.rounds_done)
    contacts = run.remote.contacts if run.is_remote else None
    return Status(
        run=str(run.path),
        rounds_done=server.rounds_done,
        rounds=plan.rounds,
        steps_done=server.rounds_done * plan.local_steps,
        steps=plan.steps,
        clients=len(server.roster),
        samples=None if sizes is None else sum(sizes),
        clients_per_round=plan.clients_per_round,
        batch_size=plan.batch_size,
        local_steps=plan.local_steps,
        rho_s=None if sizes is None else plan.realised_rho_s(sizes),
        rho_c=plan.realised_rho_c(len(server.roster)),
        model_digest=None if withdrawn else server.model_digest(),
        withdrawn=withdrawn,
        accuracy=run.metrics.accuracy(server.rounds_done),
        accuracies=run.metrics.accuracies(),
        **_requests(run),
        pending=run.record.batches.are_unfinished,
        seed_origin=server.seed_origin,
        tainted=run.record.book.tainted,
        environments=[each.as_dict() for each in trained],
        mixed_environments=is_mixed(trained),
        silent=[] if contacts is None else [silence.as_dict() for silence in contacts.silences()],
        problems=[] if contacts is None else [problem.as_dict() for problem in contacts.problems()],
        enrolled=0 if contacts is None else len(contacts.waiting(server.roster)),
        undelivered=0 if contacts is None else len(contacts.undelivered),
    )


def _requests(run: OpenRun) -> dict[str, Any]:
    """Return the fields of ``Status`` about requests."""
    states = run.record.book.counts()
    listed = run.record.book.chosen(Selection((OPEN,), limit=MOST_OPEN, by_deadline=True))
    found = open_requests(listed, run.inbox)
    open_count = len(found) + sum(states.get(state, 0) for state in OPEN_STATES) - len(listed)
    if open_count > MOST_OPEN:
        found = sorted(found, key=lambda receipt: receipt.deadline or "")[:MOST_OPEN]
    return {
        "requests": sum(states.values()),
        "states": states,
        "open_count": open_count,
        "open_requests": [
            {name: fields[name] for name in ("id", "level", "state", "deadline", "days_left", "overdue")}
            for fields in (receipt.as_dict() for receipt in found)
        ],
        "overdue": [receipt.id for receipt in found if receipt.is_overdue()],
    }


def attention(path: Path, status: Status) -> AttentionNeeded | None:
    """Return what needs an operator: a request unfinished without a process, a silent client, overdue requests."""
    if status.pending and not is_at_work(path):
        unfinished = unfinished_error(path)
        return AttentionNeeded(unfinished.message, hint=unfinished.hint)
    if status.silent:
        first = status.silent[0]
        return AttentionNeeded(
            f"client {shown(first['client'])} has not answered since {first['since']}: round {first['round']} waits",
            hint="start its node again; or erase the client, a choice that depends on the draws "
            f"(`fedforget forget {path} --client {shown(first['client'])} --basis model-informed`)",
        )
    if status.problems:
        return AttentionNeeded(status.problems[0]["problem"], hint=status.problems[0]["remedy"])
    if status.overdue:
        since = min(each["deadline"] for each in status.open_requests if each["overdue"])
        at_least = "at least " if len(status.overdue) == len(status.open_requests) < status.open_count else ""
        return AttentionNeeded(
            f"{at_least}{len(status.overdue)} of {status.open_count} open requests on {path} overdue, "
            f"the first since {since}",
            hint=f"carry them out with {hints.run_pending(path)}",
        )
    return None


def withdrawn_error(path: Path) -> ModelWithdrawn:
    return ModelWithdrawn(
        f"every client of {path} was erased: its model is withdrawn", hint="start a new run with other clients"
    )
