"""Start a session for a command: engine, progress and options, on a run that the command has opened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fedforget.cli.options import RoundsOptions
from fedforget.cli.output import Output
from fedforget.session.status import status_of
from fedforget.store.run_directory import OpenRun

if TYPE_CHECKING:
    from fedforget.session.session import Session


@contextlib.contextmanager
def session_on(
    run: OpenRun,
    title: str,
    how: RoundsOptions,
    output: Output,
    *,
    goal: int | None = None,
    instead: Callable[[], str] | None = None,
    all_data: bool = False,
    data_checked: bool = False,
) -> Iterator[Session]:
    """Start a session with progress, from the plan of the run and the built-in data alone.

    ``goal``: the last round that is computed (None: the present one). ``instead``: makes the hint for a run whose model
    or data are the user's own.
    """
    from fedforget.builtin import engine_of  # noqa: PLC0415 (torch)
    from fedforget.session.session import Session  # noqa: PLC0415
    from fedforget.session.work import RoundOptions  # noqa: PLC0415

    engine = engine_of(run, how.workforce(), all_data=all_data, instead=instead, data_dir=how.data_dir)
    if how.recompute_all and (done := status_of(run)).rounds_done:
        output.announce(f"recomputing all {done.rounds_done} rounds ({done.steps_done} steps)")
    rounds_done = run.server.rounds_done
    start = 0 if goal is None else rounds_done
    with output.progress(title, rounds_done if goal is None else goal, start=start) as advance:
        options = RoundOptions.of(
            advance, how.eval_every, recompute_all=how.recompute_all, accept_mixed=how.accept_mixed
        )
        with Session.on(run, engine, options, data_checked=data_checked) as session:
            yield session
