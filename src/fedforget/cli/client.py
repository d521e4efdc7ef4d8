"""The commands of one client of a deployment: ``client init``, ``client forget``, ``client sync`` and others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedforget.algorithm.ids import Id, canonical_id
from fedforget.cli.app import app
from fedforget.cli.client_data import ClientDataOptions
from fedforget.cli.option_groups import grouped
from fedforget.cli.output import Output, pairs, table
from fedforget.client_side.identity import Identity
from fedforget.disk.files import require_place, write_durably
from fedforget.errors import InvalidInput, escaped, shown
from fedforget.requests.lifecycle import Basis, Receipt, basis_of

if TYPE_CHECKING:
    from fedforget.client_side.client_state import ClientState, ClientStatus, Synchronised

client = typer.Typer(help="One client of a deployment, on its own machine.", no_args_is_help=True)
app.add_typer(client, name="client")

StateDir = Annotated[Path, typer.Option("--state-dir", help="The client's state directory.")]
BasisOption = Annotated[str, typer.Option(help="exogenous (no draws or model seen), model-informed, or unknown.")]
DeadlineOption = Annotated[
    str | None, typer.Option(help="The deadline: a date or a time.", show_default="one month from now")
]
KeyOption = Annotated[
    str | None, typer.Option(help="Your own name for this request: the same key again is the same request.")
]
_LATER = "nothing is forgotten yet: the server carries the request out at the next contacts"


@client.command()
@grouped
def init(
    state_dir: StateDir,
    client: Annotated[str, typer.Option(help="The client's id in the run.")],
    seed: Annotated[
        str | None, typer.Option(help="Derive the client's secrets from this.", show_default="from the system")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the enrolment file for the server.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Read the samples of a client anew that has trained nothing yet.")
    ] = False,
    *,
    source: ClientDataOptions,
    output: Output,
) -> None:
    """Create the state directory of a client: its seed, its keys, and the ids of its samples."""
    who = canonical_id(client)
    if again:
        state = _begun_again(state_dir, who, seed, source)
    else:
        from fedforget.client_side.client_state import ClientState  # noqa: PLC0415 (few commands need it)

        samples, noted = source.chosen(who)
        state = ClientState.init(state_dir, who, samples, seed=seed, dataset=noted)
    place = _write_enrolment(state, out)
    facts = _facts(state.status()) | {"enrolment": place}
    output.emit(facts, lambda: pairs(facts) + "\n\nkeep a backup of this directory: a lost seed cannot be recovered")


def _begun_again(state_dir: Path, who: Id, seed: str | None, source: ClientDataOptions) -> ClientState:
    state = _state_in(state_dir)
    if state.client != who or seed is not None:
        raise InvalidInput(
            f"{state_dir} is that of client {shown(state.client)}, which keeps its id and its seed",
            hint="name this client, and leave out --seed",
        )
    if source.data is None:
        state.begin_again(source.again(who, Identity.read(state.path).dataset, state.path))
    else:
        samples, noted = source.chosen(who)
        state.begin_again(samples, dataset=noted)
    return state


@client.command()
@grouped
def enrolment(
    state_dir: StateDir,
    out: Annotated[Path, typer.Option(help="The enrolment file for the server.")],
    *,
    output: Output,
) -> None:
    """Write the enrolment file again: id, commitment, root and public key, nothing secret."""
    state = _state_in(state_dir)
    facts = {"client": state.client, "enrolment": _write_enrolment(state, out)}
    output.emit(facts, lambda: pairs(facts))


def _state_in(directory: Path) -> ClientState:
    from fedforget.client_side.client_state import ClientState  # noqa: PLC0415 (no other command needs it)

    return ClientState(directory)


def _write_enrolment(state: ClientState, out: Path | None) -> str | None:
    if out is None:
        return None
    place = require_place(out, outside=state.path)
    write_durably(place, state.enrolment())
    return str(place)


def _facts(status: ClientStatus) -> dict[str, Any]:
    return asdict(status) | {"open_requests": [each.as_dict() for each in status.open_requests]}


@client.command()
@grouped
def status(state_dir: StateDir, *, output: Output) -> None:
    """Show the status of a client. The counts are never sent to the server."""
    found = _state_in(state_dir).status()
    facts, waiting = _facts(found), found.open_requests

    def text() -> str:
        counted = pairs({**facts, "open_requests": len(waiting)})
        return f"{counted}\n\n{_requests(waiting)}" if waiting else counted

    output.emit(facts, text)


@client.command()
@grouped
def samples(
    state_dir: StateDir,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.", show_default="all")] = None,
    *,
    output: Output,
) -> None:
    """List the ids of a client's samples. They stay here: the server does not learn them."""
    state = _state_in(state_dir)
    ids = state.samples()
    shown_ids = ids if limit is None else ids[:limit]
    left = len(ids) - len(shown_ids)
    facts = {"client": state.client, "samples": len(ids), "ids": list(shown_ids)}
    output.emit(facts, lambda: "\n".join(escaped(str(each)) for each in shown_ids))
    if left:
        output.say(f"{left} more; --limit says how many are listed")


