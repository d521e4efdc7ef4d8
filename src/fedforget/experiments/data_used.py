"""Which data the experiments read: the published ones, unless the caller accepts others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fedforget.data.check import doubt_about
from fedforget.data.places import find
from fedforget.data.registry import dataset_of
from fedforget.data.source import Source
from fedforget.errors import DataChanged, DataMissing, InvalidInput
from fedforget.experiments.cells import Choice
from fedforget.experiments.presets import PRESETS
from fedforget.experiments.rows import SMOKE, Row

_DATASETS, _PRINTED, _NATURAL = "datasets", "printed", "natural"
_DRAWN = ("efficiency", "requests")  # experiments that read no data, but for natural sizes


def checksums_of(
    needed: Collection[str], optional: Collection[str], choice: Choice, say: Callable[[str], None]
) -> dict[str, str]:
    """The checksum of each dataset; of the ``optional`` ones only if they are here.

    Raises DataChanged for data that are not the published ones. With ``accept_data``, and at the scale ``smoke``, it
    only says so.
    """
    found = {}
    for name in sorted({*needed, *optional}):
        try:
            source = find(dataset_of(name), choice.data_dir, online=name in needed)
        except DataMissing:
            if name in needed:
                raise
            continue
        found[name] = source.checksum()
        doubt = doubt_about(name, found[name], source.which, source.place)
        if doubt is None:
            continue
        if choice.scale != SMOKE and not choice.accept_data:
            raise DataChanged(
                doubt, hint="get the published files; or give --accept-data, and an --out of its own, for other data"
            )
        say(f"not the paper's data: {doubt}")
    return found


def require_unchanged(source: Source, choice: Choice) -> None:
    """Refuse data that have changed since the command began."""
    known = choice.checksums.get(source.name)
    if known is not None and source.checksum() != known:
        raise DataChanged(f"{source.place} changed during the experiment", hint="start the command again")


def reads_data(row: Row) -> bool:
    """Whether a row was computed from the files of a dataset."""
    if row["experiment"] == _DATASETS:
        return bool(row["kind"] != _PRINTED)
    return row["dataset"] in PRESETS and (row["experiment"] not in _DRAWN or row["kind"] == _NATURAL)


def is_of_published_data(row: Row) -> bool:
    """Whether a row's data, if it has any, are the published ones. Rows of the first version do not say: they are."""
    if row["data"] is None or row["dataset"] not in PRESETS:
        return True
    return row["data"] in dataset_of(PRESETS[row["dataset"]].data).checksums.values()


def require_one_kind(rows: Sequence[Row], choice: Choice, path: Path) -> None:
    """Refuse to add rows of other data to those of a results file."""
    for row in rows:
        now = choice.checksums.get(PRESETS[row["dataset"]].data) if reads_data(row) else None
        if now is None or row["data"] == now or (row["data"] is None and is_of_published_data({**row, "data": now})):
            continue
        raise InvalidInput(
            f"{path} has results on other data of {row['dataset']} (checksum {row['data'] or 'of the published ones'})",
            hint="give another --out",
        )
