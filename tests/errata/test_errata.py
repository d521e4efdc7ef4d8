"""Every number in ``docs/errata.md``, computed from the printed algorithms; the document must say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate, product
from math import comb, log
from pathlib import Path
from typing import Any

import pytest

from fedforget.algorithm.forget import Request, forget
from fedforget.algorithm.learn import learn
from fedforget.algorithm.plan import Plan
from fedforget.evidence.laws import (
    Law,
    Oracle,
    enumerate_orders,
    stored_history,
    symbolic_server,
    textbook_law,
    total_variation,
)
from fedforget.planner.costs import (
    client_bound,
    exact_forgetting_cost,
    expected_stream_cost,
    forgetting_cost,
    sample_bound,
)
from fedforget.planner.round_law import Withdrawal
from tests.errata import printed
from tests.errata.printed import Setting, World, law_of, learn_then_forget, without
from tests.evidence.laws import law_after_forgetting, law_of_learning
from tests.mutants import variants

DOCUMENT = Path(__file__).parents[2] / "docs" / "errata.md"
FIGURES = Path(__file__).with_name("test_figures.py")  # entries 12 to 15

ONE = {0: (0, 1)}
PAIR = {0: (0, 1), 1: (0, 1)}
LARGE_AND_TWO_SMALL = {0: (0, 1, 2), 1: (0,), 2: (0,)}
ONE_STEP = Setting(K=1, b=1, E=1, R=1)
TWO_STEPS = Setting(K=1, b=1, E=2, R=1)


# ------------------------------------------------------------------------------------------------------- the document


def sections() -> dict[int, str]:
    """The entries of the document by number."""
    parts = re.split(r"^## (\d+)\. ", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def documented(entry: int) -> dict[str, str]:
    """The rows of an entry's table ``| Checked | Value |``."""
    table = sections()[entry].partition("| Checked | Value |")[2]
    return dict(re.findall(r"^\| (?!-)(.+?) \| (.+?) \|$", table, flags=re.MULTILINE))


def check(entry: int, computed: Mapping[str, object]) -> None:
    assert documented(entry) == {label: str(value) for label, value in computed.items()}


# ------------------------------------------------------------------------------------------------------ how far it is


def textbook(world: World, setting: Setting) -> Law:
    return textbook_law(world, K=setting.K, b=setting.b, E=setting.E, R=setting.R)


def as_printed(world: World, setting: Setting, client: int, sample: int | None = None, **variant: Any) -> Fraction:
    """How far the printed unlearning ends from learning on what is left."""
    law = law_of(lambda draws: learn_then_forget(draws, world, setting, client, sample, **variant))
    return total_variation(law, textbook(without(world, client, sample), setting))


def with_fedforget(world: World, setting: Setting, client: int, sample: int | None = None) -> Fraction:
    """The same distance for FedForget's own learn and forget."""
    request = ("client", client) if sample is None else ("sample", client, sample)
    law = law_after_forgetting(world, [request], K=setting.K, b=setting.b, E=setting.E, R=setting.R)
    return total_variation(law, textbook(without(world, client, sample), setting))


def distance(one: Mapping[Any, Fraction], other: Mapping[Any, Fraction]) -> Fraction:
    return total_variation(dict(one), dict(other))


def takes_part(law: Law, client: int) -> Fraction:
    """The probability that a client is in the first round."""
    return sum((chance for history, chance in law.items() if client in history[0][0]), Fraction(0))


# --------------------------------------------------------------------------------------------------------- the entries


def test_entry_1_slots_drawn_again() -> None:
    large = Setting(K=1, b=2, E=1, R=2)
    law = law_of(lambda draws: learn_then_forget(draws, PAIR, ONE_STEP, 0, 0))
    check(
        1,
        {
            "client 0 takes part, retrained": takes_part(textbook(without(PAIR, 0, 0), ONE_STEP), 0),
            "client 0 takes part, as printed": takes_part(law, 0),
            "distance, as printed": as_printed(PAIR, ONE_STEP, 0, 0),
            "distance, the coupling of Appendix B": coupled(PAIR, ONE_STEP, keep_slots=False),
            "distance, three clients, as printed": as_printed(LARGE_AND_TWO_SMALL, large, 0, 0),
            "distance, three clients, the coupling": coupled(LARGE_AND_TWO_SMALL, large, keep_slots=False),
            "distance, FedForget, both worlds": with_fedforget(PAIR, ONE_STEP, 0, 0)
            + with_fedforget(LARGE_AND_TWO_SMALL, large, 0, 0),
        },
    )


