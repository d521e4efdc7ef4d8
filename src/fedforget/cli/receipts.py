"""The commands ``receipt show`` and ``receipt verify``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedforget.cli.app import app
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import EngineOptions
from fedforget.cli.output import Output, pairs, printed
from fedforget.errors import InvalidInput, ReceiptRefused
from fedforget.store import hints, run_directory

receipt = typer.Typer(help="Signed receipts: show one, or verify one.", no_args_is_help=True)
app.add_typer(receipt, name="receipt")
_SHOWN = (
    "guarantee", "guarantee_covers", "seeds_tainted", "seeds_tainted_now", "signature_ok", "run_ok",
    "rounds_replayed", "bitwise_equal",
)  # fmt: skip


@receipt.command()
@grouped
def show(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    request: Annotated[str, typer.Argument(help="The id of a request.")],
    public: Annotated[
        bool, typer.Option("--public", help="Omit whether anything was recomputed: the form for the data subject.")
    ] = False,
    new_key: Annotated[bool, typer.Option("--new-key", help="Replace a lost signing key.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write it to this file.", show_default="stdout")] = None,
    *,
    output: Output,
) -> None:
    """Write the signed receipt of a request: a DSSE envelope (Ed25519) around an in-toto statement."""
    from fedforget.disk.files import require_place, write_durably  # noqa: PLC0415
    from fedforget.evidence.receipts.check import taint_note  # noqa: PLC0415
    from fedforget.evidence.receipts.issue import issue  # noqa: PLC0415

    place = None if out is None else require_place(out, outside=run)
    issued = issue(run, request, public=public, new_key=new_key)
    envelope = json.dumps(issued.envelope, indent=2)
    if place is None:
        printed(envelope)
    else:
        write_durably(place, envelope.encode() + b"\n")
    if issued.seeds_tainted_now:
        output.say(f"note: {taint_note()}")


@receipt.command()
@grouped
def verify(
    file: Annotated[Path, typer.Argument(help="The receipt.")],
    key: Annotated[Path, typer.Option(help="The public key it was signed with (RUN/receipt-key.pub.pem).")],
    run: Annotated[Path | None, typer.Option(help="Also compare with this run, and replay.")] = None,
    sample_rounds: Annotated[
        int | None,
        typer.Option(help="Replay N random ones of the recomputed rounds.", show_default="all of them"),
    ] = None,
    *,
    how: EngineOptions,
    output: Output,
) -> None:
    """Check a receipt offline; with the run, also against its record, and by replaying the rounds it is about."""
    from fedforget.evidence.receipts.check import check_with_run, read_receipt  # noqa: PLC0415

    if sample_rounds is not None and (sample_rounds < 0 or run is None):
        raise InvalidInput("--sample-rounds needs --run and a number from 0", hint="give both")
    found = read_receipt(file, key)
    if run is not None:
        from fedforget.builtin import engine_of  # noqa: PLC0415 (torch)

        with run_directory.reading(run) as opened, output.progress("replaying", None) as advance:
            engine = engine_of(
                opened,
                how.workforce(),
                data_dir=how.data_dir,
                instead=lambda: f"use {hints.check_receipt(run)}",
            )
            check_with_run(found, opened, engine, sample_rounds, advance)
    facts = found.as_dict()
    about = found.statement["predicate"]["request"]
    shown = {
        "request": about.get("id"),
        "state": about.get("state"),
        **{name: facts[name] for name in _SHOWN},
    }
    note = "" if found.note is None else f"\nnote: {found.note}"
    output.emit(facts, lambda: pairs(shown) + note)
    if not found.ok:
        raise ReceiptRefused("; ".join(found.problems), hint="don't rely on this receipt, or on this run")
