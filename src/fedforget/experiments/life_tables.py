"""Tables of the experiments that compare methods: accuracy, performance and streaming."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedforget.experiments import accuracy
from fedforget.experiments.drawing import by
from fedforget.experiments.pairs import by_dataset
from fedforget.experiments.rows import Row
from fedforget.experiments.tables import Table, family_of, mean_of, verdict_words


def performance_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the tables. Rows of ``accuracy``, if any, decide the comparison before unlearning."""
    lived = [row for row in rows if row["experiment"] != accuracy.NAME]
    return [plans_table(lived), lives_table(lived), factors_table(lived), *paired_tables(rows)]


def streaming_tables(rows: Sequence[Row]) -> list[Table]:
    return [plans_table(rows), lives_table(rows), arrivals_table(rows)]


def plans_table(rows: Sequence[Row]) -> Table:
    """Return the plans, with ρ at every round of requests and at the horizon."""
    header = ("dataset", "M", "N", "K", "b", "E", "requests at rounds", "horizon R", "ρ_C at the first requests",
              "ρ_C at R", "ρ_S at the first requests", "ρ_S at R", "optimisers")  # fmt: skip
    cells = []
    for (dataset,), group in by(rows, "dataset").items():
        first, arrivals = group[0], sorted({row["rounds_computed"] for row in group if row["kind"] == "removed"})
        share = arrivals[0] / first["R"]
        cells.append((
            dataset, *(first[name] for name in ("M", "N", "K", "b", "E")), ", ".join(map(str, arrivals)), first["R"],
            first["rho_c"] * share, first["rho_c"], first["rho_s"] * share, first["rho_s"], optimiser_words(group),
        ))  # fmt: skip
    return Table("Plans", header, cells, "ρ_S at the mean N. Requests come when so many rounds have been computed.")


