"""What requests would cost: from the plan and the clients' sizes alone, never from the draws."""

from __future__ import annotations

from collections.abc import Sequence

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.planner.costs import ForgettingCost, forgetting_cost
from fedforget.planner.round_law import Withdrawal
from fedforget.requests.targets import present_targets
from fedforget.store.run_directory import OpenRun


def preview(run: OpenRun, requests: Sequence[Request]) -> ForgettingCost[float]:
    """The a-priori cost of requests on an open run."""
    sizes, lost = run.clients.sizes(), dict[Id, int | None]()
    for request in present_targets(run, run.record.book, requests):
        before = lost.get(request.client, 0)
        lost[request.client] = None if request.sample is None or before is None else before + 1
    plan = run.file.plan
    return forgetting_cost(
        [Withdrawal(sizes[client], count) for client, count in lost.items()],
        clients=len(run.server.roster),
        clients_per_round=plan.clients_per_round,
        batch_size=plan.batch_size,
        local_steps=plan.local_steps,
        rounds=run.server.rounds_done,
    )
