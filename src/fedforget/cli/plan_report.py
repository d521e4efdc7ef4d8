"""What ``fedforget plan`` says about a plan: one object for scripts, sections for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isqrt
from typing import Any

from fedforget.algorithm.batching import Requests, in_windows, one_by_one
from fedforget.algorithm.budget import (
    client_bytes,
    client_forgetting_traffic,
    expected_distinct_clients,
    learning_traffic,
    sample_forgetting_traffic,
    server_bytes,
    state_bytes,
)
from fedforget.algorithm.plan import KEEP_ENDS, KEEP_EVERY, Plan
from fedforget.algorithm.search import Choice
from fedforget.algorithm.theory import ForgettingCost, Loss, client_bound, forgetting_cost, sample_bound
from fedforget.cli.output import table

Facts = dict[str, Any]
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_THOUSAND = 1000


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the plan itself doesn't say."""

    sizes: Counter[int]  # how many clients have so many samples
    model_bytes: int
    workers: int
    requests: Requests
    windows: Sequence[float]  # days

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
    """Everything, under stable names."""
    world = {
        "clients": here.clients, "clients_per_round": plan.clients_per_round, "batch_size": plan.batch_size,
        "local_steps": plan.local_steps, "rounds": plan.rounds,
    }  # fmt: skip
    smallest, leaving = min(here.sizes), Loss(min(here.sizes), None)
    by_size = {size: _request(plan, forgetting_cost([Loss(size, 1)], **world), sample_bound(size, **world))
               for size in here.sizes}  # fmt: skip
    share = {size: number * size / here.samples for size, number in here.sizes.items()}
    any_sample = {name: sum(share[size] * facts[name] for size, facts in by_size.items()) for name in by_size[smallest]}
    bound = client_bound(clients=here.clients, clients_per_round=plan.clients_per_round, rounds=plan.rounds)
    return {
        **world,
        "samples": here.samples,
        "samples_per_client": {"smallest": smallest, "mean": here.mean, "largest": max(here.sizes)},
        "steps": plan.steps,
        "keep": plan.keep,
        "rho_s": by_size[smallest]["union_bound"],
        "rho_c": float(bound),
        "sample": any_sample,
        "worst_sample": by_size[smallest],
        "client": _request(plan, forgetting_cost([leaving], **world), bound),
        "storage": _storage(plan, here),
        "traffic": _traffic(plan, here),
        "batching": _batching(plan, here),
        "workers": _workers(plan, here.workers),
    }


def _request(plan: Plan, cost: ForgettingCost[float], bound: Any) -> dict[str, float]:
    return {**asdict(cost), "expected_share": cost.expected_steps / plan.steps, "union_bound": float(bound)}


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
    ways = [replace(plan, keep=keep) for keep in (KEEP_EVERY, sparse, KEEP_ENDS)]
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


