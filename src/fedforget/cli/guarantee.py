"""The guarantee in tables, and whether a request without a basis lowers it, for the warning of some commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedforget.requests.lifecycle import Basis, Receipt

if TYPE_CHECKING:
    from fedforget.store.run_directory import OpenRun

LAW_LOST = (
    "without --basis the guarantee drops to `path`, from now on; to avoid it, give --basis "
    "exogenous if the choice did not depend on draws or model, or draw new seeds afterwards (--new-seed)"
)


def claim(guarantee: str | None, covers: str | None) -> str | None:
    """Return a guarantee as text, with its limit if it does not cover the bytes."""
    return f"{guarantee} (draws only)" if covers == "draws" else guarantee


def has_law(run: OpenRun) -> bool:
    """Return whether receipts of this run can currently guarantee equality in law."""
    return run.server.seed_origin == "system" and not run.record.book.tainted


def costs_the_law(run: OpenRun, receipts: Sequence[Receipt]) -> bool:
    """Return whether these requests have tainted the seeds, or will when they are carried out."""
    return not has_law(run) or any(r.is_open and r.basis != Basis.EXOGENOUS for r in receipts)
