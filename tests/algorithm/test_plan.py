"""The plan: K and b from the formulas, exactly; refusals that say what would be accepted."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedforget.algorithm.plan import LocalOptimizer, Plan, ServerOptimizer, check_eval_every, goal_of
from fedforget.errors import InvalidInput, PlanRefused

MNIST = {"rho_s": 0.25, "rho_c": 0.5, "local_steps": 10, "rounds": 30, "clients": 300, "samples": 200}


def made(**values: Any) -> Plan:
    return Plan.from_rho(**values)


# ------------------------------------------------------------------------------------------------------------ formulas


@pytest.mark.parametrize(
    ("given_values", "expected"),
    [
        (MNIST, (5, 10, 10, 30)),
        (MNIST | {"rounds": None, "steps": 300}, (5, 10, 10, 30)),
        (MNIST | {"clients": None, "samples": None, "sizes": [150, 250] * 150}, (5, 10, 10, 30)),
        (MNIST | {"rho_s": 1, "rho_c": 1}, (10, 20, 10, 30)),
        (MNIST | {"rho_c": 0.1, "rho_s": 0.05}, (1, 10, 10, 30)),
        (MNIST | {"local_steps": 20, "rounds": 15}, (10, 5, 20, 15)),
        ({"rho_s": 0.5, "rho_c": 0.25, "local_steps": 5, "rounds": 20, "clients": 160, "samples": 64}, (2, 25, 5, 20)),
    ],
)
def test_slots_and_batch_sizes_are_the_formulas(given_values, expected):
    plan = made(**given_values)
    assert (plan.clients_per_round, plan.batch_size, plan.local_steps, plan.rounds) == expected
    assert plan.steps == plan.local_steps * plan.rounds


@st.composite
def feasible(draw: st.DrawFn) -> tuple[Decimal, Decimal, dict[str, int]]:
    """ρ_S and ρ_C as decimals of three digits, and E, R, M, N for which they give K ≥ 1 and 1 ≤ b ≤ N."""
    c, local_steps = draw(st.integers(1, 1000)), draw(st.integers(1, 30))
    clients = draw(st.integers(-(-1000 // c), 3000))
    samples = draw(st.integers(-(-c * local_steps // 1000), 3000))
    s = draw(st.integers(-(-c * local_steps // samples), min(1000, c * local_steps)))
    rounds = draw(st.integers(1, c * clients // 1000))
    numbers = {"local_steps": local_steps, "rounds": rounds, "clients": clients, "samples": samples}
    return Decimal(s) / 1000, Decimal(c) / 1000, numbers


@settings(max_examples=300)
@given(feasible())
def test_decimals_are_taken_as_they_are_written(values):
    """0.29 · 100 is 28.999999999999996 in floating point, and 29 here."""
    rho_s, rho_c, numbers = values
    K = math.floor(Fraction(rho_c) * numbers["clients"] / numbers["rounds"])
    b = math.floor(Fraction(rho_s) * numbers["samples"] / (Fraction(rho_c) * numbers["local_steps"]))
    for kind in (float, np.float64, Fraction, Decimal, str):
        plan = made(rho_s=kind(rho_s), rho_c=kind(rho_c), **numbers)
        assert (plan.clients_per_round, plan.batch_size) == (K, b)


@pytest.mark.parametrize(("rho", "K"), [(0.29, 29), (0.57, 57), (0.58, 58), (0.1 * 3, 30), (0.1 * 7, 70), (1 / 3, 33)])
def test_slots_are_computed_in_fractions_not_floats(rho, K):
    plan = made(rho_s=0.01, rho_c=rho, local_steps=1, rounds=1, clients=100, samples=1000)
    assert plan.clients_per_round == K


def test_floats_would_lose_one_client():
    assert math.floor(0.29 * 100) == 28
    assert math.floor(0.58 * 100) == 57


@pytest.mark.parametrize("sizes", [[1, 2], [3, 3, 4], [7]])
def test_the_number_of_samples_is_the_exact_mean_of_the_sizes(sizes):
    mean = Fraction(sum(sizes), len(sizes))
    plan = made(rho_s=1, rho_c=1, local_steps=1, rounds=1, sizes=iter(sizes))
    assert (plan.clients_per_round, plan.batch_size) == (len(sizes), math.floor(mean))


def test_other_settings_are_passed_on():
    local, server = LocalOptimizer(0.3, 0.9), ServerOptimizer("fedadam")
    plan = made(**MNIST, local=local, server=server, keep="ends")
    assert (plan.local, plan.server, plan.keep) == (local, server, "ends")


def test_the_realised_rho_is_that_of_the_integers():
    plan = Plan(5, 10, 10, 30)
    assert plan.realised_rho_c(300) == 0.5
    assert plan.realised_rho_s([200] * 300) == 0.25
    assert plan.realised_rho_s([200] * 299 + [100]) == 0.5  # the worst client's
    assert plan.realised_rho_s([200] * 299 + [4]) == 5.0  # min(b, N_k) / N_k = 1
    assert plan.realised_rho_s([200] * 300 + [0]) == 0.25  # an empty client is none
    assert (plan.realised_rho_c(0), plan.realised_rho_s([]), plan.realised_rho_s([0])) == (0.0, 0.0, 0.0)


def test_slots_and_batch_sizes_given_directly_accept_any_rho():
    plan = Plan(50, 100, 10, 30)
    assert plan.realised_rho_c(10) == 150.0
    assert plan.realised_rho_s([5] * 10) == 1500.0


@given(feasible())
def test_realised_rho_is_at_most_the_given_rho(values):
    rho_s, rho_c, numbers = values
    plan = made(rho_s=rho_s, rho_c=rho_c, **numbers)
    uses_of_a_client = plan.clients_per_round * plan.rounds
    assert Fraction(uses_of_a_client, numbers["clients"]) <= rho_c
    uses_of_a_sample = plan.batch_size * plan.clients_per_round * plan.steps
    assert Fraction(uses_of_a_sample, numbers["samples"] * numbers["clients"]) <= rho_s


# ------------------------------------------------------------------------------------------------ steps, rounds, models


@given(st.integers(1, 50), st.integers(1, 10**6), st.data())
def test_round_of_inverts_step_of(local_steps, round_, data):
    plan = Plan(1, 1, local_steps, 2**31 - 1)
    index = data.draw(st.integers(0, local_steps - 1))
    assert plan.step_of(1, 0) == 1
    assert plan.step_of(round_, index) == (round_ - 1) * local_steps + index + 1
    assert plan.round_of(plan.step_of(round_, index)) == round_


@pytest.mark.parametrize(
    ("keep", "kept"), [("every", range(8)), (1, range(8)), (2, [0, 2, 4, 6, 7]), (3, [0, 3, 6, 7]), ("ends", [0, 7])]
)
def test_kept_rounds_follow_the_keep_setting(keep, kept):
    plan = Plan(1, 1, 1, 9, keep=keep)
    assert [round_ for round_ in range(8) if plan.is_kept(round_, 7)] == list(kept)


# ------------------------------------------------------------------------------------------------------------ refusals


def refusal(**values: Any) -> PlanRefused:
    with pytest.raises(PlanRefused) as refused:
        made(**values)
    assert refused.value.message
    assert refused.value.hint
    return refused.value


@pytest.mark.parametrize("name", ["rho_s", "rho_c"])
@pytest.mark.parametrize(
    "value", [0, 0.0, -0.1, 1.0000001, 2, math.nan, math.inf, -math.inf, np.float64("nan"), Fraction(3, 2)], ids=str
)
def test_a_rho_outside_0_1_is_refused(name, value):
    error = refusal(**MNIST | {name: value})
    assert error.message.startswith(f"{name} must lie in (0, 1]")
    assert str(value) in error.message


@pytest.mark.parametrize(
    "values",
    [
        {"clients": None},
        {"samples": None},
        {"clients": 0},
        {"clients": -3},
        {"samples": 0},
        {"samples": 0.5},
        {"samples": math.nan},
        {"samples": math.inf},
        {"clients": None, "samples": None, "sizes": []},
        {"clients": None, "samples": None, "sizes": [0], "rounds": 1, "rho_c": 1},
        {"rounds": None},
        {"rounds": 0},
        {"rounds": -1},
        {"local_steps": 0},
        {"local_steps": -1},
        {"rounds": None, "steps": 0},
        {"rounds": None, "steps": -10},
    ],
    ids=str,
)
def test_incomplete_or_impossible_plan_is_refused_with_a_reason(values):
    refusal(**MNIST | values)


@pytest.mark.parametrize("field", ["clients_per_round", "batch_size", "local_steps", "rounds"])
@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, True, None, "3", math.nan, 2**31])
def test_the_four_numbers_are_whole_and_from_1(field, value):
    numbers = {"clients_per_round": 5, "batch_size": 10, "local_steps": 10, "rounds": 30}
    with pytest.raises(PlanRefused, match=field.replace("_", " ")) as refused:
        Plan(**numbers | {field: value})
    assert repr(value) in refused.value.message


@pytest.mark.parametrize("keep", ["all", "", 0, -2, True, 1.5, None])
def test_unknown_keep_option_is_refused(keep):
    with pytest.raises(PlanRefused, match="cannot keep models"):
        Plan(1, 1, 1, 1, keep=keep)


@pytest.mark.parametrize(
    "values",
    [
        *({"lr": value} for value in (0, -1, math.nan, math.inf)),
        *({"momentum": value} for value in (-0.1, 1, math.nan)),
        *({"weight_decay": value} for value in (-0.1, math.inf, math.nan)),
        *({"prox": value} for value in (-0.1, math.inf, math.nan)),
    ],
    ids=str,
)
def test_impossible_local_optimizer_is_refused(values):
    with pytest.raises(PlanRefused):
        LocalOptimizer(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"name": "adam"},
        *({"lr": value} for value in (0, -1, math.nan, math.inf)),
        *({beta: value} for beta in ("beta1", "beta2") for value in (-0.1, 1, math.nan)),
        *({"tau": value} for value in (0, -1, math.nan, math.inf)),
    ],
    ids=str,
)
def test_impossible_server_optimizer_is_refused(values):
    with pytest.raises(PlanRefused):
        ServerOptimizer(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rho_c": 0.05}, r"rho_c = 0\.05 leaves less than one client a round \(K = .* = 0\.5\)"),
        ({"rho_s": 0.02}, r"rho_s = 0\.02 leaves less than one sample a batch \(b = .* = 0\.8\)"),
        ({"rho_s": 1, "rho_c": 0.1, "local_steps": 5}, r"rho_s = 1 asks for batches of 400, .* has 200 samples"),
        ({"rounds": None, "steps": 305}, r"305 steps are not a whole number of rounds of 10"),
    ],
    ids=["K of 0", "b of 0", "b above N", "T not a multiple of E"],
)
def test_an_impossible_plan_is_refused_with_its_numbers(values, message):
    assert re.search(message, refusal(**MNIST | values).message)


NUMBER = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"
CHANGES = {
    rf"rho_c = {NUMBER}": ("rho_c", float),
    rf"rho_s = {NUMBER}": ("rho_s", float),
    rf"rho_c\*E = {NUMBER}": ("rho_s", float),
    r"(\d+) rounds?\b": ("rounds", int),
    r"(\d+) clients?\b(?! per)": ("clients", int),
    r"(\d+) samples?\b": ("samples", int),
    r"(\d+) local steps?\b": ("local_steps", int),
}


def nearest(hint: str) -> list[dict[str, Any]]:
    """What a hint says would do: options, each with everything that has to change."""
    options = [
        {name: kind(found[1]) for shape, (name, kind) in CHANGES.items() if (found := re.search(shape, option))}
        for option in hint.split(" or ")
    ]
    return [option for option in options if option]


def refused(values: dict[str, Any]) -> PlanRefused | None:
    try:
        made(**values)
    except PlanRefused as error:
        return error
    return None


def check_nearest(values: dict[str, Any]) -> None:
    """Whatever a refusal calls feasible is accepted."""
    error = refused(values)
    if error is None:
        return
    changes = nearest(error.hint)
    assert changes, f"no nearest feasible value in {error.hint!r}"
    for change in changes:
        again = refused(values | change)
        assert again is None, f"{values}: refused with {error.hint!r}; {change} gives {again}"
        if "rho_s" in change:  # what lies nearer to what was asked for is not feasible, or rounded to the same plan
            asked, found = Fraction(str(values["rho_s"])), Fraction(str(change["rho_s"]))
            closer = values | change | {"rho_s": found + (asked - found) / 100}
            assert refused(closer) is not None or made(**closer) == made(**values | change), (values, change)


@pytest.mark.parametrize("name", ["rho_s", "rho_c"])
@pytest.mark.parametrize(("value", "nearest_value"), [(1.0000001, 1), (7, 1), (0, None), (-0.1, None), ("nan", None)])
def test_rho_outside_0_1_names_the_nearest_feasible_rho(name, value, nearest_value):
    """At both ends: 1, and what one client a round, or one sample a batch, amounts to."""
    lowest = {"rho_s": 0.5 * 10 / 200, "rho_c": 30 / 300}[name]
    values = MNIST | {"rho_s": 0.5, "rho_c": 0.5} | {name: value}
    [change] = nearest(refusal(**values).hint)
    assert change[name] == pytest.approx(nearest_value or lowest)
    assert refused(values | change) is None


def case(rho_s: Any, rho_c: Any, local_steps: int, rounds: int, clients: int, samples: Any) -> dict[str, Any]:
    return {
        "rho_s": rho_s,
        "rho_c": rho_c,
        "local_steps": local_steps,
        "rounds": rounds,
        "clients": clients,
        "samples": samples,
    }


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        ({"rho_c": 0.05}, [{"rho_c": 0.1}, {"rounds": 15}]),
        ({"rho_s": 0.02}, [{"rho_s": 0.025}, {"local_steps": 8}]),
        ({"rho_s": 1, "rho_c": 0.1, "local_steps": 5}, [{"rho_s": 0.5}]),
        ({"rho_c": 0.1, "clients": 5}, [{"clients": 300}]),
    ],
    ids=["K of 0", "b of 0", "b above N", "too few clients for any number of rounds"],
)
def test_the_hint_has_the_nearest_values(values, changes):
    assert nearest(refusal(**MNIST | values).hint) == changes


RHOS = st.fractions(Fraction(1, 1000), 1, max_denominator=1000)


@settings(max_examples=400)
@given(
    st.builds(
        case,
        st.one_of(RHOS, st.sampled_from([0.01, 0.1, 0.25, 0.5, 1])),
        st.one_of(RHOS, st.sampled_from([0.01, 0.1, 0.25, 0.5, 1])),
        st.integers(1, 30),
        st.integers(1, 60),
        st.integers(1, 400),
        st.one_of(st.integers(1, 300), st.fractions(1, 300, max_denominator=60)),
    )
)
@example(case(0.25, 0.05, 10, 30, 300, 200))
@example(case(0.02, 0.5, 10, 30, 300, 200))
@example(case(1, 0.1, 5, 30, 300, 200))
@example(case(0.25, 0.1, 10, 30, 5, 100))  # fewer clients than any rounds allow
@example(case(0.2, 1, 3, 1, 1, 1))  # neither rho_s nor local steps can do it
@example(case(1, 0.2, 1, 1, 3, 10))  # rho_c too low for K, rho_s too high for b
@example(case(0.01, 0.001, 1, 10, 100, 3))  # a rho_c high enough for K leaves nothing for b
def test_the_nearest_feasible_plan_is_feasible(values):
    check_nearest(values)


@given(st.integers(-30, 400), st.integers(1, 40))
def test_the_nearest_feasible_numbers_of_steps_are_feasible_and_nearest(steps, local_steps):
    values = {"rho_s": 1, "rho_c": 1, "local_steps": local_steps, "clients": 10**6, "samples": 10**6}
    if steps >= 1 and steps % local_steps == 0:
        assert made(steps=steps, **values).rounds == steps // local_steps
        return
    error = refusal(steps=steps, **values)
    numbers = [int(number) for number in re.findall(r"\d+", error.hint)]
    assert [made(steps=number, **values).steps for number in numbers] == numbers
    assert min(abs(number - steps) for number in numbers) == min(
        abs(local_steps * rounds - steps) for rounds in range(1, 403)
    )


@pytest.mark.parametrize("keep", ["every", 1, 2, 3, 7, 10, 11, 40, "ends"])
def test_witnessed_rounds_start_from_a_state_that_stays(keep):
    plan = Plan(1, 1, 1, 100, keep=keep)
    witnessed = [round_ for round_ in range(1, 101) if plan.has_witness(round_)]
    assert witnessed[0] == 1
    assert all(plan.is_kept(round_ - 1, done) for round_ in witnessed for done in range(round_, 101))
    if keep != "ends":
        kept = 1 if keep == "every" else keep
        assert [round_ for round_ in witnessed if round_ <= 10] == list(range(1, 11, kept))
        late = [round_ for round_ in witnessed if round_ > 10]
        assert {later - earlier for earlier, later in pairwise(late)} == {-(-10 // kept) * kept}
    for done in range(101):
        assert plan.last_witnessed_round(done) == max((r for r in witnessed if r <= done), default=0)


def test_nearest_sampling_rate_of_a_very_large_client_is_rounded_down():
    """Six digits rounded up would ask for more samples than it has."""
    values = {"rho_c": 0.1234561, "local_steps": 1, "rounds": 1, "clients": 100, "samples": 10**7}
    assert nearest(refusal(rho_s=1, **values).hint) == [{"rho_s": 0.123456}]
    assert made(rho_s="0.123456", **values).batch_size <= 10**7


@pytest.mark.parametrize(("until", "goal"), [(None, 7), (0, 0), (3, 3), (7, 7)])
def test_goal_is_the_round_asked_for_or_the_last(until, goal):
    assert goal_of(7, until) == goal


@pytest.mark.parametrize("until", [-1, 8])
def test_goal_outside_of_the_plan_is_refused(until):
    with pytest.raises(InvalidInput, match=f"round {until} is not in the plan"):
        goal_of(7, until)


def test_measuring_interval_is_a_whole_number_from_one():
    check_eval_every(None)
    check_eval_every(1)
    with pytest.raises(InvalidInput, match="every 0 rounds"):
        check_eval_every(0)
