"""The commands of one client of a deployment: ``client init``, ``client forget``, ``client sync`` and others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedforget.algorithm.ids import canonical_id
from fedforget.cli.app import app
from fedforget.cli.client_data import ClientDataOptions
from fedforget.cli.option_groups import grouped
from fedforget.cli.output import Output, pairs, table
from fedforget.client_side.identity import Identity
from fedforget.disk.door import read_named
from fedforget.disk.files import require_place, write_durably
from fedforget.errors import InvalidInput
from fedforget.requests.lifecycle import Basis, Receipt, basis_of
from fedforget.store.plan_file import PlanFile

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
_MOST = 2**26  # bytes of an opening
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
    *,
    source: ClientDataOptions,
    output: Output,
) -> None:
    """Create the state directory of a client: its seed, its keys, and the ids of its samples."""
    who = canonical_id(client)
    samples, noted = source.chosen(who)
    from fedforget.client_side.client_state import ClientState  # noqa: PLC0415 (no other command needs it)

    state = ClientState.init(state_dir, who, samples, seed=seed, dataset=noted)
    place = _write_enrolment(state, out)
    facts = _facts(state.status()) | {"enrolment": place}
    output.emit(facts, lambda: pairs(facts) + "\n\nkeep a backup of this directory: a lost seed cannot be recovered")


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
        note = "nothing was changed" if dry_run else "nothing to do" if not any(counts.values()) else _LATER
        back = "\nthe data hold samples that were erased before; --returning adds them" if counts["returning"] else ""
        return f"{pairs(counts)}\n\n{note}{back}"

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


@client.command()
@grouped
def audit(
    opening: Annotated[Path, typer.Argument(help="The opening of the client.")],
    sample: Annotated[str, typer.Option(help="The sample whose first use is checked.")],
    commitment: Annotated[str, typer.Option(help="The client's commitment, from its enrolment or the roster.")],
    root: Annotated[str, typer.Option(help="The root of the client's samples, from a receipt or the roster.")],
    plan: Annotated[Path, typer.Option(help="The run's plan.toml.")],
    rounds: Annotated[str, typer.Option(help="The rounds that drew the client, as 1,4,9.")],
    content: Annotated[
        str | None, typer.Option(help="The digest of the sample's content, if the root is from before its erasure.")
    ] = None,
    *,
    output: Output,
) -> None:
    """Check with an opening when a sample was first used: derive the client's draws of its rounds again."""
    from fedforget.client_side.opening import OwnOpening  # noqa: PLC0415 (no other command needs it)

    found, who = OwnOpening.parsed(_read(opening)), canonical_id(sample)
    try:
        erased = {} if content is None else {who: bytes.fromhex(content)}
        told = bytes.fromhex(commitment), bytes.fromhex(root)
        numbers = [int(each) for each in rounds.split(",") if each]
    except ValueError as error:
        raise InvalidInput(
            f"a digest or a round cannot be read: {error}", hint="give digests in hexadecimal"
        ) from error
    found.require(*told, erased)
    file = PlanFile.parsed(plan.parent, _read(plan))
    step = found.first_use(file.plan, numbers, who)
    facts = {
        "client": found.client,
        "sample": who,
        "rounds": len(numbers),
        "first_step": step,
        "used": step is not None,
    }
    output.emit(facts, lambda: pairs(facts))


def _read(path: Path) -> bytes:
    try:
        return read_named(path, _MOST)
    except ValueError as error:
        raise InvalidInput(f"cannot read {path}: {error}", hint="check the path") from error


def _show(receipts: Sequence[Receipt], output: Output) -> None:
    waiting = any(each.is_open for each in receipts)

    def text() -> str:
        return f"{_requests(receipts)}\n\n{_LATER}" if waiting else _requests(receipts)

    output.emit({"receipts": [each.as_dict() for each in receipts]}, text)


def _requests(receipts: Sequence[Receipt]) -> str:
    rows = [(each.id, each.level, each.sample, each.state, (each.deadline or "")[:10]) for each in receipts]
    return table(("request", "level", "sample", "state", "deadline"), rows)