@client.command("forget")
@grouped
def forget_samples(
    state_dir: StateDir,
    sample: Annotated[list[str], typer.Option(help="A sample to forget; may be given several times.")],
    basis: BasisOption = Basis.UNKNOWN,
    deadline: DeadlineOption = None,
    idempotency_key: KeyOption = None,
    *,
    output: Output,
) -> None:
    """Forget samples of this client. The server learns the first changed round, and never which samples."""
    _show(
        _state_in(state_dir).forget(sample, basis=basis_of(basis), deadline=deadline, idempotency_key=idempotency_key),
        output,
    )


@client.command()
@grouped
def leave(
    state_dir: StateDir,
    basis: BasisOption = Basis.UNKNOWN,
    deadline: DeadlineOption = None,
    idempotency_key: KeyOption = None,
    *,
    output: Output,
) -> None:
    """Forget the whole client."""
    state = _state_in(state_dir)
    _show(state.leave(basis=basis_of(basis), deadline=deadline, idempotency_key=idempotency_key), output)


@client.command()
@grouped
def sync(
    state_dir: StateDir,
    confirm: Annotated[int | None, typer.Option(help="Number of samples to erase, if more than 1 %.")] = None,
    returning: Annotated[bool, typer.Option("--returning", help="Also add samples that were erased before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only compare.")] = False,
    basis: BasisOption = Basis.UNKNOWN,
    deadline: DeadlineOption = None,
    idempotency_key: KeyOption = None,
    *,
    source: ClientDataOptions,
    output: Output,
) -> None:
    """Compare the dataset with the recorded samples: forget missing and changed ones, add changed and new ones."""
    state = _state_in(state_dir)
    samples = source.again(state.client, Identity.read(state.path).dataset, state.path)
    done = state.sync(
        samples, basis=basis_of(basis), deadline=deadline, idempotency_key=idempotency_key,
        confirm=confirm, returning=returning, dry_run=dry_run,
    )  # fmt: skip
    facts = _found(done) | {"dry_run": dry_run, "receipts": [each.as_dict() for each in done.receipts]}

    def text() -> str:
        counts = {name: len(facts[name]) for name in ("vanished", "changed", "new", "returning")}
        waits = any(each.is_open for each in done.receipts) or counts["new"]
        note = "nothing was changed" if dry_run else _LATER if waits else "nothing to do"
        back = "\nthe data hold samples that were erased before; --returning adds them" if counts["returning"] else ""
        made = f"{_requests(done.receipts)}\n\n" if done.receipts else ""
        return f"{pairs(counts)}\n\n{made}{note}{back}"

    output.emit(facts, text)


def _found(done: Synchronised) -> dict[str, Any]:
    found = done.found
    return {name: list(getattr(found, name)) for name in ("vanished", "changed", "new", "returning")} | {"of": found.of}


@client.command()
@grouped
def receipt(
    state_dir: StateDir,
    request: Annotated[str | None, typer.Argument(help="The id of a request.", show_default="list all")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the signed receipt to this file.")] = None,
    opening: Annotated[
        Path | None,
        typer.Option(help="Write an opening for an auditor of draws. It reveals the seed and all ids."),
    ] = None,
    *,
    output: Output,
) -> None:
    """Print the signed receipt of a request of this client, or list its requests."""
    state = _state_in(state_dir)
    if opening is not None:
        place = require_place(opening, outside=state.path)
        write_durably(place, state.opening().encode(), mode=0o600)
        output.warn(f"{place} reveals the seed and every sample id of this client: give it to the auditor only")
    if request is None:
        if opening is None or output.as_json:
            _show(state.receipts(), output)
        return
    signed = state.signed_receipt(request)
    if out is not None:
        write_durably(require_place(out, outside=state.path), json.dumps(signed, indent=2).encode() + b"\n")
    output.emit(signed, lambda: json.dumps(signed, indent=2))


def _show(receipts: Sequence[Receipt], output: Output) -> None:
    waiting = any(each.is_open for each in receipts)

    def text() -> str:
        return f"{_requests(receipts)}\n\n{_LATER}" if waiting else _requests(receipts)

    output.emit({"receipts": [each.as_dict() for each in receipts]}, text)


def _requests(receipts: Sequence[Receipt]) -> str:
    rows = [(each.id, each.level, each.sample, each.state, (each.deadline or "")[:10]) for each in receipts]
    return table(("request", "level", "sample", "state", "deadline"), rows)
