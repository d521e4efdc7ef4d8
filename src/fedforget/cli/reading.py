"""Read-only commands: ``status``, ``clients``, ``state`` and the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedforget.algorithm.forget import Request
from fedforget.cli.app import app
from fedforget.cli.guarantee import claim
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import RunPath
from fedforget.cli.output import Output, days_left, pairs, standing, table
from fedforget.errors import escaped
from fedforget.requests.lifecycle import Receipt
from fedforget.requests.selection import STATES, Selection
from fedforget.requests.targets import require_target

_LAST = 20  # requests that the status shows


@app.command()
@grouped
def status(
    run: RunPath,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 17 if a request is overdue or unfinished; for cron and monitors.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Show the progress of a run, its open requests and its last ones; `requests` lists all."""
    from fedforget.session.status import attention, status_of  # noqa: PLC0415
    from fedforget.store import run_directory  # noqa: PLC0415

    with run_directory.reading(run, only_idle=False) as opened:
        found = status_of(opened)
        receipts = [_without_target(receipt) for receipt in opened.record.book.chosen(Selection(limit=_LAST))]
    facts = asdict(found)

    def text() -> str:
        shown = standing({name: value for name, value in facts.items() if name != "accuracies"})
        if not receipts:
            return shown
        more = found.requests - len(receipts)
        left_out = f"\n\n{more} earlier ones: `fedforget requests {run}`" if more else ""
        return f"{shown}\n\n{_list(receipts)}{left_out}"

    output.emit({**facts, "receipts": receipts}, text)
    output.warn_of_clients(found.problems)
    if check and (problem := attention(run, found)) is not None:
        raise problem


def _list(receipts: Sequence[Mapping[str, Any]]) -> str:
    header = ("request", "level", "basis", "state", "received", "days left", "guarantee")
    rows = [
        (r["id"], *(r[name] for name in header[1:5]), days_left(r), claim(r["guarantee"], r["guarantee_covers"]))
        for r in receipts
    ]
    return table(header, rows)


@app.command(short_help="List the requests of a run.")
@grouped
def requests(
    run: RunPath,
    state: Annotated[
        list[str] | None,
        typer.Option(help=f"Only those in this state; may be given several times: {', '.join(STATES)}."),
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only those received since this day or time.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the last N.", show_default="all")] = None,
    *,
    output: Output,
) -> None:
    """List requests in the order of receipt, with their state. Requests in the inbox are not listed."""
    from fedforget.store import run_directory  # noqa: PLC0415

    selection = Selection.of(state or (), since, limit)
    with run_directory.reading(run, only_idle=False) as opened:
        found = [_without_target(receipt) for receipt in opened.record.book.chosen(selection)]
    output.emit({"receipts": found}, lambda: _list(found) if found else "no such requests")


def _without_target(receipt: Receipt) -> dict[str, Any]:
    return {name: value for name, value in receipt.as_dict().items() if name not in ("client", "sample")}


@app.command(short_help="List the clients of a run.")
@grouped
def clients(
    run: RunPath,
    client: Annotated[str | None, typer.Option(help="Show this client's sample ids.")] = None,
    *,
    output: Output,
) -> None:
    """The clients of a run and their sizes, or one client's sample ids."""
    from fedforget.store import run_directory  # noqa: PLC0415

    with run_directory.reading(run, only_idle=False) as opened:
        if client is None:
            sizes = {} if opened.is_remote else opened.clients.sizes()  # unknown for clients on other machines
            unknown = None if opened.is_remote else 0
            rows = [{"client": who, "samples": sizes.get(who, unknown)} for who in opened.server.roster]
            output.emit({"clients": rows}, lambda: table(("client", "samples"), [tuple(row.values()) for row in rows]))
            return
        target = Request(client)
        require_target(opened, target)
        ids = list(opened.clients.samples(target.client))
    facts = {"client": target.client, "samples": len(ids), "ids": ids}
    output.emit(facts, lambda: "\n".join(escaped(str(each)) for each in ids))


@app.command(short_help="Print the digest of a run's state.")
@grouped
def state(run: RunPath, output: Output) -> None:
    """The digest of the run's state: equal for a run that forgot and a run that never had the data."""
    from fedforget.store import run_directory  # noqa: PLC0415
    from fedforget.store.state_digest import state_digest  # noqa: PLC0415

    with run_directory.reading(run) as opened:
        digest = state_digest(opened)
    output.emit({"digest": digest}, lambda: digest)


@app.command(short_help="Write the current model to a file.")
@grouped
def export(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="The file: .safetensors, or any other suffix for a PyTorch state_dict.")],
    *,
    output: Output,
) -> None:
    """Write the current model as a plain PyTorch state_dict or as safetensors, and record the export."""
    from fedforget.session.exporting import export_run, is_safetensors  # noqa: PLC0415

    made = export_run(run, file)
    kind = "safetensors" if is_safetensors(file) else "PyTorch state_dict"
    facts = {"file": str(file), "format": kind, **asdict(made)}
    output.emit(facts, lambda: pairs(facts))
    if not made.noted:
        output.warn("the run cannot be written, so this export is not in its record: keep a note of it yourself")
