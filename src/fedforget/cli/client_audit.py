"""The command ``client audit``: what an auditor computes with the opening of a client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedforget.algorithm.ids import Id, canonical_id
from fedforget.cli.client import client
from fedforget.cli.option_groups import grouped
from fedforget.cli.output import Output, pairs
from fedforget.client_side.opening import OwnOpening
from fedforget.disk.door import read_named
from fedforget.errors import InvalidInput, shown
from fedforget.store.plan_file import PlanFile

_MOST = 2**26  # bytes of an opening


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
    is_under_root = who in found.contents or who in erased
    facts = {
        "client": found.client,
        "sample": who,
        "rounds": len(numbers),
        "under_root": is_under_root,
        "used": is_under_root and step is not None,
        "would_have_been_used": step is not None,
        "first_step": step,
    }
    note = "" if is_under_root else f"\n\n{_not_under_root(who, step)}"
    output.emit(facts, lambda: pairs(facts) + note)


def _not_under_root(sample: Id, step: int | None) -> str:
    would = "not have been used either" if step is None else f"have been used first in step {step}"
    return (
        f"sample {shown(sample)} is not under this root: as long as the client held these samples it was not used. "
        f"Had it been among them, it would {would}. If it was erased since, give the root of before and --content."
    )


def _read(path: Path) -> bytes:
    try:
        return read_named(path, _MOST)
    except ValueError as error:
        raise InvalidInput(f"cannot read {path}: {error}", hint="check the path") from error
