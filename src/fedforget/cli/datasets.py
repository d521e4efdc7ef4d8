"""The commands ``data list`` and ``data check``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from fedforget.cli.app import app
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import DataDir
from fedforget.cli.output import Output, pairs, table
from fedforget.data.check import DataCheck, check, is_found
from fedforget.data.registry import DATASETS, DIGITS, DIRICHLET, EQUAL
from fedforget.errors import DataDamaged, DataMissing

data = typer.Typer(help="List and check datasets.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("list")
@grouped
def list_datasets(data_dir: DataDir = None, *, output: Output) -> None:
    """List the datasets: how they can be partitioned, their names on the Hugging Face hub, and where they are."""
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "partitions": [DIRICHLET, EQUAL] if name == DIGITS else list(DATASETS[name].partitions),
            "model": "mlp" if name == DIGITS else DATASETS[name].models[0]["name"],
            "hub": None if name == DIGITS else DATASETS[name].hub_id,
            "place": _place(name, data_dir),
        }
        for name in (DIGITS, *DATASETS)
    ]

    def text() -> str:
        shown = [(r["name"], ", ".join(r["partitions"]), r["model"], r["hub"], r["place"] or "not found") for r in rows]
        return table(("dataset", "partitions", "model", "hub", "place"), shown)

    output.emit({"datasets": rows}, text)


def _place(name: str, data_dir: DataDir) -> str | None:
    try:
        return is_found(name, data_dir)
    except DataDamaged as error:
        return error.message


@data.command("check")
@grouped
def check_dataset(
    name: Annotated[str, typer.Argument(help="The dataset.")],
    data_dir: DataDir = None,
    *,
    output: Output,
) -> None:
    """Read all files of a dataset, count the samples, and compare with the known checksum."""
    try:
        found = check(name, data_dir)
    except (DataMissing, DataDamaged) as error:
        if output.as_json:
            damaged = isinstance(error, DataDamaged)
            output.emit(asdict(DataCheck(name, found=damaged, checksum_ok=False if damaged else None)), str)
        raise
    output.emit(asdict(found), lambda: pairs(asdict(found)))
    if found.checksum_ok is False:
        raise DataDamaged(
            f"the {found.which} of {name} in {found.place} does not have the known checksum: "
            f"its own is {found.checksum}",
            hint="get the files again; a subset of your own has no known checksum",
        )
