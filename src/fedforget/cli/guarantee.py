"""Whether a request without a basis lowers the guarantee, for the warning of ``forget``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedforget.requests.lifecycle import Basis, Receipt

LAW_LOST = (
    "without --basis the guarantee drops to `path`, for this receipt and later ones; to avoid it, give --basis "
    "exogenous if the choice did not depend on draws or model, or draw new seeds afterwards (--new-seed)"
)


def has_law(run: Path) -> bool:
    """Return whether receipts of this run can currently guarantee equality in law."""
    from fedforget.store import run_directory  # noqa: PLC0415

    with run_directory.reading(run, only_idle=False) as opened:
        return opened.server.seed_origin == "system" and not opened.record.book.tainted


def costs_the_law(run: Path, receipts: Sequence[Receipt]) -> bool:
    """Return whether these requests have tainted the seeds, or will when they are carried out."""
    return not has_law(run) or any(r.is_open and r.basis != Basis.EXOGENOUS for r in receipts)
