"""The claims of Section 6.2 and Appendix A.5, in our words, each with our figure and a verdict from the rows.

A claim without rows is "not measured". Comparisons of measurements are paired by seed and decided by a 95 % interval:
"not decided" if it holds the bound. "By theory" is said where exact expectations decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedforget.experiments.claims_of_draws import cheaper, rises_along, rises_with_slots, several_are_cheap
from fedforget.experiments.claims_of_lives import (
    communicates_less,
    drops_less,
    ends_higher,
    is_exact,
    learns_as_fast,
    learns_as_well,
    recovers_sooner,
    stable_in_streams,
)
from fedforget.experiments.claims_of_tradeoff import (
    best_near_half,
    levels_off,
    rho_s_matters_more,
    time_falls_with_rho_s,
)
from fedforget.experiments.data_used import is_of_published_data
from fedforget.experiments.differences import ERROR_RATE, decided_together
from fedforget.experiments.rows import PAPER
from fedforget.experiments.tables import Table
from fedforget.experiments.tradeoff import BATCH, SLOTS
from fedforget.experiments.verdicts import CONDITION, HOLDS, UNKNOWN, Comparison, Found, Results

_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Claim:
    section: str
    says: str
    judge: Callable[[Results], Found | None]

    def found(self, results: Results) -> Found:
        return self.judge(results) or Found("-", UNKNOWN)


def _later(_: Results) -> Found | None:
    """Return None ("not measured"): FR² and membership inference are not implemented."""
    return None


_RULES = (
    "Comparisons are paired by seed. A claim holds or does not hold where the 95 % interval of the difference lies on "
    "one side of its bound, and is not decided where it holds the bound or there is one run. A run that does not "
    "recover within its horizon counts with the rounds it was watched for, which bounds the difference on one side: it "
    "can then be decided in that direction only. Exact expectations decide what has them: by theory."
)


def claims_table(results: Results) -> Table:
    """Every claim, judged from rows of the paper's scale and of the published data only."""
    results = {name: [row for row in rows if row["scale"] == PAPER and is_of_published_data(row)]
               for name, rows in results.items()}  # fmt: skip
    found = {claim: claim.found(results) for claim in CLAIMS}
    lines = [(claim.section, claim.says, each.figure, each.verdict) for claim, each in found.items()]
    header = ("section", "the paper's claim, in our words", "our figure", "verdict")
    return Table("Claim by claim", header, lines, f"{_RULES} {family_words(found)}")


def family_words(found: dict[Claim, Found]) -> str:
    """What the intervals of all verdicts together are worth."""
    intervals: list[tuple[Claim, Comparison]] = [(claim, each) for claim, f in found.items() for each in f.comparisons]
    if not intervals:
        return "No verdict rests on an interval yet."
    count, chosen = len(intervals), [each.is_decided for _, each in intervals]
    stays = decided_together([each.chance for _, each in intervals])
    rate = min(1.0, count * ERROR_RATE)
    words = (
        f'Verdicts without "by theory", but for the equality of bytes, rest on {count} intervals of 95 % (Student\'s t '
        f"over paired seeds, which assumes normal differences). If every true difference were exactly at its bound, "
        f"{count * ERROR_RATE:.1f} of them would be decided by mistake on average, and at least one with a "
        f"probability of at most {rate:.2f}. {sum(chosen)} are decided, each on its own; {sum(stays)} stay decided if "
        f"the chance of any mistake among all {count} is to be at most {ERROR_RATE:g} (Holm)"
    )
    kept = dict.fromkeys(f"{claim.section} \"{claim.says}\" ({each.case})"
                         for (claim, each), stay in zip(intervals, stays, strict=True) if stay)  # fmt: skip
    return words + (f": {'; '.join(kept)}." if kept else ".")


CLAIMS = (
    Claim("6.2.1", "Before unlearning FATS is as accurate as FedAvg (no worse than one point)", learns_as_well),
    Claim("6.2.1", "FATS learns as fast as FedAvg", learns_as_fast),
    Claim("6.2.1", "Accuracy drops less with FATS than with retraining from scratch", drops_less("performance")),
    Claim("6.2.1", "FATS recovers its accuracy in fewer rounds than retraining from scratch", recovers_sooner),
    Claim("6.2.1", "FATS communicates less than retraining from scratch", communicates_less),
    Claim("6.2.1", "More accuracy remains after unlearning with FATS than with FRS", ends_higher("performance")),
    Claim("6.2.1", "FR² drops further and recovers more slowly than FATS", _later),
    Claim("6.2.1", "FR² fluctuates on MNIST, Fashion-MNIST and FEMNIST", _later),
    Claim("6.2.2", "One sample: less time than FRS", cheaper("sample", 1.0, HOLDS)),
    Claim("6.2.2", "One client: more time for larger K", rises_with_slots),
    Claim(
        "6.2.2",
        "One client: at most half of FRS's time",
        cheaper("client", _HALF, f"{CONDITION}: one client, ρ_C ≤ 1"),
    ),
    Claim("6.2.3", "Time rises with the number of requests", rises_along("requests")),
    Claim("6.2.3", "Time rises with ρ_C at a fixed number of requests", rises_along("K")),
    Claim("6.2.3", "For suitable K, several requests stay far below FRS", several_are_cheap),
    Claim("6.2.4", "Unlearning time falls as ρ_S grows, then levels off", time_falls_with_rho_s),
    Claim("6.2.4", "Accuracy rises fast with ρ_S, then levels off", levels_off(BATCH, "rho_s")),
    Claim(
        "6.2.4",
        "Accuracy levels off beyond ρ_C = 0.5, while time goes on rising",
        levels_off(SLOTS, "rho_c", with_time=True),
    ),
    Claim("6.2.4", "The best trade-off is near ρ_C = 0.5", best_near_half),
    Claim("6.2.4", "ρ_S matters more for accuracy than ρ_C", rho_s_matters_more),
    Claim("6.2.5", "FATS unlearns exactly", is_exact),
    Claim("6.2.5", "Membership inference does no better than guessing", _later),
    Claim("6.2.5", "Membership inference does as well against FATS as against FRS", _later),
    Claim("6.2.5", "Membership inference has a very low precision against FR² on FEMNIST", _later),
    Claim("A.5", "FATS ends with the highest accuracy under streams of requests", ends_higher("streaming")),
    Claim("A.5", "FATS stays stable under streams of requests", stable_in_streams),
    Claim("A.5", "Accuracy drops less with FATS than with FRS under streams of requests", drops_less("streaming")),
)
