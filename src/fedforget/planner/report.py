"""The report of ``fedforget plan``: one object with stable names, for the JSON and for the text output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isqrt
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.plan import KEEP_ENDS, KEEP_EVERY, Plan
from fedforget.planner.costs import ForgettingCost, client_bound, expected_stream_cost, forgetting_cost, sample_bound
from fedforget.planner.round_law import Withdrawal
from fedforget.planner.storage import (
    client_bytes,
    client_forgetting_traffic,
    expected_distinct_clients,
    learning_traffic,
    sample_forgetting_traffic,
    server_bytes,
    state_bytes,
)
from fedforget.planner.windows import Requests, in_windows, one_by_one

Facts = dict[str, Any]
_SEVERAL = 2


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances of a plan: client sizes, request rate, hardware."""

    sizes: Counter[int]  # number of samples → number of clients
    model_bytes: int
    workers: int
    requests: Requests
    windows: Sequence[float]  # days
    several: int = 10  # requests to compare: carried out together, or one by one

    @property
    def median(self) -> int:
        """The median size of a client."""
        below = 0
        for size in sorted(self.sizes):
            below += self.sizes[size]
            if 2 * below >= self.clients:
                break
        return size

    @property
    def clients(self) -> int:
        return self.sizes.total()

    @property
    def samples(self) -> int:
        return sum(size * number for size, number in self.sizes.items())

    @property
    def mean(self) -> float:
        return self.samples / self.clients


def facts_of(plan: Plan, here: Circumstances) -> Facts:
    """Return the whole report under stable names."""
    world = {
        "clients": here.clients, "clients_per_round": plan.clients_per_round, "batch_size": plan.batch_size,
        "local_steps": plan.local_steps, "rounds": plan.rounds,
    }  # fmt: skip
    smallest, leaving = min(here.sizes), Withdrawal(min(here.sizes), None)
    by_size = {size: _request(plan, forgetting_cost([Withdrawal(size, 1)], **world), sample_bound(size, **world))
               for size in here.sizes}  # fmt: skip
    share = {size: number * size / here.samples for size, number in here.sizes.items()}
    bound = client_bound(clients=here.clients, clients_per_round=plan.clients_per_round, rounds=plan.rounds)
    any_sample = {name: sum(share[size] * facts[name] for size, facts in by_size.items()) for name in by_size[smallest]}
    client = _request(plan, forgetting_cost([leaving], **world), bound)
    for facts in (any_sample, client, *by_size.values()):
        facts["union_bound"] = min(1.0, facts["rho"])
    return {
        **world,
        "samples": here.samples,
        "samples_per_client": {"smallest": smallest, "mean": here.mean, "largest": max(here.sizes)},
        "steps": plan.steps,
        "keep": plan.keep,
        "rho_s": by_size[smallest]["rho"],
        "rho_c": float(bound),
        "sample": any_sample,
        "worst_sample": by_size[smallest],
        "client": client,
        "several": _several(here, world),
        "storage": _storage(plan, here),
        "traffic": _traffic(plan, here),
        "batching": _batching(plan, here),
        "workers": _workers(plan, here),
    }


def _request(plan: Plan, cost: ForgettingCost[float], bound: Any) -> dict[str, float]:
    return {**asdict(cost), "expected_share": cost.expected_steps / plan.steps, "rho": float(bound)}


def _several(here: Circumstances, world: Mapping[str, int]) -> list[Facts]:
    """Compare requests carried out with one rewind and one by one, where M and N shrink each time."""
    size, most = here.median, here.several
    found = []
    for what, there in (("samples of one client", size), ("samples of different clients", here.clients),
                        ("clients", here.clients)):  # fmt: skip
        if there < _SEVERAL:
            continue
        count = min(most, there)
        if what == "samples of one client":
            withdrawals, stream = [Withdrawal(size, count)], [Request(0, sample) for sample in range(count)]
        else:
            one = what == "clients"
            withdrawals = [Withdrawal(size, None if one else 1)] * count
            stream = [Request(client, None if one else 0) for client in range(count)]
        alone = expected_stream_cost(stream, dict.fromkeys(range(count), size), **world)
        at_once = forgetting_cost(withdrawals, **world)
        found.append(
            {"what": what, "count": count, "samples_per_client": size, "at_once": asdict(at_once),
             "one_by_one": asdict(alone)}
        )  # fmt: skip
    return found


