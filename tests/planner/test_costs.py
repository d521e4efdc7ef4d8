"""The cost of forgetting against every draw of tiny worlds, against fractions, and against simulated draws."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.algorithm.forget import Request
from fedforget.planner.costs import (
    ForgettingCost,
    client_bound,
    exact_forgetting_cost,
    expected_stream_cost,
    forgetting_cost,
    sample_bound,
    sample_change,
)
from fedforget.planner.geometric import change_within, expected_rounds_redone
from fedforget.planner.round_law import Training, Withdrawal, client_change, exact_miss, exact_stay

NOTHING = ForgettingCost(0.0, 0.0, 0.0)
FALSE_ALARM = 1e-6


def world(clients: int, slots: int, batch: int, steps: int, rounds: int) -> dict[str, int]:
    return {
        "clients": clients,
        "clients_per_round": slots,
        "batch_size": batch,
        "local_steps": steps,
        "rounds": rounds,
    }


def numbers(cost: ForgettingCost) -> tuple:
    return cost.probability, cost.expected_steps, cost.expected_steps_from_first_use


def close(cost: ForgettingCost, exact: ForgettingCost, *, relative: float = 1e-12) -> bool:
    return all(
        math.isclose(number, float(wanted), rel_tol=relative)
        for number, wanted in zip(numbers(cost), numbers(exact), strict=True)
    )


# -------------------------------------------------------------------------------------------- every draw of tiny worlds


def first_uses(loss: Withdrawal, batch: int, steps: int) -> Iterator[int | None]:
    """The first step with a lost sample, once for each equally likely sequence of batches. Samples 0, 1, ... go."""
    if loss.lost is None:
        yield 1
        return
    batches = list(itertools.combinations(range(loss.samples), min(batch, loss.samples)))
    for drawn in itertools.product(batches, repeat=steps):
        held = (step for step, chosen in enumerate(drawn, start=1) if any(sample < loss.lost for sample in chosen))
        yield next(held, None)


def round_law(
    losses: Sequence[Withdrawal], clients: int, slots: int, batch: int, steps: int
) -> dict[int | None, Fraction]:
    """The law of the first changed step of a round: all tuples of slots, all batches of the distinct clients drawn."""
    law: defaultdict[int | None, Fraction] = defaultdict(Fraction)
    for filled in itertools.product(range(clients), repeat=slots):
        drawn = [losses[client] for client in sorted(set(filled)) if client < len(losses)]
        outcomes = list(itertools.product(*(first_uses(loss, batch, steps) for loss in drawn)))
        for outcome in outcomes:
            first = min((step for step in outcome if step is not None), default=None)
            law[first] += Fraction(1, clients**slots * len(outcomes))
    return law


def enumerated_cost(losses: Sequence[Withdrawal], *, clients, clients_per_round, batch_size, local_steps, rounds):
    law = round_law(losses, clients, clients_per_round, batch_size, local_steps)
    probability = from_round = from_step = Fraction(0)
    for history in itertools.product(law.items(), repeat=rounds):
        weight = math.prod((weight for _, weight in history), start=Fraction(1))
        changed = next(((r, step) for r, (step, _) in enumerate(history) if step is not None), None)
        if changed is not None:
            r, step = changed
            probability += weight
            from_round += weight * local_steps * (rounds - r)
            from_step += weight * (local_steps * (rounds - r) - step + 1)
    return ForgettingCost(probability, from_round, from_step)


TINY = [
    pytest.param([Withdrawal(3, 1)], world(3, 2, 2, 2, 3), id="one sample"),
    pytest.param([Withdrawal(4, 2)], world(2, 2, 2, 2, 2), id="two samples of one client"),
    pytest.param([Withdrawal(3, 1)], world(2, 1, 5, 2, 2), id="batch is the whole client"),
    pytest.param([Withdrawal(2, 2)], world(3, 2, 1, 2, 2), id="every sample of a client"),
    pytest.param([Withdrawal(3, None)], world(3, 2, 2, 2, 3), id="one client"),
    pytest.param([Withdrawal(3, None), Withdrawal(2, None)], world(4, 3, 1, 2, 2), id="two clients"),
    pytest.param([Withdrawal(3, 1), Withdrawal(3, 1)], world(3, 2, 1, 2, 2), id="two clients lose a sample each"),
    pytest.param(
        [Withdrawal(3, 1), Withdrawal(2, 1), Withdrawal(4, 2)], world(3, 2, 2, 2, 2), id="three clients lose samples"
    ),
    pytest.param(
        [Withdrawal(3, None), Withdrawal(3, 1)], world(3, 3, 1, 2, 2), id="a client leaves, another loses a sample"
    ),
    pytest.param(
        [Withdrawal(3, None), Withdrawal(3, 1), Withdrawal(2, 1)], world(4, 2, 1, 3, 2), id="a client and two samples"
    ),
    pytest.param([Withdrawal(2, None), Withdrawal(3, None)], world(2, 2, 1, 2, 2), id="all clients leave"),
    pytest.param([Withdrawal(3, 0), Withdrawal(3, 1)], world(2, 2, 1, 2, 2), id="one loses nothing"),
]


@pytest.mark.parametrize(("losses", "setting"), TINY)
def test_every_draw_of_a_tiny_world(losses, setting):
    exact = exact_forgetting_cost(losses, **setting)
    assert exact == enumerated_cost(losses, **setting)
    assert close(forgetting_cost(losses, **setting), exact)


def stays(losses: Sequence[Withdrawal], setting: dict[str, int], steps: range) -> list[Fraction]:
    training = Training(**setting)
    misses = [exact_miss(loss, training.batch_size) for loss in losses]
    return [exact_stay([miss**step for miss in misses], training) for step in steps]


def test_the_enumeration_tells_wrong_laws_apart():
    losses, setting = [Withdrawal(3, 1), Withdrawal(3, 1)], world(3, 2, 1, 2, 2)
    right = enumerated_cost(losses, **setting)
    steps, rounds = 2, 2
    q = stays(losses, setting, range(steps + 1))
    g = (1 - q[steps] ** rounds) / (1 - q[steps])
    assert right.probability == 1 - q[steps] ** rounds
    assert right.expected_steps_from_first_use == steps * rounds - g * sum(q[1:])
    assert right.expected_steps == steps * (rounds - q[steps] * g)

    assert right.probability != 2 * sample_bound(3, **setting)  # the union bound of Theorem 1
    assert right.expected_steps_from_first_use != steps * rounds - g * sum(q[:steps])  # q from 0: t_S not recomputed
    assert right.expected_steps != steps * (rounds - g)  # the changed round not recomputed
    one = exact_forgetting_cost(losses[:1], **setting).probability
    assert right.probability != 1 - (1 - one) ** 2  # the clients as if their slots were independent
    in_round = [1 - (1 - Fraction(1, 3)) ** 2, 1 - Fraction(2, 3) ** steps]
    assert q[steps] != 1 - 2 * math.prod(in_round)  # the two clients as if never drawn together


# ------------------------------------------------------------------------------------------------- floats and fractions


@st.composite
def worlds(draw):
    clients = draw(st.integers(1, 40))
    whole_or_part = st.integers(0, 30).flatmap(
        lambda samples: st.builds(Withdrawal, st.just(samples), st.none() | st.integers(0, samples))
    )
    losses = draw(st.lists(whole_or_part, max_size=min(clients, 8)))
    losses = (losses * draw(st.integers(1, 3)))[:clients]
    steps, rounds = draw(st.integers(1, 6)), draw(st.integers(0, 40))
    return losses, world(clients, draw(st.integers(1, 8)), draw(st.integers(1, 20)), steps, rounds)


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_floats_agree_with_fractions(case):
    losses, setting = case
    exact = exact_forgetting_cost(losses, **setting)
    assert close(forgetting_cost(losses, **setting), exact)
    assert 0 <= exact.expected_steps_from_first_use <= exact.expected_steps
    assert exact.expected_steps <= setting["local_steps"] * setting["rounds"] * exact.probability


@given(worlds())
@settings(max_examples=100, deadline=None)
def test_the_bounds_of_the_paper_hold(case):
    losses, setting = case
    bound = Fraction(0)
    for loss in losses:
        if loss.lost is None:
            bound += client_bound(**{name: setting[name] for name in ("clients", "clients_per_round", "rounds")})
        elif loss.lost:
            bound += loss.lost * sample_bound(loss.samples, **setting)
    assert exact_forgetting_cost(losses, **setting).probability <= bound


@pytest.mark.parametrize(
    "losses",
    [
        [Withdrawal(10**7, 1)],
        [Withdrawal(10**7, 300)],
        [Withdrawal(10**7, 1)] * 40,
        [Withdrawal(10**7 - j, 1 + j) for j in range(6)],
        [Withdrawal(3, None)] * 5 + [Withdrawal(10**6, 2)],
    ],
    ids=["one sample", "300 samples", "40 alike", "6 unlike", "5 clients and a sample"],
)
def test_large_worlds_keep_their_digits(losses):
    setting = world(10**6, 3, 16, 2, 25)
    exact = exact_forgetting_cost(losses, **setting)
    assert close(forgetting_cost(losses, **setting), exact)


def test_many_groups_of_clients_keep_their_digits():
    losses = [Withdrawal(40 + j % 7, 1 + j % 3) for j in range(120)]
    setting = world(150, 2, 5, 3, 2)
    assert close(forgetting_cost(losses, **setting), exact_forgetting_cost(losses, **setting))


def test_a_million_rounds_keep_their_digits():
    clients, slots, batch, samples, rounds = 10**6, 10, 8, 10**7, 10**6
    with localcontext(prec=60):
        change = (1 - (1 - Decimal(1) / clients) ** slots) * batch / samples
        stay = 1 - change
        probability = 1 - stay**rounds
        steps = rounds - stay * probability / change
        wanted = ForgettingCost(*(Fraction(number) for number in (probability, steps, steps)))
    assert close(forgetting_cost([Withdrawal(samples, 1)], **world(clients, slots, batch, 1, rounds)), wanted)


def test_many_local_steps_are_the_same_in_pieces(monkeypatch):
    losses, setting = [Withdrawal(9, 2), Withdrawal(9, 2), Withdrawal(7, 1)], world(9, 2, 2, 50, 3)
    whole = forgetting_cost(losses, **setting)
    monkeypatch.setattr("fedforget.planner.round_law._TABLE_CELLS", 30)
    assert close(forgetting_cost(losses, **setting), whole, relative=1e-14)


def test_cost_of_a_huge_batch_is_computed_quickly():
    cost = forgetting_cost([Withdrawal(10**7, 5 * 10**6)], **world(10, 1, 10**6, 3, 1))
    assert cost.probability == pytest.approx(0.1, rel=1e-15)


# ------------------------------------------------------------------------------------------------------ simulated draws


def simulated(generator: np.random.Generator, losses: Sequence[Withdrawal], setting: dict[str, int], histories: int):
    """For each history the first changed round and the first changed step, both from 0; R and T if nothing changes."""
    steps, rounds = setting["local_steps"], setting["rounds"]
    slots = generator.integers(setting["clients"], size=(histories, rounds, setting["clients_per_round"]))
    changed = np.zeros((histories, rounds, steps), bool)
    for client, loss in enumerate(losses):
        drawn = (slots == client).any(axis=2)
        if loss.lost is None:
            changed |= drawn[..., np.newaxis]
            continue
        order = generator.random((histories, rounds, steps, loss.samples)).argsort(axis=3)
        holds = (order[..., : setting["batch_size"]] < loss.lost).any(axis=3)
        changed |= drawn[..., np.newaxis] & holds
    flat = np.concatenate([changed.reshape(histories, -1), np.ones((histories, 1), bool)], axis=1)
    first = flat.argmax(axis=1)
    return first // steps, first


def alarm(observed, expected, *, largest: float) -> bool:
    """Whether the mean of values in [0, largest] is further off than Hoeffding allows with probability 1e-6."""
    allowed = largest * math.sqrt(math.log(2 / FALSE_ALARM) / (2 * len(observed)))
    return bool(abs(observed.mean() - float(expected)) > allowed)


@pytest.mark.parametrize(
    ("seed", "losses"),
    [
        (1, [Withdrawal(12, 1)]),
        (2, [Withdrawal(12, None)]),
        (3, [Withdrawal(12, 2), Withdrawal(9, 1), Withdrawal(7, 3), Withdrawal(12, None)]),
    ],
    ids=["one sample", "one client", "a client and samples of three"],
)
def test_simulated_draws(seed, losses):
    """Three comparisons in each of three worlds, each with a false alarm in at most one of a million seeds."""
    setting = world(8, 3, 4, 3, 6)
    steps, total = setting["local_steps"], setting["local_steps"] * setting["rounds"]
    changed_round, first = simulated(np.random.default_rng(seed), losses, setting, 40_000)
    recomputed, from_round, from_step = first < total, total - steps * changed_round, total - first
    cost = forgetting_cost(losses, **setting)
    assert not alarm(recomputed, cost.probability, largest=1)
    assert not alarm(from_round, cost.expected_steps, largest=total)
    assert not alarm(from_step, cost.expected_steps_from_first_use, largest=total)


def test_the_simulation_tells_wrong_laws_apart():
    losses, setting, total = [Withdrawal(12, 1)], world(8, 3, 4, 3, 6), 18
    changed_round, first = simulated(np.random.default_rng(1), losses, setting, 40_000)
    cost = forgetting_cost(losses, **setting)
    assert alarm(first < total, min(1, sample_bound(12, **setting)), largest=1)
    assert alarm(total - first, cost.expected_steps, largest=total)
    assert alarm(total - 3 * changed_round, cost.expected_steps_from_first_use, largest=total)
    afresh = 1 - (1 - 1 / 8 * 4 / 12) ** (3 * total)  # as if the slots were filled anew at every step
    assert alarm(first < total, afresh, largest=1)


# ----------------------------------------------------------------------------------------------- closed forms and edges


def test_one_sample_and_whole_clients_have_closed_forms():
    setting = world(20, 4, 5, 3, 7)
    drawn, held = 1 - (1 - Fraction(1, 20)) ** 4, 1 - (1 - Fraction(5, 30)) ** 3
    assert exact_forgetting_cost([Withdrawal(30, 1)], **setting).probability == 1 - (1 - drawn * held) ** 7
    assert exact_forgetting_cost([Withdrawal(30, None)] * 6, **setting).probability == 1 - Fraction(14, 20) ** 28


def test_bounds_are_fractions_and_may_exceed_one():
    assert client_bound(clients=4, clients_per_round=3, rounds=5) == Fraction(15, 4)
    assert sample_bound(6, **world(4, 3, 2, 2, 5)) == Fraction(5, 2)
    assert sample_bound(6, **world(4, 3, 100, 2, 5)) == Fraction(15, 2)


@pytest.mark.parametrize("cost", [forgetting_cost, exact_forgetting_cost])
def test_nothing_to_forget_costs_nothing(cost):
    assert cost([], **world(5, 2, 3, 2, 4)) == NOTHING
    assert cost([Withdrawal(6, 0), Withdrawal(0, 0)], **world(5, 2, 3, 2, 4)) == NOTHING
    assert cost([Withdrawal(6, 1), Withdrawal(6, None)], **world(5, 2, 3, 2, 0)) == NOTHING


@pytest.mark.parametrize("cost", [forgetting_cost, exact_forgetting_cost])
def test_when_all_leave_everything_is_recomputed(cost):
    assert cost([Withdrawal(6, None), Withdrawal(3, 3)], **world(2, 3, 2, 4, 5)) == ForgettingCost(1, 20, 20)


@pytest.mark.parametrize("cost", [forgetting_cost, exact_forgetting_cost])
@pytest.mark.parametrize(
    ("name", "value"),
    [("clients", 0), ("clients_per_round", 0), ("batch_size", 0), ("local_steps", 0), ("rounds", -1)],
)
def test_impossible_worlds_are_refused(cost, name, value):
    with pytest.raises(ValueError, match=name):
        cost([], **{**world(2, 2, 2, 2, 2), name: value})


def test_impossible_losses_are_refused():
    for samples, lost in [(-1, None), (3, 4), (3, -1)]:
        with pytest.raises(ValueError, match="samples"):
            Withdrawal(samples, lost)
    with pytest.raises(ValueError, match="only 2"):
        forgetting_cost([Withdrawal(3, 1)] * 3, **world(2, 2, 2, 2, 2))
    with pytest.raises(ValueError, match="none to forget"):
        sample_bound(0, **world(2, 2, 2, 2, 2))
    with pytest.raises(ValueError, match="rounds"):
        client_bound(clients=2, clients_per_round=1, rounds=-1)


def test_a_stream_costs_the_sum_of_its_requests():
    """Samples and clients in any order; a client that loses its last sample is one client less."""
    stream = [Request("a", 0), Request("b"), Request("a", 1), Request("c", 0), Request("c", 1), Request("a")]
    worlds_left = [(5, 6, 1), (5, 4, None), (4, 5, 1), (4, 2, 1), (4, 1, 1), (3, 4, None)]  # M, N, what goes
    costs = [exact_forgetting_cost([Withdrawal(n, lost)], **world(m, 2, 2, 3, 4)) for m, n, lost in worlds_left]
    cost = expected_stream_cost(stream, {"a": 6, "b": 4, "c": 2}, **world(5, 2, 2, 3, 4))
    assert cost.expected_recomputations == pytest.approx(float(sum(c.probability for c in costs)), rel=1e-12)
    assert cost.expected_steps == pytest.approx(float(sum(c.expected_steps for c in costs)), rel=1e-12)
    first_use = sum(c.expected_steps_from_first_use for c in costs)
    assert cost.expected_steps_from_first_use == pytest.approx(float(first_use), rel=1e-12)


def test_stream_that_forgets_more_than_all_is_refused():
    assert expected_stream_cost([], {"a": 3}, **world(5, 2, 2, 3, 4)).expected_recomputations == 0.0
    for stream in ([Request("a", i) for i in range(4)], [Request("a"), Request("a", 0)], [Request("b")]):
        with pytest.raises(ValueError, match="cannot forget"):
            expected_stream_cost(stream, {"a": 3}, **world(5, 2, 2, 3, 4))


@pytest.mark.parametrize("count", [999, 1000, 1001, 20_000])
def test_many_equal_losses_are_a_binomial(count):
    """E[(1 - B/M)^3] by the moments of B; beyond a thousand, binomial coefficients are no longer written out."""
    touched = 1 - (1 - Fraction(2, 40)) ** 2  # a client holds its lost sample in one of two batches of 2 of 40
    pairs, triples = count * (count - 1) * touched**2, count * (count - 1) * (count - 2) * touched**3
    moments = count * touched, count * touched + pairs, count * touched + 3 * pairs + triples
    signed = zip((-3, 3, -1), moments, strict=True)
    stays = 1 + sum(sign * moment / 30_000**power for power, (sign, moment) in enumerate(signed, start=1))
    cost = forgetting_cost([Withdrawal(40, 1)] * count, **world(30_000, 3, 2, 2, 2))
    assert cost.probability == pytest.approx(float(1 - stays**2), rel=1e-10)


@given(
    st.integers(1, 40), st.integers(1, 9), st.integers(1, 30), st.integers(1, 20), st.integers(1, 6), st.integers(0, 30)
)
@settings(max_examples=100)
def test_closed_forms_are_the_law_of_one_request(clients, slots, samples, batch, steps, rounds):
    setting = world(clients, slots, batch, steps, rounds)
    one = {name: setting[name] for name in ("clients", "clients_per_round", "batch_size", "local_steps")}
    going, leaving = sample_change(samples, **one), client_change(clients, slots)
    for loss, change in ((Withdrawal(samples, 1), going), (Withdrawal(samples, None), leaving)):
        exact = exact_forgetting_cost([loss], **setting)
        assert math.isclose(change_within(change, rounds), exact.probability, rel_tol=1e-12)
        assert math.isclose(steps * expected_rounds_redone(change, rounds), exact.expected_steps, rel_tol=1e-12)


def test_closed_forms_take_arrays():
    slots, batches = np.array([1.0, 2.0, 5.0]), np.array([9.0, 4.0, 2.0])
    many = sample_change(8, clients=10, clients_per_round=slots, batch_size=batches, local_steps=3)
    one_by_one = [
        float(sample_change(8, clients=10, clients_per_round=k, batch_size=b, local_steps=3))
        for k, b in ((1, 9), (2, 4), (5, 2))
    ]
    assert many.tolist() == one_by_one
    assert client_change(10, slots).tolist() == [float(client_change(10, k)) for k in (1, 2, 5)]


def test_one_request_is_answered_at_once_however_long_a_round_is():
    """A geometric sum, not a loop over steps: with so many of them, the sample is held if its client is drawn."""
    world = {"clients": 60, "clients_per_round": 3, "batch_size": 4, "rounds": 2}
    long = forgetting_cost([Withdrawal(20, 1)], local_steps=10**9, **world)
    whole = forgetting_cost([Withdrawal(20, None)], local_steps=10**9, **world)
    assert long.probability == pytest.approx(whole.probability, rel=1e-12)
    assert long.expected_steps_from_first_use == pytest.approx(whole.expected_steps_from_first_use, rel=1e-8)
