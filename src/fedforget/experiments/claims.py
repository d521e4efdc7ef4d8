"""The claims of Section 6.2 and Appendix A.5, in our words, each with our figure and a verdict from the rows.

A claim without rows is "not measured". Verdicts: holds, holds under a condition, does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedforget.experiments.drawing import NAMES, by, pooled_mean
from fedforget.experiments.life_tables import recovery_words
from fedforget.experiments.pairs import FAILS, HOLDS, OPEN, Difference, by_dataset
from fedforget.experiments.problems import training_of
from fedforget.experiments.requests import AT_ONCE, IN_A_STREAM
from fedforget.experiments.rows import Row
from fedforget.experiments.tradeoff import BATCH, SLOTS, points_of

CONDITION, UNKNOWN = "holds under a condition", "not measured"
_HALF = 0.5
_FALLS = {True: "falls", False: "rises"}
Results = Mapping[str, Sequence[Row]]  # by experiment; digits stand in for nothing here
Found = tuple[str, str]  # our figure, verdict


@dataclass(frozen=True, slots=True)
class Claim:
    section: str
    says: str
    judge: Callable[[Results], Found | None]

    def found(self, results: Results) -> Found:
        return self.judge(results) or ("-", UNKNOWN)


def _real(results: Results, name: str) -> list[Row]:
    return [row for row in results.get(name, ()) if row["dataset"] != "digits"]


def _learns_as_well(results: Results) -> Found | None:
    """Holds where both beat a linear model and the interval lies above the goal."""
    found = by_dataset([*_real(results, "accuracy"), *_real(results, "performance")])
    if not found:
        return None
    words, verdicts = [], {}
    for dataset, before in found.items():
        difference, verdicts[NAMES[dataset]] = before.difference, before.verdict
        more = "one run" if difference.half is None else f"{difference.words()}, {difference.runs} runs"
        words.append(f"{NAMES[dataset]} {100 * difference.mean:+.2f} points ({more}): {before.verdict}")
    return "; ".join(words), _overall(verdicts)


def _overall(verdicts: Mapping[str, str]) -> str:
    """One verdict for several datasets: it fails if it fails anywhere, and names where it holds."""
    holding = [name for name, verdict in verdicts.items() if verdict == HOLDS]
    if FAILS in verdicts.values():
        return FAILS
    if not holding:
        return OPEN
    return HOLDS if len(holding) == len(verdicts) else f"{CONDITION}: {', '.join(holding)}; elsewhere not decided"


def _drops_less(results: Results) -> Found | None:
    words, holds = [], {}
    for name, fats, frs in _both(results):
        drops = [float(np.mean([row["drop"] for row in rows])) for rows in (fats, frs)]
        words.append(f"{name} {drops[0]:.2f} against {drops[1]:.2f} ({_runs(fats)})")
        if len(fats) > 1:
            holds[name] = drops[0] < drops[1]
    return ("; ".join(words), _where(holds)) if words else None


def _recovers_sooner(results: Results) -> Found | None:
    """A run that does not recover within the horizon counts as slower than any that does."""
    words, holds = [], {}
    for name, fats, frs in _both(results):
        words.append(f"{name} {recovery_words(fats)} against {recovery_words(frs)} ({_runs(fats)})")
        if len(fats) > 1:
            holds[name] = _mean_recovery(fats) < _mean_recovery(frs)
    return ("; ".join(words), _where(holds)) if words else None


def _both(results: Results) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """The summaries of FATS and of FRS under the seeds that both have finished, for each dataset and level."""
    summaries = [row for row in _real(results, "performance") if row["kind"] == "summary"]
    for (dataset, level), group in by(summaries, "dataset", "level").items():
        fats, frs = ({row["seed"]: row for row in group if row["method"] == name} for name in ("FATS", "FRS"))
        seeds = [seed for seed in fats if seed in frs]
        if seeds:
            yield f"{NAMES[dataset]} {level}s", [fats[seed] for seed in seeds], [frs[seed] for seed in seeds]


def _where(holds: Mapping[str, bool]) -> str:
    """The verdict over several cases. One run decides nothing, so its case is not among them."""
    if not holds:
        return f"{OPEN}: one run"
    holding = [name for name, held in holds.items() if held]
    return HOLDS if len(holding) == len(holds) else f"{CONDITION}: {', '.join(holding)}" if holding else FAILS


def _runs(rows: Sequence[Row]) -> str:
    return "one run" if len(rows) == 1 else f"{len(rows)} runs"


def _mean_recovery(rows: Sequence[Row]) -> float:
    return float(np.mean([np.inf if row["recovery"] is None else row["recovery"] for row in rows]))


def _whole_grids(results: Results) -> Iterator[tuple[str, list[Row]]]:
    """The datasets whose trade-off has every point: a part of a curve decides nothing."""
    for (dataset,), group in by(_real(results, "tradeoff"), "dataset").items():
        points = {(row["kind"], row["K"], row["b"]) for row in group}
        if points >= set(points_of(training_of(dataset))):
            yield dataset, group


def _levels_off(kind: str, rho: str, corner: float) -> Callable[[Results], Found | None]:
    """Whether accuracy gains less above ``corner`` than below it, per unit of ρ."""

    def judge(results: Results) -> Found | None:
        words, holds = [], []
        for dataset, group in _whole_grids(results):
            points = by(sorted((r for r in group if r["kind"] == kind), key=lambda r: r[rho]), rho)
            x = [key[0] for key in points]
            y = [float(np.mean([row["accuracy_full"] for row in rows])) for rows in points.values()]
            if len(x) < 3 or not x[0] < corner < x[-1]:  # noqa: PLR2004 (two slopes need three points)
                continue
            middle = float(np.interp(corner, x, y))
            below, above = (middle - y[0]) / (corner - x[0]), (y[-1] - middle) / (x[-1] - corner)
            words.append(
                f"{NAMES[dataset]}: {10 * below:.1f} points per 0.1 of ρ below {corner}, {10 * above:.1f} above"
            )
            holds.append(above < below / 2)
        return ("; ".join(words), HOLDS if all(holds) else CONDITION if any(holds) else FAILS) if words else None

    return judge


def _cheaper(level: str, bound: float, verdict: str) -> Callable[[Results], Found | None]:
    def judge(results: Results) -> Found | None:
        rows = [row for row in results.get("efficiency", ()) if row["level"] == level and row["method"] == "FATS"]
        if not rows:
            return None
        shares = [row["theory_steps"] / (row["R"] * row["E"]) for row in rows]
        points = len(by(rows, "group", "M", "K", "b"))
        words = f"at most {max(shares):.2f} of FRS, exact, at ρ ≤ 1, over {points} points"
        return words, verdict if max(shares) < bound else FAILS

    return judge


def _rises_with_slots(results: Results) -> Found | None:
    rows = [row for row in results.get("efficiency", ()) if row["method"] == "FATS" and row["seed"] == 1]
    lines = by(rows, "group", "M", "b")
    if not lines:
        return None
    rising = [_rises([row["theory_steps"] for row in sorted(line, key=lambda row: row["K"])])
              for line in lines.values()]  # fmt: skip
    return f"{sum(rising)} of {len(rising)} lines rise at every step of K", HOLDS if all(rising) else FAILS


def _rises(values: Sequence[float]) -> bool:
    return all(value < following for value, following in pairwise(values))


def _rises_along(column: str) -> Callable[[Results], Found | None]:
    def judge(results: Results) -> Found | None:
        rows = [row for row in results.get("requests", ()) if row["method"] == "FATS" and row["seed"] == 1]
        other = "K" if column == "requests" else "requests"
        lines = by(rows, "group", "kind", other)
        if not lines:
            return None
        rising = [_rises([row["theory_steps"] for row in sorted(line, key=lambda row: row[column])])
                  for line in lines.values()]  # fmt: skip
        return f"{sum(rising)} of {len(rising)} lines rise", HOLDS if all(rising) else FAILS

    return judge


def _several_are_cheap(results: Results) -> Found | None:
    rows = [row for row in results.get("requests", ()) if row["method"] == "FATS"]
    if not rows:
        return None
    most = max(row["requests"] for row in rows)
    words = []
    for (group,), found in by(rows, "group").items():
        shares = {}
        for kind in (AT_ONCE, IN_A_STREAM):
            for slots in (2, 10):
                each = [r for r in found if (r["kind"], r["K"], r["requests"]) == (kind, slots, most)]
                shares[kind, slots] = pooled_mean(each, "theory_steps") / (each[0]["R"] * each[0]["E"])
        words.append(
            f"{group}: {most} at once {shares[AT_ONCE, 2]:.2f} of FRS at K = 2 and {shares[AT_ONCE, 10]:.2f} at K = 10"
        )
    return "; ".join(words), f"{CONDITION}: small K"


def _time_falls_with_rho_s(results: Results) -> Found | None:
    words, falls = [], []
    for dataset, group in _whole_grids(results):
        rows = [row for row in group if row["kind"] == BATCH and row["level"] == "sample"]
        points = by(sorted(rows, key=lambda row: row["rho_s"]), "rho_s")
        means = [float(np.mean([row["steps"] for row in each])) for each in points.values()]
        falls.append(means[-1] < means[0])
        words.append(f"{NAMES[dataset]} from {means[0]:.1f} to {means[-1]:.1f} steps: it {_FALLS[falls[-1]]}")
    return ("; ".join(words), HOLDS if all(falls) else CONDITION if any(falls) else FAILS) if words else None


def _rho_s_matters_more(results: Results) -> Found | None:
    words, holds = [], []
    for dataset, group in _whole_grids(results):
        spans = {kind: _span([row for row in group if row["kind"] == kind]) for kind in (BATCH, SLOTS)}
        words.append(f"{NAMES[dataset]}: {100 * spans[BATCH]:.1f} points over ρ_S, {100 * spans[SLOTS]:.1f} over ρ_C")
        holds.append(spans[BATCH] > spans[SLOTS])
    return ("; ".join(words), HOLDS if all(holds) else CONDITION if any(holds) else FAILS) if words else None


def _span(rows: Sequence[Row]) -> float:
    means = [float(np.mean([row["accuracy_full"] for row in each])) for each in by(rows, "K", "b").values()]
    return max(means) - min(means)


def _highest_in_streams(results: Results) -> Found | None:
    """Paired by seed: FATS minus the other method, on the whole test set at the end."""
    ends = [row for row in _real(results, "streaming") if row["kind"] == "end"]
    words, verdicts = [], {}
    for (dataset, level), group in by(ends, "dataset", "level").items():
        values = {(row["method"], row["seed"]): row["accuracy_full"] for row in group}
        pairs = [(values["FATS", seed], value) for (method, seed), value in values.items()
                 if method == "FRS" and ("FATS", seed) in values]  # fmt: skip
        if pairs:
            found, (fats, frs) = Difference.of(pairs), np.mean(pairs, axis=0)
            name = f"{NAMES[dataset]} {level}s"
            words.append(
                f"{name} FATS {fats:.3f}, FRS {frs:.3f} (difference {found.words()} points, {found.runs} runs)"
            )
            verdicts[name] = {None: OPEN, True: HOLDS, False: FAILS}[found.at_least(0)]
    return ("; ".join(words), _overall(verdicts)) if words else None


def _stable_in_streams(results: Results) -> Found | None:
    rows = [row for row in _real(results, "streaming") if row["kind"] == "summary" and row["method"] == "FATS"]
    if not rows:
        return None
    drops = {key: float(np.mean([r["drop"] for r in group])) for key, group in by(rows, "dataset", "level").items()}
    words = "; ".join(f"{NAMES[dataset]} {level}s fall by {drop:.2f}" for (dataset, level), drop in drops.items())
    return words, FAILS if max(drops.values()) > 0.1 else HOLDS  # noqa: PLR2004 (ten points are not stable)


CLAIMS = (
    Claim("6.2.1", "Before unlearning FATS is as accurate as FedAvg (no worse than one point)", _learns_as_well),
    Claim("6.2.1", "Accuracy drops less with FATS than with retraining from scratch", _drops_less),
    Claim("6.2.1", "FATS recovers its accuracy in fewer rounds than retraining from scratch", _recovers_sooner),
    Claim("6.2.1", "FR² drops further and recovers more slowly than FATS", lambda _: None),
    Claim("6.2.2", "One sample: less time than FRS", _cheaper("sample", 1.0, HOLDS)),
    Claim("6.2.2", "One client: more time for larger K", _rises_with_slots),
    Claim(
        "6.2.2",
        "One client: at most half of FRS's time",
        _cheaper("client", _HALF, f"{CONDITION}: one client, ρ_C ≤ 1"),
    ),
    Claim("6.2.3", "Time rises with the number of requests", _rises_along("requests")),
    Claim("6.2.3", "Time rises with ρ_C at a fixed number of requests", _rises_along("K")),
    Claim("6.2.3", "For suitable K, several requests stay far below FRS", _several_are_cheap),
    Claim("6.2.4", "Unlearning time falls as ρ_S grows, then levels off", _time_falls_with_rho_s),
    Claim("6.2.4", "Accuracy rises fast with ρ_S, then levels off", _levels_off(BATCH, "rho_s", 0.5)),
    Claim("6.2.4", "Accuracy levels off beyond ρ_C = 0.5, while time goes on rising", _levels_off(SLOTS, "rho_c", 0.5)),
    Claim("6.2.4", "ρ_S matters more for accuracy than ρ_C", _rho_s_matters_more),
    Claim("6.2.5", "Membership inference does no better than guessing", lambda _: None),
    Claim("A.5", "FATS ends with the highest accuracy under streams of requests", _highest_in_streams),
    Claim("A.5", "FATS stays stable under streams of requests", _stable_in_streams),
)