def optimiser_words(rows: Sequence[Row]) -> str:
    """Return the optimiser of each method, or the common one; rows of the first version lack it."""
    found = {m: sorted({row["optimizer"] or "not noted" for row in each}) for (m,), each in by(rows, "method").items()}
    words = {method: " or ".join(each) for method, each in found.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return "; ".join(f"{method} {each}" for method, each in words.items())


def lives_table(rows: Sequence[Row]) -> Table:
    """Return a line for each dataset, level and method, with means over seeds."""
    header = ("dataset", "level", "method", "runs", "before", "whole set", "lowest", "end", "drop",
              "rounds to recover", "steps", "MB up", "same bytes as from scratch")  # fmt: skip
    cells = []
    for (dataset, level, method), group in by(rows, "dataset", "level", "method").items():
        kinds = by(group, "kind")
        summaries = kinds[("summary",)]
        ends = [row for row in kinds[("end",)] if is_at_the_horizon(row)]
        whole = [mean_of(each, "accuracy_full") for each in (kinds[("before",)], kinds[("lowest",)], ends)]
        cells.append((
            dataset, level, method, len(summaries), mean_of(summaries, "accuracy"), *whole,
            mean_of(summaries, "drop"), recovery_words(summaries), mean_of(summaries, "steps"),
            mean_of(summaries, "bytes_up") / 1e6, equal_words(summaries),
        ))  # fmt: skip
    end = (
        "at the end, which is the model of round R for every method, however many rounds it has to compute until then"
        if rows and rows[0]["experiment"] != "streaming"
        else "at the end, when every method has computed R rounds"
    )
    older = sum(row["kind"] == "end" and not is_at_the_horizon(row) for row in rows)
    lost = f" {older} runs of an earlier version ended before that and have no end here." if older else ""
    note = (
        "before: mean accuracy of the last five rounds before the requests, on 2,000 test images; whole set, lowest "
        f"and end: the whole test set, before the requests, at the lowest point and {end}.{lost} drop: before minus "
        "the lowest, on the 2,000. rounds to recover: rounds computed until accuracy is within a point of before. "
        "steps and MB: until the round of the requests is reached again; as much is sent down as up. FATS's final "
        "accuracy is that of retraining by construction: its drop measures only how far it went back."
    )
    return Table("Accuracy and cost of unlearning", header, cells, note)


def is_at_the_horizon(row: Row) -> bool:
    """Whether a row of the end is of the model of round R; of streams, of R rounds computed, as every one is."""
    return bool(row["experiment"] == "streaming" or row["round"] == row["R"])


def factors_table(rows: Sequence[Row]) -> Table:
    """Return FATS's steps and bytes as a share of FRS's, measured and by theory, over the seeds that both finished."""
    header = ("dataset", "level", "runs", "FATS steps", "exact", "FRS steps", "of FRS", "exact", "bytes of FRS",
              "exact")  # fmt: skip
    cells = []
    summaries = [row for row in rows if row["kind"] == "summary"]
    for (dataset, level), group in by(summaries, "dataset", "level").items():
        ours, scratch = ({row["seed"]: row for row in group if row["method"] == name} for name in ("FATS", "FRS"))
        seeds = [seed for seed in ours if seed in scratch]
        if not seeds:
            continue
        fats, frs = ([each[seed] for seed in seeds] for each in (ours, scratch))
        steps, exact, total = mean_of(fats, "steps"), mean_of(fats, "theory_steps"), mean_of(frs, "steps")
        sent = mean_of(fats, "bytes_up") / mean_of(frs, "bytes_up")
        cells.append((dataset, level, len(seeds), steps, exact, total, steps / total, exact / total, sent,
                      exact / total * models_sent(fats[0])))  # fmt: skip
    note = (
        "exact: the expectation for these requests at once. FATS draws clients with replacement and sends a client "
        "that is drawn twice one model, so its bytes are slightly fewer than its steps say. "
        + verdict_words(family_of(rows))
    )
    return Table("FATS against retraining: steps and bytes", header, cells, note)


def models_sent(row: Row) -> float:
    """Different clients in a round of FATS, as a part of K: M·(1 − (1 − 1/M)^K)/K on average."""
    clients, slots = row["M"], row["K"]
    return float(clients * -np.expm1(slots * np.log1p(-1 / clients)) / slots)


def arrivals_table(rows: Sequence[Row]) -> Table:
    """Return the cost of each arrival of a stream."""
    header = ("dataset", "level", "method", "arrival", "runs", "at round", "steps", "exact", "MB up")
    arrived = [row for row in rows if row["kind"].startswith("arrival")]
    cells = [
        (dataset, level, method, kind.removeprefix("arrival "), len(group), mean_of(group, "round"),
         mean_of(group, "steps"), mean_of(group, "theory_steps"), mean_of(group, "bytes_up") / 1e6)
        for (dataset, level, method, kind), group in by(arrived, "dataset", "level", "method", "kind").items()
    ]  # fmt: skip
    note = (
        "at round: the round that was reached when the requests came. Only the first arrival has an exact expectation: "
        "how far a method has come by the later ones depends on the draws. " + verdict_words(family_of(rows))
    )
    return Table("What each arrival cost", header, cells, note)


def recovery_words(summaries: Sequence[Row]) -> str:
    found = [row["recovery"] for row in summaries if row["recovery"] is not None]
    if not found:
        return "not within the horizon"
    part = "" if len(found) == len(summaries) else f" ({len(found)} of {len(summaries)} runs)"
    return f"{float(np.mean(found)):.1f}{part}"


def equal_words(summaries: Sequence[Row]) -> str:
    checked = [row for row in summaries if row["retrained_digest"]]
    equal = sum(row["model_digest"] == row["retrained_digest"] for row in checked)
    return f"{equal} of {len(checked)}" if checked else "-"


def accuracy_table(rows: Sequence[Row]) -> list[Table]:
    """A line for each dataset and method, then the paired comparison."""
    header = ("dataset", "method", "runs", "optimiser", "last five rounds", "lowest", "highest", "whole set")
    cells = []
    for (dataset, method), group in by(rows, "dataset", "method").items():
        values = [row["accuracy"] for row in group]
        cells.append((
            dataset, method, len(group), group[0]["optimizer"], mean_of(group, "accuracy"), min(values), max(values),
            mean_of(group, "accuracy_full"),
        ))  # fmt: skip
    note = (
        "last five rounds: mean accuracy on 2,000 test images; of the runs the mean, the lowest and the highest. whole "
        "set: the whole test set after the last round. The central linear model is trained at one place on all "
        "training samples by L-BFGS; its L2 penalty is chosen on a tenth of them. The other one is trained by FATS "
        "with the plan and optimiser of the dataset's own model."
    )
    return [Table("Accuracy up to the requests", header, cells, note), *paired_tables(rows)]


def paired_tables(rows: Sequence[Row]) -> list[Table]:
    """FATS's accuracy before unlearning minus FedAvg's, seed by seed."""
    header = ("dataset", "runs", "FATS", "FedAvg", "linear, central", "linear, FATS", "both beat the central one",
              "difference in points", "95 % interval", "no worse than one point", "rows of")  # fmt: skip
    cells = [
        (dataset, found.difference.runs, found.fats, found.fedavg, found.linear, found.linear_by_fats,
         {None: "not measured", True: "yes", False: "no"}[found.counts], f"{100 * found.difference.mean:+.2f}",
         found.difference.words(), found.verdict, found.source)
        for dataset, found in by_dataset(rows).items()
    ]  # fmt: skip
    note = (
        "The goal: FATS is no worse than FedAvg by more than one point. It counts where both beat the linear model "
        "that was trained centrally, the stronger of the two, and is decided where the interval (Student's t over "
        "paired seeds) lies on one side of the goal."
    )
    return [Table("Accuracy before unlearning: FATS minus FedAvg, paired by seed", header, cells, note)]
