"""The samples of a client from the source that its state directory records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.client_side.identity import CLIENT
from fedforget.data.one_client import is_of_function, samples_recorded
from fedforget.disk.door import Door
from fedforget.disk.seen import is_only_ours
from fedforget.errors import InvalidInput


def recorded_samples(
    noted: Mapping[str, Any], client: Id, state_dir: Path, *, data_dir: Path | None = None, hint: str
) -> Any:
    """Return a client's samples from the recorded source.

    A function of the user is called only if no other account can have named it: the directory chooses what is run.
    """
    if is_of_function(noted) and not is_only_ours(Door(state_dir), CLIENT):
        raise InvalidInput(
            f"another account owns or may write {state_dir / CLIENT}, so the function that it names is not called",
            hint="give --data MODULE:FUNCTION, or make the file yours alone (chown, chmod 600)",
        )
    return samples_recorded(noted, client, state_dir, data_dir=data_dir, hint=hint)
