"""Commands about requests: ``forget``, ``run-pending``, ``cancel``, ``policy``, ``add`` and ``forget-record``."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from fedforget.algorithm.forget import Request
from fedforget.cli.app import app
from fedforget.cli.guarantee import LAW_LOST, costs_the_law, has_law
from fedforget.cli.options import AcceptMixed, EvalEvery, Federation, RecomputeAll, Workers, WorkerTimeout, workforce
from fedforget.cli.output import JsonOption, emit, pairs, progress, say_recomputed, table, warn
from fedforget.errors import InvalidInput, InvalidRequests, shown
from fedforget.planner.costs import ForgettingCost
from fedforget.requests.lifecycle import Basis, Receipt, Stage, Submission, require_basis
from fedforget.requests.policy import BATCH, Policy
from fedforget.requests.request_file import read_requests
from fedforget.store import hints

log = logging.getLogger("fedforget")

BasisOption = Annotated[str, typer.Option(help="exogenous (no draws or model seen), model-informed, or unknown.")]
RunPath = Annotated[Path, typer.Argument(help="The run directory.")]


@app.command()
def forget(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    client: Annotated[str | None, typer.Option(help="The client to forget, or whose sample to forget.")] = None,
    sample: Annotated[str | None, typer.Option(help="The sample to forget.")] = None,
    batch: Annotated[Path | None, typer.Option(help="A file of requests, carried out together or not at all.")] = None,
    basis: Annotated[
        str | None,
        typer.Option(help="exogenous (no draws or model seen), model-informed, or unknown.", show_default="unknown"),
    ] = None,
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
    eval_every: EvalEvery = None,
    recompute_all: RecomputeAll = False,
    accept_mixed: AcceptMixed = False,
    federation: Federation = None,
    workers: Workers = None,
    worker_timeout: WorkerTimeout = None,
    as_json: JsonOption = False,
) -> None:
    """Forget samples and clients: the run becomes, byte for byte, what it would be had they never been there.

    Needs the model and the data, so for a run with your own only --defer, --dry-run and the policy `batch` work here.
    """
    requests = [] if new_seed and client is None and batch is None else _requests(client, sample, batch)
    require_basis(basis or Basis.UNKNOWN)
    if dry_run:
        _dry_run(run, requests, new_seed or recompute_all, as_json)
        return
    if defer and new_seed:
        raise InvalidInput("new seeds cannot be deferred", hint="leave out one of --defer and --new-seed")
    submission = Submission.of(
        tuple(requests), basis or Basis.UNKNOWN, deadline=deadline, key=idempotency_key, new_seed=new_seed
    )
    before = has_law(run)
    receipts = _deferred(run, submission, defer)
    if receipts is None:
        receipts = _carried_out(
            run, workforce(federation, workers, worker_timeout), as_json=as_json,
            requests=requests, basis=submission.basis, new_seed=new_seed, deadline=deadline,
            idempotency_key=idempotency_key, eval_every=eval_every, recompute_all=recompute_all,
            accept_mixed=accept_mixed,
        )  # fmt: skip
    done = [receipt for receipt in receipts if not receipt.is_open]
    log.info("carried out %d requests, accepted %d more, on %s", len(done), len(receipts) - len(done), run)
    _show(run, receipts, as_json)
    if basis is None and before and costs_the_law(run, receipts):
        warn(LAW_LOST)


def _deferred(run: Path, submission: Submission, defer: bool) -> list[Receipt] | None:
    """Accept requests to be carried out later, without model and data; None if they are to be carried out now."""
    from fedforget.session import deferral  # noqa: PLC0415

    return deferral.defer(run, submission) if defer or deferral.collects(run, submission) else None


def _options_for(requests: Sequence[Request]) -> str:
    """Return the command line options for these requests."""
    if len(requests) != 1:
        return "--batch FILE"
    client, sample = (shlex.quote(shown(part)) for part in (requests[0].client, requests[0].sample))
    return f"--client {client}" + ("" if requests[0].sample is None else f" --sample {sample}")


def _carried_out(run: Path, chosen: Mapping[str, Any], as_json: bool, **asked: Any) -> list[Receipt]:
    from fedforget.builtin import open_run  # noqa: PLC0415 (torch)

    command = f"fedforget forget {run} --defer {_options_for(asked['requests'])}"
    instead = f"submit it with `{command}` now, and carry it out with {hints.run_pending(run)}"
    if asked["new_seed"]:
        instead = f"use {hints.forget(run)}"
    opened = open_run(run, instead=instead, **chosen)
    before = opened.status()
    if asked["recompute_all"]:
        say_recomputed(before, as_json)
    with progress("forgetting", before.rounds_done) as advance:
        return opened.forget(on_round=advance, **asked)


def _show(run: Path, receipts: Sequence[Receipt], as_json: bool) -> None:
    from fedforget.store import run_directory  # noqa: PLC0415

    with run_directory.reading(run, only_idle=False) as opened:
        digest = opened.server.model_digest() if len(opened.server.roster) else None
    waiting = [receipt for receipt in receipts if receipt.is_open]

    def text() -> str:
        if waiting:
            header = ("request", "level", "client", "sample", "state", "deadline")
            rows = [(r.id, r.level, *_target(r), r.state, (r.deadline or "")[:10]) for r in receipts]
            how = (
                "the process that has the run open, or the next one, will accept them"
                if any(r.state == Stage.RECEIVED for r in waiting)
                else f"carry them out with {hints.run_pending(run)}"
            )
            return f"{table(header, rows)}\n\nnothing is forgotten yet: {how}"
        rows_text = f"{table(_HEADER, [_row(receipt) for receipt in receipts])}\n\n" if receipts else ""
        return f"{rows_text}model digest  {digest or 'withdrawn: no client is left'}"

    emit({"receipts": [receipt.as_dict() for receipt in receipts], "model_digest": digest}, as_json, text)


_HEADER = ("request", "level", "client", "sample", "first changed step", "recomputed steps", "state", "guarantee")


def _target(r: Receipt) -> Iterator[int | str | None]:
    return (shown(each) if isinstance(each, str) else each for each in (r.client, r.sample))


def _row(r: Receipt) -> tuple[object, ...]:
    return r.id, r.level, *_target(r), r.first_changed_step, r.recomputed_steps, r.state, r.guarantee


def _requests(client: str | None, sample: str | None, batch: Path | None) -> list[Request]:
    if (client is None) == (batch is None) or (sample is not None and client is None):
        raise InvalidInput("name exactly one thing to forget", hint="give --client, --client and --sample, or --batch")
    if batch is None and client is not None:
        return [Request(client, sample)]
    return _from_file(batch) if batch is not None else []


def _from_file(path: Path) -> list[Request]:
    requests = read_requests(path)
    if not requests:
        raise InvalidRequests(f"{path} has no requests", hint="give at least one line")
    return list(dict.fromkeys(requests))


def _dry_run(run: Path, requests: list[Request], everything: bool, as_json: bool) -> None:
    from fedforget.session.preview import preview  # noqa: PLC0415
    from fedforget.store import run_directory  # noqa: PLC0415

    with run_directory.reading(run, only_idle=False) as opened:
        cost = preview(opened, requests)
        steps = opened.server.rounds_done * opened.file.plan.local_steps
    if everything:  # all steps are recomputed, whatever the draws
        cost = ForgettingCost(float(steps > 0), float(steps), float(steps))
    facts = {"dry_run": True, "requests": len(requests), "steps": steps, **asdict(cost)}
    emit(
        facts,
        as_json,
        lambda: pairs(facts) + "\n\nnothing was changed; these figures come from the plan, not the draws",
    )


@app.command("run-pending")
def run_pending(
    run: RunPath,
    everything: Annotated[
        bool, typer.Option("--all", help="Also before the window of the policy `batch` ends.")
    ] = False,
    eval_every: EvalEvery = None,
    recompute_all: RecomputeAll = False,
    accept_mixed: AcceptMixed = False,
    federation: Federation = None,
    workers: Workers = None,
    worker_timeout: WorkerTimeout = None,
    as_json: JsonOption = False,
) -> None:
    """Carry out all pending requests with a single rewind; under the policy `batch` only once they are due."""
    from fedforget.builtin import open_run  # noqa: PLC0415

    instead = f"carry them out with {hints.run_pending(run)}"
    opened = open_run(run, instead=instead, **workforce(federation, workers, worker_timeout))
    before = opened.status()
    if recompute_all:
        say_recomputed(before, as_json)
    with progress("forgetting", before.rounds_done) as advance:
        receipts = opened.run_pending(
            everything=everything,
            on_round=advance,
            eval_every=eval_every,
            recompute_all=recompute_all,
            accept_mixed=accept_mixed,
        )
    status = opened.status()
    facts: dict[str, Any] = {
        "receipts": [receipt.as_dict() for receipt in receipts],
        "recomputed_steps": sum({receipt.batch_id: receipt.recomputed_steps or 0 for receipt in receipts}.values()),
        "steps_one_by_one": sum(receipt.steps_alone or 0 for receipt in receipts),
        "waiting": len(status.open_requests),
        "model_digest": status.model_digest,
    }
    facts["steps_saved"] = facts["steps_one_by_one"] - facts["recomputed_steps"]

    def text() -> str:
        if not receipts:
            left = len(status.open_requests)
            return f"{left} pending, not due yet (--all carries them out now)" if left else "no pending requests"
        saved = (
            f"{facts['recomputed_steps']} steps recomputed instead of {facts['steps_one_by_one']} one by one: "
            f"{facts['steps_saved']} saved"
        )
        return f"{table(_HEADER, [_row(receipt) for receipt in receipts])}\n\n{saved}"

    emit(facts, as_json, text)


@app.command()
def cancel(
    run: RunPath,
    request: Annotated[str, typer.Argument(help="The id of a pending request.")],
    basis: BasisOption = "unknown",
    as_json: JsonOption = False,
) -> None:
    """Cancel a pending request."""
    from fedforget.session import deferral  # noqa: PLC0415

    receipt = deferral.cancel(run, request, basis)
    emit({"receipt": receipt.as_dict()}, as_json, lambda: f"{receipt.id} is cancelled")


@app.command()
def policy(
    run: RunPath,
    name: Annotated[str | None, typer.Argument(help="immediate, or batch.", show_default="only show it")] = None,
    window: Annotated[float | None, typer.Option(help="Days to collect requests for, with batch.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show or set when requests are carried out: immediately, or collected for a window and carried out together."""
    from fedforget.session import deferral  # noqa: PLC0415
    from fedforget.store import run_directory  # noqa: PLC0415

    if name is not None:
        deferral.set_policy(run, Policy.of_days(name, window))
    elif window is not None:
        raise InvalidInput("a window is for a policy", hint=f"give its name: {BATCH}")
    with run_directory.reading(run, only_idle=False) as opened:
        chosen = opened.record.policy
    days = chosen.window / timedelta(days=1)
    facts = {"policy": chosen.name, "window_days": days}
    emit(facts, as_json, lambda: f"{chosen.name}, window of {days:g} days" if chosen.collects else chosen.name)


