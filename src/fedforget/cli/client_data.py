"""The data of a client of a deployment: from a dataset that comes with FedForget, or from a function of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedforget.algorithm.ids import Id
from fedforget.algorithm.seeds import SeedSource
from fedforget.cli.options import DataDir
from fedforget.client_side import own_data
from fedforget.client_side.identity import Settings
from fedforget.data.federations import DataChoice, Federation, chosen, recorded
from fedforget.errors import InvalidInput, shown

_PARTITION_SEED = 1  # every client of a built-in dataset must cut it in the same way
_GIVE = "give --data NAME of a dataset, or --data MODULE:FUNCTION with a function that returns id → (x, y)"


@dataclass(frozen=True, slots=True)
class ClientDataOptions:
    """Where a client's samples come from."""

    data: Annotated[
        str | None,
        typer.Option(
            help="A dataset by name, or MODULE:FUNCTION; the function gets the client's id.", show_default="-"
        ),
    ] = None
    data_dir: DataDir = None
    clients: Annotated[int | None, typer.Option(help="Into how many clients a named dataset is cut.")] = None
    partition: Annotated[str | None, typer.Option(help="How a named dataset is cut.")] = None
    partition_seed: Annotated[
        str | None, typer.Option(help="The seed of the cut, the same at every client.", show_default="1")
    ] = None

    def chosen(self, client: Id) -> tuple[Any, Settings]:
        """Return a client's samples, and what ``client.toml`` notes of where they come from."""
        if self.data is None:
            raise InvalidInput("--data is missing", hint=_GIVE)
        if ":" in self.data:
            return own_data.samples_of(self.data, client), own_data.noted(self.data)
        seed = SeedSource.of_person(self.partition_seed or _PARTITION_SEED).partition()
        cut = chosen(DataChoice(self.data, self.clients, self.partition, None, self.data_dir), seed)
        return _samples(cut, client), cut.settings()

    def again(self, client: Id, noted: Mapping[str, Any], state_dir: Path) -> Any:
        """Return a client's samples from where it began with, or from where the options say."""
        if self.data is not None:
            return self.chosen(client)[0]
        if own_data.is_noted(noted):
            return own_data.noted_samples(noted, client)
        if "name" not in noted:
            raise InvalidInput(f"{state_dir} was made in Python, with samples of its own", hint=_GIVE)
        try:
            cut = recorded(noted, self.data_dir, state_dir)
        except (KeyError, ValueError, TypeError) as error:
            raise InvalidInput(f"{state_dir} names a dataset that cannot be read: {error}", hint=_GIVE) from error
        return _samples(cut, client)


def _samples(cut: Federation, client: Id) -> Any:
    owners = cut.owners()
    if client not in owners:
        raise InvalidInput(
            f"the dataset has no client {shown(client)}", hint="check --client, --clients and --partition"
        )
    samples = cut.data({client: owners[client]})[client]
    return {sample: samples.sample(sample) for sample in samples.ids}