def coupled(world: World, setting: Setting, *, keep_slots: bool) -> Fraction:
    law = law_of(lambda draws: printed.coupled_history(draws, world, setting, 0, 0, keep_slots=keep_slots))
    return total_variation(law, textbook(without(world, 0, 0), setting))


@pytest.mark.parametrize(
    ("world", "setting"),
    [(PAIR, ONE_STEP), (PAIR, Setting(2, 1, 2, 1)), (LARGE_AND_TWO_SMALL, Setting(1, 2, 1, 2))],
)
def test_entry_1_replacing_batches_only_would_be_exact(world: World, setting: Setting) -> None:
    """The map of the appendix is right. Drawing the slots again with the batches is what is not."""
    assert coupled(world, setting, keep_slots=True) == 0
    assert coupled(world, setting, keep_slots=False) > 0


def test_entry_2_full_retraining() -> None:
    whole = Setting(K=1, b=2, E=1, R=1)
    check(
        2,
        {
            "distance, b = 2": as_printed(PAIR, whole, 0, 0, low_storage=True),
            "distance, b = 1": as_printed(PAIR, ONE_STEP, 0, 0, low_storage=True),
            "distance, b = 1, E = 2": as_printed(PAIR, TWO_STEPS, 0, 0, low_storage=True),
            "distance, b = 1, R = 2": as_printed(PAIR, Setting(1, 1, 1, 2), 0, 0, low_storage=True),
            "distance, a client instead of a sample": as_printed(PAIR, Setting(1, 1, 1, 2), 0, low_storage=True),
            "distance, b = 2, FedForget": with_fedforget(PAIR, whole, 0, 0),
        },
    )


def retraining_bias(clients: int, samples: int, setting: Setting) -> Fraction:
    """E[(Z - EZ)^+] with Z = (1-a)^m, m ~ Bin(R, p_c), a = 1 - (1 - b/N)^E."""
    drawn = 1 - Fraction(clients - 1, clients) ** setting.K
    used = 1 - (1 - Fraction(setting.b, samples)) ** setting.E
    law = [comb(setting.R, m) * drawn**m * (1 - drawn) ** (setting.R - m) for m in range(setting.R + 1)]
    kept = [(1 - used) ** m for m in range(setting.R + 1)]
    mean = sum(weight * z for weight, z in zip(law, kept, strict=True))
    return sum((weight * max(z - mean, Fraction(0)) for weight, z in zip(law, kept, strict=True)), Fraction(0))


@pytest.mark.parametrize("clients", [2, 3])
@pytest.mark.parametrize(
    "setting", [ONE_STEP, TWO_STEPS, Setting(1, 2, 1, 1), Setting(1, 1, 1, 2), Setting(2, 1, 1, 1), Setting(1, 1, 1, 3)]
)
def test_entry_2_formula(clients: int, setting: Setting) -> None:
    world = dict.fromkeys(range(clients), (0, 1))
    bias = retraining_bias(clients, 2, setting)
    assert as_printed(world, setting, 0, 0, low_storage=True) == bias
    assert bias <= Fraction(1, 4)