@app.command()
def add(
    run: RunPath,
    file: Annotated[Path, typer.Option("--from", help="Samples and clients to add: lines like those of --batch.")],
    returning: Annotated[bool, typer.Option("--returning", help="Also add data that were erased before.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="The run's seed, for the seeds of new clients.", show_default="from the system")
    ] = None,
    basis: BasisOption = "unknown",
    eval_every: EvalEvery = None,
    recompute_all: RecomputeAll = False,
    accept_mixed: AcceptMixed = False,
    federation: Federation = None,
    workers: Workers = None,
    worker_timeout: WorkerTimeout = None,
    as_json: JsonOption = False,
) -> None:
    """Add samples and clients of the dataset, exactly: as if they had been there from the beginning."""
    from fedforget.builtin import open_run  # noqa: PLC0415

    targets = _from_file(file)
    opened = open_run(run, all_data=True, **workforce(federation, workers, worker_timeout))
    before = opened.status()
    if recompute_all:
        say_recomputed(before, as_json)
    with progress("learning", before.rounds_done) as advance:
        status = opened.add(
            targets, returning=returning, seed=seed, basis=basis, on_round=advance, eval_every=eval_every,
            recompute_all=recompute_all, accept_mixed=accept_mixed,
        )  # fmt: skip
    facts = {key: getattr(status, key) for key in ("run", "rounds_done", "clients", "samples", "model_digest")}
    emit(facts, as_json, lambda: pairs(facts))


@app.command("forget-record")
def forget_record(
    run: RunPath,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. There is no way back.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Destroy the key of the record: afterwards no request can be linked to a client or sample."""
    from fedforget.session import deferral  # noqa: PLC0415

    if not yes:
        raise InvalidInput(
            "a repeated request for erased data will no longer find its receipt, and this cannot be undone",
            hint="add --yes if that is what you want",
        )
    deferral.forget_record(run)
    emit({"record_forgotten": True}, as_json, lambda: "the record's key is destroyed")
