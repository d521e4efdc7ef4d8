"""Start a session for a command: engine, progress and options, on a run that the command has opened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Protocol

from fedforget import builtin
from fedforget.algorithm.forget import Request
from fedforget.algorithm.seeds import SeedSource
from fedforget.builtin import require_built_in
from fedforget.cli.options import RoundsOptions
from fedforget.cli.output import Output
from fedforget.federation.traffic import Traffic
from fedforget.requests.lifecycle import Receipt, Submission
from fedforget.session.options import RoundOptions
from fedforget.session.session import Session
from fedforget.session.status import Status, status_of
from fedforget.store.run_directory import OpenRun


class Working(Protocol):
    """A session of a command: with clients on this machine, or on others."""

    @property
    def traffic(self) -> Traffic: ...

    def train(self, goal: int) -> Status: ...

    def forget(self, submission: Submission) -> list[Receipt]: ...

    def run_pending(self, *, everything: bool = False) -> list[Receipt]: ...

    def add(self, targets: Sequence[Request], *, returning: bool, seeds: SeedSource, basis: str) -> Status: ...


def traffic_of(session: Working, how: RoundsOptions) -> dict[str, int]:
    """Return the bytes up and down for the output; empty if no message leaves this machine's memory."""
    workforce = how.workforce()
    return asdict(session.traffic) if workforce.uses_nodes or workforce.superlink else {}


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
) -> Iterator[Working]:
    """Start a session with progress, from the plan of the run and the built-in data alone.

    ``goal``: the last round that is computed (None: the present one). ``instead``: makes the hint for a run whose model
    or data are the user's own.
    """
    require_built_in(run, instead)
    workforce = how.workforce()
    if run.is_remote or workforce.superlink is not None:
        run.require_reached(workforce.superlink)
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
        if workforce.superlink is not None:
            from fedforget.session.deployment import Deployment  # noqa: PLC0415 (only deployments need it)
            from fedforget.session.reaching import deployed_wire  # noqa: PLC0415

            output.announce("clients are reached by Flower, which takes a quarter of a minute to start")
            wire, engine = deployed_wire(workforce), partial(builtin.remote_engine_of, run, data_dir=how.data_dir)
            with Deployment.on(run, wire, engine, options) as deployment:
                yield deployment
            return
        with Session.on(run, make_engine, options, data_checked=data_checked) as session:
            yield session
