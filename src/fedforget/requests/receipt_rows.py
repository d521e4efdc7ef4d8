"""Receipts as the record has them: the rows of requests with their batches, and the times of their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedforget.disk.database import Database
from fedforget.requests.chain import EventChain, about
from fedforget.requests.lifecycle import Receipt, Stage, covered_by_guarantee
from fedforget.requests.selection import Selection
from fedforget.requests.vault import MODEL, Vault

_SHOWN = (
    "id", "batch_id", "level", "basis", "state", "received", "deadline", "reason", "first_changed_step",
    "recomputed_steps", "steps_alone", "guarantee",
)  # fmt: skip
_STATE = "coalesce(intents.stage, requests.state)"  # while a batch is at work, its stage is the state
_ROWS = (
    "SELECT id, requests.batch_id, level, basis, coalesce(intents.stage, requests.state), received, deadline, reason, "
    "first_changed_step, recomputed_steps, steps_alone, guarantee, model_of, number "
    "FROM requests LEFT JOIN batches USING (batch_id) LEFT JOIN intents USING (batch_id)"
)


@dataclass(slots=True)
class _Times:
    """When a request or a batch came to its stages, and whether several environments computed its rounds."""

    times: dict[str, str] = field(default_factory=dict)
    mixed: bool | None = None


_NO_TIMES = _Times()


class ReceiptRows:
    """The table of requests as receipts. They name no targets: the record keeps no ids."""

    def __init__(self, database: Database, chain: EventChain, vault: Vault) -> None:
        self._database, self._chain, self._vault = database, chain, vault

    def of(self, identifiers: Sequence[str]) -> list[Receipt]:
        """Return the receipts of these requests, without those that do not exist."""
        return self._read(self._database.rows_in(_ROWS, "id", identifiers))

    def chosen(self, selection: Selection) -> list[Receipt]:
        """Return the receipts of a selection, in the order of receipt."""
        where, values = selection.condition(_STATE)
        rows = self._database.rows(f"{_ROWS} {where}", values)
        return self._read(sorted(rows, key=lambda row: row[-1]))

    def counts(self) -> dict[str, int]:
        """Return how many requests are in each state."""
        found = dict(self._database.rows("SELECT state, count(*) FROM requests GROUP BY state"))
        for stage, count in self._database.rows(
            "SELECT stage, count(*) FROM intents JOIN requests USING (batch_id) WHERE stage <> ? GROUP BY stage",
            (Stage.ACCEPTED,),
        ):
            found[stage] = found.get(stage, 0) + count
            found[Stage.ACCEPTED] = found.get(Stage.ACCEPTED, 0) - count
        return {state: count for state, count in found.items() if count}

    def _read(self, rows: Sequence[tuple[Any, ...]]) -> list[Receipt]:
        batches = sorted({batch for _, batch, *_ in rows if batch is not None})
        own, shared = self._times([row[0] for row in rows]), self._times(batches)
        models = {name: self._vault.text(MODEL, name) for name in {row[-2] for row in rows} if name is not None}
        receipts = []
        for *values, model_of, _ in rows:
            identifier, batch = values[0], values[1]
            outcome = shared.get(batch, _NO_TIMES)
            receipts.append(
                Receipt(
                    client=None,
                    sample=None,
                    times={**own.get(identifier, _NO_TIMES).times, **outcome.times},
                    guarantee_covers=covered_by_guarantee(outcome.mixed),
                    model_digest=models.get(model_of),
                    **dict(zip(_SHOWN, values, strict=True)),
                )
            )
        return receipts

    def _times(self, names: Sequence[str]) -> dict[str, _Times]:
        """Return when each of these requests or batches came to its stages."""
        found: dict[str, _Times] = {}
        for event in self._chain.about(names):
            if event.kind in list(Stage):
                told = found.setdefault(about(event.body) or "", _Times())
                told.times[event.kind] = str(event.body.get("received", event.time))
                if event.kind == Stage.COMPLETED:
                    told.mixed = event.body.get("mixed_environments")
        return found
