"""The law of each measured time: rows of the first version lack a part of it, which theory gives back."""

from __future__ import annotations

from collections.abc import Sequence

from fedforget.experiments.family import law_of_time
from fedforget.experiments.presets import PRESETS
from fedforget.experiments.rows import Row
from fedforget.planner.costs import forgetting_cost
from fedforget.planner.round_law import Withdrawal

_ALWAYS = ("efficiency", "requests", "tradeoff")  # every row of FATS is a measured time
_KINDS = {"performance": "summary", "streaming": "arrival 1"}
_LAW = ("count", "variance", "largest", "theory_steps", "steps")


def has_law(row: Row) -> bool:
    """Whether a row is a measured time of FATS with an exact law."""
    if row["method"] != "FATS":
        return False
    return row["experiment"] in _ALWAYS or (row["experiment"] in _KINDS and _KINDS[row["experiment"]] == row["kind"])


def with_laws(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The measured times with their laws, and the cells whose laws can't be had: these are to be computed again."""
    complete, missing = [], dict[str, None]()
    came = {_life(row): row["rounds_computed"] for row in reversed(rows) if row["kind"] == "removed"}
    for row in rows:
        if not has_law(row):
            continue
        found = row if _is_complete(row) else _completed(row, came.get(_life(row)))
        if found is None:
            missing[row["cell"]] = None
        else:
            complete.append(found)
    return complete, list(missing)


def _is_complete(row: Row) -> bool:
    return all(row[name] is not None for name in _LAW)


def _life(row: Row) -> tuple[object, ...]:
    return row["cell"], row["level"]


def _completed(row: Row, rounds: int | None) -> Row | None:
    """The law of requests at once of different clients of one size; None where sizes differ or are not known."""
    if row["experiment"] != "performance" or rounds is None or row["steps"] is None or not _equal_sizes(row):
        return None
    world = {"clients": row["M"], "clients_per_round": row["K"], "batch_size": row["b"], "local_steps": row["E"]}
    withdrawn = [Withdrawal(int(row["N"]), None if row["level"] == "client" else 1)] * row["requests"]
    change = float(forgetting_cost(withdrawn, rounds=1, **world).probability)
    mean, variance = law_of_time(change, rounds, row["E"])
    return {**row, "theory_steps": mean, "variance": variance, "count": 1, "largest": rounds * row["E"]}


def _equal_sizes(row: Row) -> bool:
    preset = PRESETS.get(row["dataset"])
    return preset is not None and preset.partition == "equal"
