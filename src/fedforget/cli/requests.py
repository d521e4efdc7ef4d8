"""Commands about requests: ``forget``, ``run-pending`` and ``cancel``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedforget.algorithm.forget import Request
from fedforget.cli.app import app
from fedforget.cli.guarantee import LAW_LOST, claim, costs_the_law, has_law
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import BasisOption, RoundsOptions, RunPath
from fedforget.cli.output import Output, pairs, table
from fedforget.cli.sessions import session_on, traffic_of
from fedforget.errors import InvalidInput, shown
from fedforget.planner.costs import ForgettingCost
from fedforget.requests.lifecycle import Basis, Receipt, Stage, Submission, require_basis
from fedforget.requests.request_file import requests_in
from fedforget.session import deferral
from fedforget.session.preview import preview
from fedforget.session.status import status_of
from fedforget.store import hints, run_directory
from fedforget.store.run_directory import OpenRun


@app.command(short_help="Forget samples and clients exactly.")
@grouped
def forget(
    run: RunPath,
    client: Annotated[str | None, typer.Option(help="The client to forget, or the client of --sample.")] = None,
    sample: Annotated[str | None, typer.Option(help="The sample to forget.")] = None,
    batch: Annotated[Path | None, typer.Option(help="A file of requests, carried out together or not at all.")] = None,
    basis: BasisOption = None,
    new_seed: Annotated[
        bool, typer.Option("--new-seed", help="Draw new seeds: full retraining, with or without a request.")
    ] = False,
    defer: Annotated[
        bool, typer.Option("--defer", help="Only accept the requests; `run-pending` carries them out together.")
    ] = False,
    deadline: Annotated[
        str | None, typer.Option(help="The deadline: a date or a time.", show_default="one month from now")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Your own name for this request: the same key again is the same request.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only the a-priori probability and cost.")] = False,
    *,
    how: RoundsOptions,
    output: Output,
) -> None:
    """Forget samples and clients: the run becomes, byte for byte, what it would be without them.

    Needs the model and the data: for a run with your own, only --defer, --dry-run and the policy `batch` work here.
    """
    requests = [] if new_seed and client is None and batch is None else _requests(client, sample, batch)
    require_basis(basis or Basis.UNKNOWN)
    if dry_run:
        _dry_run(run, requests, new_seed or how.recompute_all, output)
        return
    submission = Submission.of(
        tuple(requests), basis or Basis.UNKNOWN, deadline=deadline, key=idempotency_key, new_seed=new_seed
    )
    with deferral.open_for_submission(run, submission, defer=defer) as (opened, deferred):
        before, traffic = has_law(opened), dict[str, int]()
        if deferred is not None:
            receipts = deferred(opened, submission)
        else:
            instead = partial(_instead, opened, submission)
            with session_on(opened, "forgetting", how, output, instead=instead) as session:
                receipts = session.forget(submission)
                traffic = traffic_of(session, how)
        law_lost = basis is None and before and costs_the_law(opened, receipts)
        digest = opened.server.model_digest() if len(opened.server.roster) else None
        how_to_go_on = f"carry them out with {hints.run_pending(run, file=opened.file)}"
    _show(receipts, digest, how_to_go_on, output, traffic)
    if law_lost:
        output.warn(LAW_LOST)


def _instead(run: OpenRun, submission: Submission) -> str:
    """Return what to do on a run whose model and data are the user's own."""
    if submission.new_seed:
        return f"use {hints.forget(run.path)}"
    command = f"fedforget forget {shlex.quote(str(run.path))} --defer {_options_for(submission)}"
    return f"submit it with `{command}` now, and carry it out with {hints.run_pending(run.path)}"


def _options_for(submission: Submission) -> str:
    """Return the command line options for these requests."""
    (first, *others) = submission.requests
    target = {"batch": "FILE"} if others else {"client": first.client, "sample": first.sample}
    deadline = submission.deadline if submission.urgent else None
    basis = None if submission.basis == Basis.UNKNOWN else submission.basis
    given = {**target, "basis": basis, "deadline": deadline, "idempotency-key": submission.key}
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)


