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
from fedforget.client_side.identity import Settings
from fedforget.client_side.recorded_samples import recorded_samples
from fedforget.data.federations import DataChoice, chosen
from fedforget.data.one_client import function_noted, samples_of, samples_of_function
from fedforget.errors import InvalidInput

_PARTITION_SEED = 1  # every client must partition a named dataset in the same way
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
    clients: Annotated[int | None, typer.Option(help="Number of clients of a named dataset.")] = None
    partition: Annotated[str | None, typer.Option(help="Partition of a named dataset.")] = None
    partition_seed: Annotated[
        str | None, typer.Option(help="Seed of the partition, the same at every client.", show_default="1")
    ] = None

    def chosen(self, client: Id) -> tuple[Any, Settings]:
        """Return a client's samples, and the settings with which ``client.toml`` records their source."""
        if self.data is None:
            raise InvalidInput("--data is missing", hint=_GIVE)
        if ":" in self.data:
            here = Path.cwd()
            return samples_of_function(self.data, client, here), function_noted(self.data, here)
        seed = SeedSource.of_person(self.partition_seed or _PARTITION_SEED).partition()
        federation = chosen(DataChoice(self.data, self.clients, self.partition, None, self.data_dir), seed)
        return samples_of(federation, client), federation.settings()

    def again(self, client: Id, noted: Mapping[str, Any], state_dir: Path) -> Any:
        """Return a client's samples from the source that the options name, else from the recorded one."""
        if self.data is not None:
            return self.chosen(client)[0]
        return recorded_samples(noted, client, state_dir, data_dir=self.data_dir, hint=_GIVE)