def test_entry_3_the_model_that_is_loaded() -> None:
    law = law_of(lambda draws: learn_then_forget(draws, ONE, TWO_STEPS, 0, 0))
    still_there = sum((chance for history, chance in law.items() if "(0,)" in str(history[0][1])), Fraction(0))
    check(
        3,
        {
            "the erased sample is still in the model": still_there,
            "distance, as printed": as_printed(ONE, TWO_STEPS, 0, 0),
            "distance, loading the model of the step before": as_printed(ONE, TWO_STEPS, 0, 0, load_before=True),
            "distance, FedForget": with_fedforget(ONE, TWO_STEPS, 0, 0),
            "two clients: distance, as printed": as_printed(PAIR, TWO_STEPS, 0, 0),
            "two clients: distance, loading the model of the step before": as_printed(
                PAIR, TWO_STEPS, 0, 0, load_before=True
            ),
            "two clients: distance, FedForget": with_fedforget(PAIR, TWO_STEPS, 0, 0),
        },
    )


def test_entry_4_sizes_evaluated_again() -> None:
    one, half = Fraction(1), Fraction(1, 2)
    clients, four = {0: (0,), 1: (0,)}, {0: (0, 1, 2, 3)}
    K_before, K_after = (printed.printed_sizes(rho_s=one, rho_c=one, M=M, N=1, E=1, T=1)[0] for M in (2, 1))
    b_before, b_after = (printed.printed_sizes(rho_s=half, rho_c=one, M=1, N=N, E=1, T=1)[1] for N in (4, 3))
    slots, fewer_slots = Setting(K_before, 1, 1, 1), Setting(K_after, 1, 1, 1)
    batch, smaller_batch = Setting(1, b_before, 1, 1), Setting(1, b_after, 1, 1)
    slots_law = law_of(lambda draws: learn_then_forget(draws, clients, slots, 1, later=fewer_slots))
    batch_law = law_of(lambda draws: learn_then_forget(draws, four, batch, 0, 0, later=smaller_batch))
    check(
        4,
        {
            "K before and after": f"{K_before}, {K_after}",
            "distance from learning with the old K": distance(slots_law, textbook({0: (0,)}, slots)),
            "distance from learning with the new K": distance(slots_law, textbook({0: (0,)}, fewer_slots)),
            "b before and after": f"{b_before}, {b_after}",
            "distance from learning with the old b": distance(batch_law, textbook(without(four, 0, 0), batch)),
            "distance from learning with the new b": distance(batch_law, textbook(without(four, 0, 0), smaller_batch)),
            "distances, FedForget": with_fedforget(clients, slots, 1) + with_fedforget(four, batch, 0, 0),
        },
    )


def test_entry_5_clients_of_different_size() -> None:
    unequal, setting = {0: (0, 1), 1: (0, 1, 2, 3)}, Setting(K=1, b=2, E=1, R=1)
    numbers = {"clients": 2, "clients_per_round": 1, "batch_size": 2, "local_steps": 1, "rounds": 1}
    small = {0: (0,), 1: (0, 1)}
    learned = law_of_learning(unequal, K=1, b=2, E=1, R=1)
    law = law_of(lambda draws: learn_then_forget(draws, small, ONE_STEP, 0, 0))
    check(
        5,
        {
            "ρ_S with the mean N = 3": sample_bound(3, **numbers),
            "ρ_S of the client with two samples": sample_bound(2, **numbers),
            "distance that ρ_S should bound": distance(learned, textbook(without(unequal, 0, 0), setting)),
            "batches of two among one sample": comb(1, 2),
            "an emptied client trains, as printed": takes_part(law, 0),
            "distance, emptied client, as printed": distance(law, textbook({1: (0, 1)}, ONE_STEP)),
            "distance, emptied client, FedForget": with_fedforget(small, ONE_STEP, 0, 0),
        },
    )