def _show(
    receipts: Sequence[Receipt], digest: str | None, how_to_go_on: str, output: Output, traffic: dict[str, int]
) -> None:
    waiting = [receipt for receipt in receipts if receipt.is_open]

    def text() -> str:
        if waiting:
            header = ("request", "level", "client", "sample", "state", "deadline")
            rows = [(r.id, r.level, *_target(r), r.state, (r.deadline or "")[:10]) for r in receipts]
            how = (
                "the process that has the run open, or the next one, will accept them"
                if any(r.state == Stage.RECEIVED for r in waiting)
                else how_to_go_on
            )
            return f"{table(header, rows)}\n\nnothing is forgotten yet: {how}"
        rows_text = f"{table(_HEADER, [_row(receipt) for receipt in receipts])}\n\n" if receipts else ""
        return f"{rows_text}model digest  {digest or 'withdrawn: no client is left'}"

    shown_receipts = [receipt.as_dict() for receipt in receipts]
    output.emit({"receipts": shown_receipts, "model_digest": digest, **traffic}, text)


_HEADER = ("request", "level", "client", "sample", "first changed step", "recomputed steps", "state", "guarantee")


def _target(r: Receipt) -> Iterator[int | str | None]:
    return (shown(each) if isinstance(each, str) else each for each in (r.client, r.sample))


def _row(r: Receipt) -> tuple[object, ...]:
    return (
        r.id,
        r.level,
        *_target(r),
        r.first_changed_step,
        r.recomputed_steps,
        r.state,
        claim(r.guarantee, r.guarantee_covers),
    )


def _requests(client: str | None, sample: str | None, batch: Path | None) -> list[Request]:
    if (client is None) == (batch is None) or (sample is not None and client is None):
        raise InvalidInput("name exactly one thing to forget", hint="give --client, --client and --sample, or --batch")
    if batch is None and client is not None:
        return [Request(client, sample)]
    return requests_in(batch) if batch is not None else []


def _dry_run(run: Path, requests: list[Request], everything: bool, output: Output) -> None:
    with run_directory.reading(run, only_idle=False) as opened:
        cost = preview(opened, requests)
        steps = opened.server.rounds_done * opened.file.plan.local_steps
    if everything:  # all steps are recomputed, whatever the draws
        cost = ForgettingCost(float(steps > 0), float(steps), float(steps))
    facts = {"dry_run": True, "requests": len(requests), "steps": steps, **asdict(cost)}
    output.emit(
        facts,
        lambda: pairs(facts) + "\n\nnothing was changed; these figures depend on the plan only, not on the draws",
    )


@app.command("run-pending", short_help="Carry out all pending requests.")
@grouped
def run_pending(
    run: RunPath,
    everything: Annotated[
        bool, typer.Option("--all", help="Also before the window of the policy `batch` ends.")
    ] = False,
    *,
    how: RoundsOptions,
    output: Output,
) -> None:
    """Carry out all pending requests with a single rewind; under the policy `batch` only once they are due."""
    with run_directory.writing(run) as opened:
        instead = hints.run_pending(run, file=opened.file)
        with session_on(opened, "forgetting", how, output, instead=lambda: f"carry them out with {instead}") as session:
            receipts = session.run_pending(everything=everything)
            traffic = traffic_of(session, how)
        status = status_of(opened)
    facts: dict[str, Any] = {
        "receipts": [receipt.as_dict() for receipt in receipts],
        "recomputed_steps": sum({receipt.batch_id: receipt.recomputed_steps or 0 for receipt in receipts}.values()),
        "steps_one_by_one": sum(receipt.steps_alone or 0 for receipt in receipts),
        "waiting": status.open_count,
        "model_digest": status.model_digest,
        "problems": status.problems,
    }
    facts["steps_saved"] = facts["steps_one_by_one"] - facts["recomputed_steps"]

    def text() -> str:
        if not receipts:
            left = status.open_count
            return f"{left} pending, not due yet (--all carries them out now)" if left else "no pending requests"
        saved = (
            f"{facts['recomputed_steps']} steps recomputed instead of {facts['steps_one_by_one']} one by one: "
            f"{facts['steps_saved']} saved"
        )
        return f"{table(_HEADER, [_row(receipt) for receipt in receipts])}\n\n{saved}"

    output.emit({**facts, **traffic}, text)
    output.warn_of_clients(status.problems)


@app.command()
@grouped
def cancel(
    run: RunPath,
    request: Annotated[str, typer.Argument(help="The id of a pending request.")],
    basis: BasisOption = None,
    *,
    output: Output,
) -> None:
    """Cancel a pending request."""
    with run_directory.writing(run) as opened:
        before = has_law(opened)
        receipt = deferral.cancel(opened, request, basis or Basis.UNKNOWN)
        law_lost = basis is None and before and not has_law(opened)
    output.emit({"receipt": receipt.as_dict()}, lambda: f"{receipt.id} is cancelled")
    if law_lost:
        output.warn(LAW_LOST)