def _forgetting(plan: Plan, here: Circumstances) -> Facts:
    parts = {size: asdict(sample_forgetting_traffic(plan, here.clients, size, here.model_bytes)) for size in here.sizes}
    names = next(iter(parts.values()))
    return {
        "sample": {
            name: sum(here.sizes[size] * size / here.samples * part[name] for size, part in parts.items())
            for name in names
        },
        "client": asdict(client_forgetting_traffic(plan, here.clients, here.model_bytes)),
    }


def _storage(plan: Plan, here: Circumstances) -> Facts:
    sparse = plan.keep if isinstance(plan.keep, int) else max(2, isqrt(plan.rounds))
    between = (sparse,) if plan.keep == sparse or sparse < plan.rounds else ()  # otherwise it equals KEEP_ENDS
    ways = [replace(plan, keep=keep) for keep in (KEEP_EVERY, *between, KEEP_ENDS)]
    return {
        "model_bytes": here.model_bytes,
        "state_bytes": state_bytes(plan, here.model_bytes),
        "client_bytes": client_bytes(round(here.mean)),
        "largest_client_bytes": client_bytes(max(here.sizes)),
        "server_bytes": server_bytes(plan, here.clients, here.model_bytes),
        "ways": [
            {
                "keep": way.keep,
                "models": way.kept_count(way.rounds),
                "server_bytes": server_bytes(way, here.clients, here.model_bytes),
                "forgetting": _forgetting(way, here),
            }
            for way in ways
        ],
    }


def _traffic(plan: Plan, here: Circumstances) -> Facts:
    return {
        "distinct_clients_per_round": expected_distinct_clients(here.clients, plan.clients_per_round),
        "learning": asdict(learning_traffic(plan, here.clients, here.model_bytes)),
        "forgetting": _forgetting(plan, here),
        "retraining": {
            "sample": asdict(learning_traffic(plan, here.clients, here.model_bytes)),
            "client": asdict(learning_traffic(plan, here.clients - 1, here.model_bytes)),
        },
    }


def _batching(plan: Plan, here: Circumstances) -> Facts:
    windows = [in_windows(here.requests, days, here.sizes, plan) for days in here.windows]
    return {
        "requests_per_day": here.requests.per_day,
        "sample_share": here.requests.sample_share,
        "one_by_one": asdict(one_by_one(here.requests, here.sizes, plan)),
        "windows": [
            {"days": w.days, "requests": w.requests, **asdict(w.cost), "saving": w.saving,
             "mean_wait_days": w.mean_wait_days}
            for w in windows
        ],
    }  # fmt: skip


def _workers(plan: Plan, here: Circumstances) -> Facts:
    slots, workers = plan.clients_per_round, here.workers
    even = slots % workers == 0
    note = ""
    if here.clients < workers:
        note = (
            f"a client is trained by one worker at a time, and there {_are(here.clients, 'client')}: of {workers} "
            f"workers, {workers - here.clients} would have nothing to do"
        )
    elif slots < workers:
        note = (
            f"K = {slots} is not a multiple of {workers} workers: {workers - slots} of them would have nothing to do; "
            f"K = {workers} keeps them busy, with {workers / slots:.3g} times the rho"
        )
    elif not even:
        below = slots // workers * workers
        note = (
            f"K = {slots} is not a multiple of {workers} workers: some clients change workers within a round; "
            f"K = {below} or {below + workers} spares that"
        )
    return {"count": workers, "turns_per_round": -(-slots // workers), "even": even, "note": note}


def _are(count: int, word: str) -> str:
    return f"is only 1 {word}" if count == 1 else f"are only {count:,} {word}s"