def _workers(plan: Plan, workers: int) -> Facts:
    turns = -(-plan.clients_per_round // workers)
    return {"count": workers, "turns_per_round": turns, "even": plan.clients_per_round % workers == 0}


# For people


def text_of(facts: Facts, choices: Sequence[Choice] = (), bound_by: Sequence[str] = ()) -> str:
    sections = [
        _found_text(choices, bound_by, facts["steps"]) if choices else "",
        _plan_text(facts),
        _forgetting_text(facts),
        _storage_text(facts),
        _traffic_text(facts),
        _batching_text(facts["batching"]),
    ]
    return "\n\n".join(section for section in sections if section)


def _section(title: str, *parts: str) -> str:
    body = "\n".join(parts)
    return "\n".join([title, *(f"  {line}".rstrip() for line in body.splitlines())])


def _found_text(choices: Sequence[Choice], bound_by: Sequence[str], steps: int) -> str:
    header = ("E", "K", "b", "R", "K*b", "rho_s", "rho_c", "P sample", "P client", f"expected steps of {steps}")
    rows = [
        (c.local_steps, c.clients_per_round, c.batch_size, c.rounds, c.clients_per_round * c.batch_size, c.rho_s,
         c.rho_c, c.sample_probability, c.client_probability, c.expected_steps)
        for c in choices[:8]
    ]  # fmt: skip
    held = f"what holds it back: {', '.join(bound_by)}" if bound_by else ""
    return _section("cheapest to forget from, for each E (the first is the answer)", table(header, rows), held)


def _plan_text(facts: Facts) -> str:
    spread = facts["samples_per_client"]
    each = (
        f"{spread['smallest']} {_plural('sample', spread['smallest'])} each"
        if spread["smallest"] == spread["largest"]
        else f"{spread['smallest']} to {spread['largest']} samples, {spread['mean']:.4g} on average"
    )
    rows = [
        ("M", f"{facts['clients']:,}", f"{_plural('client', facts['clients'])} with {each}"),
        ("K", f"{facts['clients_per_round']:,}", "slots per round"),
        (
            "b",
            f"{facts['batch_size']:,}",
            "samples per local step"
            + (", or all of a client that has fewer" if facts["batch_size"] > spread["smallest"] else ""),
        ),
        ("E", f"{facts['local_steps']:,}", "local steps per round"),
        ("R", f"{facts['rounds']:,}", "rounds"),
        ("T", f"{facts['steps']:,}", "steps in all"),
        ("rho_s", f"{facts['rho_s']:.4g}", "sample-level, of the smallest client" if "to" in each else "sample-level"),
        ("rho_c", f"{facts['rho_c']:.4g}", "client-level"),
    ]
    width = max(len(value) for _, value, _ in rows)
    workers = facts["workers"]
    note = ""
    if not workers["even"]:
        k, count = facts["clients_per_round"], workers["count"]
        above = workers["turns_per_round"] * count
        note = f"note: K = {k} is not a multiple of {count} workers: " + (
            f"some clients change workers within a round; K = {k // count * count} or {above} spares that"
            if k > count
            else f"{count - k} of them would have nothing to do; K = {above} keeps them busy"
        )
    return _section("plan", *(f"{name:<5}  {value:>{width}}  {what}" for name, value, what in rows), note)


def _forgetting_text(facts: Facts) -> str:
    header = ("one", "P(recompute)", "union bound", "expected steps", f"of {facts['steps']:,}", "from the first use")
    named = {"sample": facts["sample"], "client": facts["client"]}
    if facts["samples_per_client"]["smallest"] < facts["samples_per_client"]["largest"]:
        worst = f"sample of the smallest client (N = {facts['samples_per_client']['smallest']})"
        named = {"sample": facts["sample"], worst: facts["worst_sample"], "client": facts["client"]}
    rows = [
        (name, f["probability"], min(1.0, f["union_bound"]), f["expected_steps"], _percent(f["expected_share"]),
         f["expected_steps_from_first_use"])
        for name, f in named.items()
    ]  # fmt: skip
    note = "note: when the only client leaves, its model is withdrawn and nothing is recomputed"
    return _section("forgetting", table(header, rows), note if facts["clients"] == 1 else "")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _storage_text(facts: Facts) -> str:
    storage = facts["storage"]
    header = (
        "--keep", "models", "on the server", "rounds replayed for a sample", "for a client", "traffic for a sample",
        "for a client",
    )  # fmt: skip
    rows = [
        (f"{way['keep']}{' *' if way['keep'] == facts['keep'] else ''}", way["models"], size(way["server_bytes"]),
         way["forgetting"]["sample"]["rounds_replayed"], way["forgetting"]["client"]["rounds_replayed"],
         size(way["forgetting"]["sample"]["bytes"]), size(way["forgetting"]["client"]["bytes"]))
        for way in storage["ways"]
    ]  # fmt: skip
    told = f"a kept state takes {size(storage['state_bytes'])}; a client stores {size(storage['client_bytes'])}"
    if storage["largest_client_bytes"] != storage["client_bytes"]:
        told += f" on average, {size(storage['largest_client_bytes'])} at most"
    return _section("storage, and what keeping fewer models costs (* is this plan's)", table(header, rows), told)


def _traffic_text(facts: Facts) -> str:
    traffic, header = facts["traffic"], ("expected", "rounds", "models trained", "bytes both ways")
    rows = [("learning", *_sent(traffic["learning"]))]
    for level in ("sample", "client"):
        part = traffic["forgetting"][level]
        rows.append((f"forgetting one {level}", *_sent({**part, "rounds": part["rounds_replayed"]})))
    rows.append(("retraining without a client", *_sent(traffic["retraining"]["client"])))
    distinct = traffic["distinct_clients_per_round"]
    note = f"a round draws {distinct:.4g} different clients on average; each gets the model and sends one back"
    return _section("traffic", table(header, rows), note)


def _sent(part: Mapping[str, float]) -> tuple[float, float, str]:
    return part["rounds"], part["trainings"], size(part["bytes"])


def _batching_text(batching: Facts) -> str:
    header = (
        "handled", "requests each", "recomputations a day", "steps a day", "steps a request", "saved", "mean wait",
    )  # fmt: skip
    alone = batching["one_by_one"]
    rows: list[tuple[object, ...]] = [
        ("at once", 1.0, alone["recomputations_per_day"], alone["steps_per_day"], alone["steps_per_request"], "-", "-")
    ]
    rows += [
        (f"every {_days(w['days'])}", w["requests"], w["recomputations_per_day"], w["steps_per_day"],
         w["steps_per_request"], _percent(w["saving"]), _days(w["mean_wait_days"]))
        for w in batching["windows"]
    ]  # fmt: skip
    rate, share = batching["requests_per_day"], batching["sample_share"]
    title = f"batching, at {rate:g} a day: {_percent(share)} of the requests for a sample, the others for a client"
    return _section(title, table(header, rows), "of windows, cost is an upper bound and saving a lower one")


def _days(days: float) -> str:
    return "1 day" if days == 1 else f"{days:.4g} days"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def size(count: float) -> str:
    """Bytes in decimal units."""
    value, unit = float(count), 0
    while value >= _THOUSAND and unit < len(_UNITS) - 1:
        value, unit = value / _THOUSAND, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"
