"""Start a session for a command: engine, progress and options, on a run that the command has opened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from fedforget import builtin
from fedforget.builtin import require_built_in
from fedforget.cli.options import RoundsOptions
from fedforget.cli.output import Output
from fedforget.session.options import RoundOptions
from fedforget.session.session import Session
from fedforget.session.status import status_of
from fedforget.store.run_directory import OpenRun


def traffic_of(session: Session, how: RoundsOptions) -> dict[str, int]:
    """Return the bytes up and down as the output shows them; nothing where no message leaves this machine's memory."""
    return asdict(session.traffic) if how.workforce().uses_nodes else {}


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
    require_built_in(run, instead)
    workforce = how.workforce()
    if workforce.uses_nodes:
        output.announce("clients are trained by a Flower simulation, which takes half a minute to start")
    make_engine = partial(builtin.engine_of, run, workforce, all_data=all_data, data_dir=how.data_dir)
    if how.recompute_all and (done := status_of(run)).rounds_done:
        output.announce(f"recomputing all {done.rounds_done} rounds ({done.steps_done} steps)")
    rounds_done = run.server.rounds_done
    start = 0 if goal is None else rounds_done
    with output.progress(title, rounds_done if goal is None else goal, start=start) as advance:
        options = RoundOptions.of(
            advance, how.eval_every, recompute_all=how.recompute_all, accept_mixed=how.accept_mixed
        )
        with Session.on(run, make_engine, options, data_checked=data_checked) as session:
            yield session
