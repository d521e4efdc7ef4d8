"""The text output of ``fedforget plan``, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedforget.cli.output import table
from fedforget.planner.report import Facts
from fedforget.planner.search import Choice

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_THOUSAND = 1000
_ROWS_OF_TRAFFIC = ("learning", "forgetting", "retraining")


def text_of(facts: Facts, choices: Sequence[Choice] = (), bound_by: Sequence[str] = ()) -> str:
    sections = [
        _found_text(choices, bound_by, facts["steps"]) if choices else "",
        _plan_text(facts),
        _forgetting_text(facts),
        _several_text(facts),
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
        if spread["smallest"] == spread["largest"] and facts["clients"] > 1
        else f"{spread['smallest']} {_plural('sample', spread['smallest'])}"
        if facts["clients"] == 1
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
        ("rho_s", f"{facts['rho_s']:.4g}", _rho_s_words(facts)),
        ("rho_c", f"{facts['rho_c']:.4g}", "client-level"),
    ]
    width = max(len(value) for _, value, _ in rows)
    note = f"note: {facts['workers']['note']}" if facts["workers"]["note"] else ""
    return _section("plan", *(f"{name:<5}  {value:>{width}}  {what}" for name, value, what in rows), note)


def _rho_s_words(facts: Facts) -> str:
    """Clients of different sizes differ in rho_s: the worst is shown, and the mean over the samples beside it."""
    spread = facts["samples_per_client"]
    if spread["smallest"] == spread["largest"]:
        return "sample-level"
    return f"sample-level, of the smallest client; {facts['sample']['rho']:.4g} on average over the samples"


def _forgetting_text(facts: Facts) -> str:
    header = ("one", "P(recompute)", "union bound", "expected steps", f"of {facts['steps']:,}", "from the first use")
    named = {"sample": facts["sample"], "client": facts["client"]}
    if facts["samples_per_client"]["smallest"] < facts["samples_per_client"]["largest"]:
        worst = f"sample of the smallest client (N = {facts['samples_per_client']['smallest']})"
        named = {"sample": facts["sample"], worst: facts["worst_sample"], "client": facts["client"]}
    rows = [
        (name, f["probability"], f["union_bound"], f["expected_steps"], _percent(f["expected_share"]),
         f["expected_steps_from_first_use"])
        for name, f in named.items()
    ]  # fmt: skip
    note = "note: when the only client leaves, every draw changes, but its model is withdrawn: nothing is recomputed"
    return _section("forgetting", table(header, rows), note if facts["clients"] == 1 else "")


def _several_text(facts: Facts) -> str:
    if not facts["several"]:
        return ""
    header = ("", "at once: P(recompute)", "expected steps", "in a stream: recomputations", "expected steps")
    rows = [
        (f"{row['count']} {row['what']}", row["at_once"]["probability"], row["at_once"]["expected_steps"],
         row["one_by_one"]["expected_recomputations"], row["one_by_one"]["expected_steps"])
        for row in facts["several"]
    ]  # fmt: skip
    size = facts["several"][0]["samples_per_client"]
    note = f"of clients with {size} samples; in a stream, M and N shrink with each request"
    return _section("several requests", table(header, rows), note)


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
    sizes = f"a kept state takes {size(storage['state_bytes'])}; a client stores {size(storage['client_bytes'])}"
    if storage["largest_client_bytes"] != storage["client_bytes"]:
        sizes += f" on average, {size(storage['largest_client_bytes'])} at most"
    return _section("storage, and what keeping fewer models costs (* is this plan's)", table(header, rows), sizes)


def _traffic_text(facts: Facts) -> str:
    traffic, header = facts["traffic"], ("expected", "rounds", "models trained", "bytes both ways")
    rows: list[tuple[str, float, float, str]] = [("learning", *_sent(traffic["learning"]))]
    for level in ("sample", "client"):
        part = traffic["forgetting"][level]
        rows.append((f"forgetting one {level}", *_sent({**part, "rounds": part["rounds_replayed"]})))
        rows.append((f"retraining without one {level}", *_sent(traffic["retraining"][level])))
    rows.sort(key=lambda row: _ROWS_OF_TRAFFIC.index(row[0].partition(" ")[0]))
    distinct = traffic["distinct_clients_per_round"]
    drawn = f"{distinct:.4g} different clients on average" if facts["clients"] > 1 else "the one client"
    note = f"a round draws {drawn}; each gets the model and sends one back"
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
    return _section(title, table(header, rows), "for windows, cost is an upper bound and saving a lower one")


def _days(days: float) -> str:
    return "1 day" if days == 1 else f"{days:.3g} days"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def size(count: float) -> str:
    """Bytes in decimal units."""
    value, unit = float(count), 0
    while value >= _THOUSAND and unit < len(_UNITS) - 1:
        value, unit = value / _THOUSAND, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"
