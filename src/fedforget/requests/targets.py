"""What requests are about: which are new, what went before and under which receipt, and what they would cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.errors import UnknownTarget, shown
from fedforget.planner.costs import ForgettingCost, Loss, forgetting_cost
from fedforget.store.run_directory import OpenRun


def preview(run: OpenRun, requests: Sequence[Request]) -> ForgettingCost[float]:
    """The a-priori cost of requests on an open run."""
    pending = still_there(run, requests)
    sizes, lost = run.clients.sizes(), dict[Id, int | None]()
    for request in pending:
        before = lost.get(request.client, 0)
        lost[request.client] = None if request.sample is None or before is None else before + 1
    plan = run.file.plan
    return forgetting_cost(
        [Loss(sizes[client], count) for client, count in lost.items()],
        clients=len(run.server.roster),
        clients_per_round=plan.clients_per_round,
        batch_size=plan.batch_size,
        local_steps=plan.local_steps,
        rounds=run.server.rounds_done,
    )


def still_there(run: OpenRun, wanted: Sequence[Request]) -> list[Request]:
    """Which requests are new; the others must have been met already, or all are refused."""
    samples_of = cache(run.clients.samples)
    pending = []
    for request in wanted:
        if request.client in run.server.roster and (
            request.sample is None or request.sample in samples_of(request.client)
        ):
            pending.append(request)
        elif run.record.book.id_of(request) is None:
            where = "" if request.client not in run.server.roster else f" --client {shown(request.client)}"
            raise UnknownTarget(
                f"there is no {request} in {run.path}", hint=f"see `fedforget clients {run.path}{where}`"
            )
    return pending
