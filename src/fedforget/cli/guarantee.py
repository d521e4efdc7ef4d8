"""What a request without a basis costs, so that `forget` can say it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedforget.requests.lifecycle import Basis, Receipt

LAW_LOST = (
    "without --basis the guarantee drops to `path`, for this receipt and later ones; to avoid it say --basis exogenous "
    "if neither draws nor model were looked at, or draw new seeds afterwards (--new-seed)"
)


def has_law(run: Path) -> bool:
    """Whether receipts of this run can promise equality in law, as things stand."""
    from fedforget.store import run_directory  # noqa: PLC0415

    with run_directory.reading(run, settled=False) as opened:
        return opened.server.seed_origin == "system" and not opened.record.book.tainted


def costs_the_law(run: Path, receipts: Sequence[Receipt]) -> bool:
    """Whether these requests have tainted the seeds, or will when they are met."""
    return not has_law(run) or any(r.is_open and r.basis != Basis.EXOGENOUS for r in receipts)