def test_entry_6_what_an_implementation_may_not_do() -> None:
    stretched = law_of(lambda draws: printed.stretched_draw(draws, (0, 1, 2), 2))
    assert len(set(law_of(lambda draws: printed.stretched_draw(draws, (0, 1, 2), 1)).values())) == 1  # the middle one
    world, bad = {0: (0,), 1: (0, 1)}, (1, 0)
    attempts = law_of(lambda draws: printed.redrawn_until_success(draws, world, bad))
    failed = attempts.pop(None)
    redrawn = {outcome: chance / (1 - failed) for outcome, chance in attempts.items()}
    retrained = law_of(lambda draws: printed.redrawn_until_success(draws, without(world, *bad), bad))
    answered = law_of(lambda draws: printed.average_of_answers(draws, world, 2, bad))
    everyone = law_of(lambda draws: printed.average_of_answers(draws, without(world, *bad), 2, bad))
    three = {0: (0,), 1: (0,), 2: (0,)}
    check(
        6,
        {
            "stretched: clients 0 and 1 take part": f"{stretched[0]}, {stretched[1]}",
            "stretched: distance": distance(stretched, {0: Fraction(1, 2), 1: Fraction(1, 2)}),
            "stretched: distance, FedForget": with_fedforget(three, ONE_STEP, 2),
            "drawn until success: client 1 takes part": redrawn[1, 1],
            "drawn until success: client 1 takes part, retrained": retrained[1, 1],
            "drawn until success: distance": distance(redrawn, retrained),
            "averaging over those that answered: distance": distance(answered, everyone),
        },
    )


def test_entry_7_a_request_that_depends_on_the_draws() -> None:
    """Production learn and forget over every order of priorities; the request is read off the drawn batch."""
    world, plan = {0: (0, 1, 2)}, Plan(1, 1, 1, 1)

    def look_then_erase(oracle: Oracle) -> tuple[Any, ...]:
        server = symbolic_server(world, oracle, plan)
        learn(server, 1)
        ((_, ((_, ((drawn,),)),)),) = stored_history(server)
        erased = (drawn + 1) % 3
        forget(server, [Request(0, erased)])
        again = symbolic_server(without(world, 0, erased), oracle, plan)
        learn(again, 1)
        return erased, stored_history(server), stored_history(again) == stored_history(server)

    law = enumerate_orders(look_then_erase)
    given: dict[int, Law] = {}
    for (erased, history, _), chance in law.items():
        given.setdefault(erased, {})[history] = 3 * chance
    distances = {distance(given[x], textbook(without(world, 0, x), ONE_STEP)) for x in range(3)}
    check(
        7,
        {
            "distance given the remaining data": ", ".join(map(str, distances)),
            "distance, request fixed in advance": with_fedforget(world, ONE_STEP, 0, 0),
            "equal path by path": sum(chance for (_, _, same), chance in law.items() if same),
        },
    )


def test_entry_8_statistics_outside() -> None:
    values = {0: Fraction(3), 1: Fraction(1)}
    retrained = {Fraction(0): Fraction(1)}
    kept = law_of(lambda draws: printed.centred_model(draws, values, 0, recompute_mean=False))
    recomputed = law_of(lambda draws: printed.centred_model(draws, values, 0, recompute_mean=True))
    (model,) = kept
    check(
        8,
        {
            "model, mean kept": model,
            "model, retrained": next(iter(retrained)),
            "distance, mean kept": distance(kept, retrained),
            "distance, mean taken again only when something is recomputed": distance(recomputed, retrained),
        },
    )


def test_entry_9_drawn_twice() -> None:
    twice = Setting(K=2, b=1, E=1, R=1)
    law = law_of(lambda draws: printed.trained_slot_by_slot(draws, ONE, twice, 0, 0))
    exact: dict[Any, Fraction] = {((0, (1,)), (0, (1,))): Fraction(1)}
    check(
        9,
        {
            "the erased sample is still in the model": sum(c for model, c in law.items() if (0, (0,)) in model),
            "distance": distance(law, exact),
            "sum of the weights, read as a set": printed.average_over_the_set((0, 0), {0: Fraction(1)}),
            "distance, FedForget": with_fedforget(ONE, twice, 0, 0),
        },
    )


FASHION = {"clients": 300, "local_steps": 10, "rounds": 50}


