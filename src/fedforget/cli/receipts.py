"""The commands ``receipt show``, ``receipt verify``, ``receipt link`` and ``receipt verify-series``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedforget.algorithm.forget import Request
from fedforget.cli.app import app
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import EngineOptions, RunPath
from fedforget.cli.output import Output, pairs, printed, table
from fedforget.errors import InvalidInput, ReceiptRefused
from fedforget.store import hints, run_directory

if TYPE_CHECKING:
    from fedforget.evidence.receipts.check import ReceiptCheck

receipt = typer.Typer(help="Signed receipts: show one, verify one, or verify a series.", no_args_is_help=True)
app.add_typer(receipt, name="receipt")
SUPERSEDED = (
    "later requests changed the data: this receipt holds no proof of absence; a receipt that was archived when the "
    "request was carried out holds one"
)
OPENING = "with this opening a reader can tell which client or sample the receipt is about"
_SHOWN = (
    "guarantee", "guarantee_covers", "seeds_tainted", "seeds_tainted_now", "signature_ok", "absence_shown",
    "presence_shown", "opened", "run_ok", "rounds_replayed", "bitwise_equal", "within_tolerance",
)  # fmt: skip


@receipt.command()
@grouped
def show(
    run: RunPath,
    request: Annotated[str, typer.Argument(help="The id of a request.")],
    public: Annotated[
        bool, typer.Option("--public", help="Public form for the data subject: omits whether anything was recomputed.")
    ] = False,
    new_key: Annotated[bool, typer.Option("--new-key", help="Replace a lost signing key.")] = False,
    opening: Annotated[
        str | None,
        typer.Option(
            help="Write the opening instead: id and salt of this client, or of --sample, for data subject or auditor."
        ),
    ] = None,
    sample: Annotated[str | None, typer.Option(help="With --opening: the sample that the request was for.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write it to this file.", show_default="stdout")] = None,
    *,
    output: Output,
) -> None:
    """Write the signed receipt of a request: a DSSE envelope (Ed25519) around an in-toto statement.

    It proves that the data are absent as long as no later request changes the data: archive it when it is issued.
    """
    from fedforget.disk.files import require_place  # noqa: PLC0415
    from fedforget.evidence.receipts.check import taint_note  # noqa: PLC0415
    from fedforget.evidence.receipts.issue import issue, open_target  # noqa: PLC0415

    if opening is not None and (public or new_key):
        raise InvalidInput("--opening writes no receipt", hint="leave out --public and --new-key")
    if opening is None and sample is not None:
        raise InvalidInput("--sample needs --opening", hint="name the client with --opening")
    place = None if out is None else require_place(out, outside=run)
    if opening is not None:
        _write(open_target(run, request, Request(opening, sample)).as_dict(), place)
        output.say(f"note: {OPENING}")
        return
    issued = issue(run, request, public=public, new_key=new_key)
    _write(issued.envelope, place)
    if issued.superseded:
        output.say(f"note: {SUPERSEDED}")
    if issued.seeds_tainted_now:
        output.say(f"note: {taint_note()}")


def _write(value: Mapping[str, Any], place: Path | None) -> None:
    from fedforget.disk.files import write_durably  # noqa: PLC0415

    text = json.dumps(value, indent=2)
    if place is None:
        printed(text)
    else:
        write_durably(place, text.encode() + b"\n")


@receipt.command()
@grouped
def verify(
    file: Annotated[Path, typer.Argument(help="The receipt.")],
    key: Annotated[Path, typer.Option(help="The public key it was signed with (RUN/receipt-key.pub.pem).")],
    opening: Annotated[Path | None, typer.Option(help="Its opening: check that the receipt is about this id.")] = None,
    run: Annotated[Path | None, typer.Option(help="Also compare with this run, and replay.")] = None,
    sample_rounds: Annotated[
        int | None,
        typer.Option(help="Replay N random ones of the recomputed rounds.", show_default="all of them"),
    ] = None,
    *,
    how: EngineOptions,
    output: Output,
) -> None:
    """Check a receipt and its proof of absence offline; with --run also against the record, and by replaying rounds."""
    from fedforget.evidence.receipts.check import read_receipt  # noqa: PLC0415

    if sample_rounds is not None and (sample_rounds < 0 or run is None):
        raise InvalidInput("--sample-rounds needs --run and a number from 0", hint="give both")
    found = read_receipt(file, key, opening)
    if run is not None:
        _compare_with_run(found, run, sample_rounds, how, output)
    facts = found.as_dict()
    about = found.statement["predicate"]["request"]
    shown = {
        "request": about.get("id"),
        "state": about.get("state"),
        **{name: facts[name] for name in _SHOWN},
    }
    notes = [f"note: {found.note}"] if found.note is not None else []
    notes += [f"not shown: {each}" for each in found.not_shown]
    output.emit(facts, lambda: "\n".join((pairs(shown), *notes)))
    if not found.ok:
        raise ReceiptRefused("; ".join(found.problems), hint="do not rely on this receipt, or on this run")


def _compare_with_run(
    found: ReceiptCheck, run: Path, sample_rounds: int | None, how: EngineOptions, output: Output
) -> None:
    from fedforget.builtin import engine_of  # noqa: PLC0415 (torch)
    from fedforget.evidence.receipts.compare import check_with_run  # noqa: PLC0415

    with run_directory.reading(run) as opened, output.progress("replaying", None) as advance:
        engine = engine_of(
            opened, how.workforce(), data_dir=how.data_dir, instead=lambda: f"use {hints.check_receipt(run)}"
        )
        check_with_run(found, opened, engine, sample_rounds, advance)


@receipt.command("verify-series")
@grouped
def verify_series(
    files: Annotated[list[Path], typer.Argument(help="Full receipts, in any order.")],
    key: Annotated[list[Path], typer.Option(help="A public key that they were signed with; may be repeated.")],
    links: Annotated[
        list[Path] | None, typer.Option(help="Output of `receipt link`, where receipts are missing in between.")
    ] = None,
    *,
    output: Output,
) -> None:
    """Check offline that archived receipts lie in one event chain, so that a rewritten record is detected."""
    from fedforget.evidence.receipts.series import check_series  # noqa: PLC0415

    found = check_series(files, key, links or [])
    rows = [(each["file"], each["request"], each["sequence"]) for each in found.receipts]
    said = [f"problem: {problem}" for problem in found.problems] or ["every receipt continues the one before it"]
    output.emit(found.as_dict(), lambda: "\n".join((table(("file", "request", "event"), rows), "", *said)))
    if not found.ok:
        raise ReceiptRefused(
            "; ".join(found.problems), hint="compare the receipts with the run: `receipt verify --run`"
        )


@receipt.command()
@grouped
def link(
    run: RunPath,
    files: Annotated[list[Path], typer.Argument(help="Full receipts of the run, in any order.")],
    key: Annotated[list[Path], typer.Option(help="A public key that they were signed with; may be repeated.")],
    out: Annotated[Path | None, typer.Option(help="Write it to this file.", show_default="stdout")] = None,
    *,
    output: Output,
) -> None:
    """Write proofs that each of these receipts follows the one before it, for `receipt verify-series`."""
    from fedforget.disk.files import require_place  # noqa: PLC0415
    from fedforget.evidence.receipts.series import make_links, read_place  # noqa: PLC0415

    place = None if out is None else require_place(out, outside=run)
    places = [read_place(file, key) for file in files]
    with run_directory.reading(run) as opened:
        made = make_links(opened, places)
    _write(made, place)
    output.say(f"{len(made['links'])} links")