def test_entry_10_time_rises_with_rho() -> None:
    computed = {}
    for b in (3, 6, 12, 24):
        numbers = {**FASHION, "clients_per_round": 5, "batch_size": b}
        bound, cost = sample_bound(200, **numbers), forgetting_cost([Withdrawal(200, 1)], **numbers)
        computed[f"one sample, b = {b}, ρ_S = {bound}: steps"] = f"{cost.expected_steps:.1f}"
    for K in (2, 3, 6):
        numbers = {**FASHION, "clients_per_round": K}
        bound, cost = (
            client_bound(**_slots(numbers)),
            forgetting_cost([Withdrawal(200, None)], **numbers, batch_size=10),
        )
        computed[f"one client, K = {K}, ρ_C = {bound}: steps"] = f"{cost.expected_steps:.1f}"
    check(10, computed)


def _slots(numbers: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in numbers.items() if name != "local_steps"}


@pytest.mark.parametrize(
    "loss", [Withdrawal(4, 1), Withdrawal(4, 2), Withdrawal(4, None)], ids=["sample", "two samples", "client"]
)
def test_entry_10_the_expectation_rises_with_slots_and_batch(loss: Withdrawal) -> None:
    def steps(K: int, b: int) -> Fraction:
        cost = exact_forgetting_cost([loss], clients=4, clients_per_round=K, batch_size=b, local_steps=2, rounds=3)
        return cost.expected_steps

    for K, b in product(range(1, 6), range(1, 5)):
        assert steps(K, b) < steps(K + 1, b)
        assert b == 4 or loss.lost is None or steps(K, b) <= steps(K, b + 1)
    assert loss.lost is None or steps(1, 1) < steps(1, 2)


def test_entry_11_a_stream_of_requests() -> None:
    world, plan = {0: (0,), 1: (0,), 2: (0,)}, Plan(1, 1, 1, 1)

    def recomputations(oracle: Oracle) -> tuple[int, ...]:
        server = symbolic_server(world, oracle, plan)
        learn(server, 1)
        return tuple(forget(server, [Request(client)]).first_changed_step is not None for client in world)

    law = enumerate_orders(recomputations)
    expected = [sum(chance * sum(seen[:w]) for seen, chance in law.items()) for w in (1, 2, 3)]
    each = [sum(chance for seen, chance in law.items() if seen[w]) for w in (0, 1, 2)]
    ever = [sum(chance for seen, chance in law.items() if any(seen[:w])) for w in (1, 2, 3)]
    rho = client_bound(clients=3, clients_per_round=1, rounds=1)
    in_floats = {"clients": 3, "clients_per_round": 1, "batch_size": 1, "local_steps": 1, "rounds": 1}
    for w in (1, 2, 3):
        cost = expected_stream_cost([Request(client) for client in range(w)], {0: 1, 1: 1, 2: 1}, **in_floats)
        assert cost.expected_recomputations == pytest.approx(float(expected[w - 1]), rel=1e-12)
    harmonic = list(accumulate(Fraction(1, k) for k in range(1, 100)))
    check(
        11,
        {
            "ρ_C": rho,
            "the three requests recompute with probabilities": f"{each[0]}, {each[1]}, {each[2]}",
            "two requests: any recomputes, ρ·w": f"{ever[1]}, {2 * rho}",
            "two requests: expected recomputations": expected[1],
            "three requests: any recomputes, ρ·w": f"{ever[2]}, {3 * rho}",
            "three requests: expected recomputations": expected[2],
            "fewest clients, all erased one by one, that exceed 4·ρ·w": next(
                clients for clients, total in enumerate(harmonic, start=1) if total > 4
            ),
            "share of the clients that has gone when 4·ρ·w can first fail": f"{_share_gone():.4f}",
            "1,000 clients, K·R = 1: first request that exceeds 4·ρ·w": beyond_four(1000, 1)[0],
            "1,000 clients, K·R = 10: first request that exceeds 4·ρ·w": beyond_four(1000, 10)[0],
            "1,000 clients, K·R = 100: requests that exceed 4·ρ·w": len(beyond_four(1000, 100)),
        },
    )


def beyond_four(clients: int, slots: int) -> list[int]:
    """The numbers of requests, one client after the other, that recompute more than 4·ρ·w times on average."""
    world = {"clients_per_round": 1, "batch_size": 1, "local_steps": 1, "rounds": slots}
    each = [forgetting_cost([Withdrawal(1, None)], clients=left, **world).probability for left in range(clients, 0, -1)]
    bound = 4 * min(1.0, float(client_bound(clients=clients, clients_per_round=1, rounds=slots)))
    return [w for w, total in enumerate(accumulate(each), start=1) if total > bound * w * (1 + 1e-12)]


def _share_gone() -> float:
    """The x > 0 with −ln(1 − x) = 4·x, by bisection: below it the left side is smaller."""
    low, high = 0.5, 1 - 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if -log(1 - middle) < 4 * middle else (low, middle)
    return low


@pytest.mark.parametrize("slots", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("clients", [1, 2, 5, 30, 31, 100, 1000])
def test_entry_11_the_factor_four_holds_until_few_are_left(clients: int, slots: int) -> None:
    exceeding = beyond_four(clients, slots)
    assert all(w > _share_gone() * clients for w in exceeding)
    assert bool(exceeding) == (clients >= 31) or slots > 1
    one_client = {"clients": 1, "clients_per_round": 1, "batch_size": 1, "local_steps": 1, "rounds": slots}
    of_samples = expected_stream_cost([Request(0, i) for i in range(clients)], {0: clients}, **one_client)
    of_clients = expected_stream_cost(
        [Request(i) for i in range(clients)], dict.fromkeys(range(clients), 1), **{**one_client, "clients": clients}
    )
    assert of_samples.expected_recomputations == pytest.approx(of_clients.expected_recomputations, rel=1e-9)


# --------------------------------------------------------------------------------------- the document says nothing else


def test_every_entry_has_a_test() -> None:
    entries = sections()
    assert list(entries) == list(range(1, 17))
    here = {name for name in globals() if name.startswith("test_entry_")}
    here |= set(re.findall(r"^def (test_entry_\w+)", FIGURES.read_text("utf-8"), re.MULTILINE))
    for number, text in entries.items():
        named = set(re.findall(r"`(test_entry_\w+)`", text))
        assert named == {name for name in here if name.startswith(f"test_entry_{number}_")}, number


def test_every_mutant_named_exists() -> None:
    for name in re.findall(r"`\d+-(\w+)`", DOCUMENT.read_text("utf-8")):
        assert callable(getattr(variants, name)), name


def test_no_fraction_in_the_text_is_unchecked() -> None:
    for number, text in sections().items():
        prose = text.partition("| Checked | Value |")[0]
        table = " ".join(item for row in documented(number).items() for item in row)
        for fraction in re.findall(r"(?<![\w/])\d+/\d+(?![\w/])", prose):
            assert re.search(rf"(?<!\d){fraction}(?!\d)", table), f"entry {number}: {fraction}"


def test_the_contents_list_every_entry() -> None:
    text = DOCUMENT.read_text("utf-8")
    titles = re.findall(r"^## (\d+\. .+)$", text, flags=re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    listed = re.findall(r"^\d+\. \[(.+)\]\(#(.+)\)$", text, flags=re.MULTILINE)
    assert [(title.partition(". ")[2], anchor) for title, anchor in zip(titles, anchors, strict=True)] == listed


def test_law_of_walks_every_draw() -> None:
    """The printed version's own walk, against the textbook."""
    assert law_of(lambda draws: (draws.uniform("ab"), draws.uniform("xyz"))).keys() == set(product("ab", "xyz"))
    setting = Setting(2, 1, 1, 2)
    assert law_of(lambda draws: printed.fats(draws, PAIR, setting, printed.Memory())) == textbook(PAIR, setting)


def test_clients_are_exact_as_printed() -> None:
    """Algorithm 3 redraws only where the erased client was drawn: nothing else was looked at."""
    for setting in (ONE_STEP, TWO_STEPS, Setting(2, 1, 1, 2)):
        assert as_printed(PAIR, setting, 0) == 0
        assert as_printed(PAIR, setting, 0, low_storage=True) == 0
    assert as_printed(LARGE_AND_TWO_SMALL, Setting(1, 2, 1, 2), 0) == 0
