"""A life of a method: what is counted, what is measured, and when."""

from __future__ import annotations

import numpy as np
import pytest

from fedforget.baselines.catalogue import METHODS
from fedforget.baselines.fats import Fats
from fedforget.baselines.frs import Frs
from fedforget.baselines.method import Cost, Problem
from fedforget.experiments.cells import Choice
from fedforget.experiments.lives import Life, Meter, Moment, Unlearning
from fedforget.experiments.problems import build_problem, choose_requests, training_of

TRAINING = training_of("digits").with_plan(rounds=12)
CHOICE = Choice("smoke", 1)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return build_problem(TRAINING, 1, CHOICE)


def lived(problem: Problem, method: type) -> Life:
    life = Life(method(problem), Meter(problem))
    life.learn(computed=8)
    return life


@pytest.mark.parametrize("method", METHODS.values())
def test_rounds_computed_never_go_back(problem: Problem, method: type) -> None:
    life = lived(problem, method)
    done = life.unlearn(choose_requests(problem, "client", 5, 1))
    life.learn(computed=20)
    computed = [moment.rounds_computed for moment in life.moments]
    assert computed == sorted(computed)
    assert done.goal == 8
    assert done.cost.rounds == 8 - done.left
    assert [moment.phase for moment in life.moments].count("removed") == 1
    assert life.moments[8].round == done.left
    assert life.moments[8].rounds_computed == 8
    assert life.moments[-1].round == life.method.rounds_done == 12


def test_frs_goes_back_to_the_initial_model(problem: Problem) -> None:
    life = lived(problem, Frs)
    done = life.unlearn(choose_requests(problem, "sample", 3, 1))
    assert (done.left, done.cost.steps) == (0, 8 * TRAINING.plan.local_steps)
    assert life.moments[8].accuracy == life.meter.few(problem.initial)


def test_requests_that_arrive_while_recovering_interrupt_it(problem: Problem) -> None:
    life = lived(problem, Frs)
    life.unlearn(choose_requests(problem, "client", 2, 1), until_computed=11)
    assert life.method.rounds_done == 3
    life.unlearn(choose_requests(problem, "client", 2, 2), until_computed=12)
    assert (life.computed, life.method.rounds_done) == (12, 1)
    assert [done.at for done in life.unlearnings] == [8, 11]


def test_drop_and_recovery_follow_their_definitions(problem: Problem) -> None:
    life = Life(Fats(problem), Meter(problem))
    life.moments = [Moment(n, n, "learned", a) for n, a in enumerate((0.1, 0.5, 0.6, 0.7, 0.6, 0.6), start=1)]
    assert life.before == pytest.approx(0.6)
    assert life.drop is None
    assert life.recovery is None
    life.unlearnings = [Unlearning(6, 6, 0, 1, Cost())]
    again = ((6, 0.2), (7, 0.55), (8, 0.595))
    life.moments += [Moment(n, n, "removed" if n == 6 else "learned again", a) for n, a in again]
    for moment in life.moments[6:]:
        life._measured(moment, {}, moment.accuracy)
    assert life.drop == pytest.approx(0.4)
    assert life.recovery == 2


def test_both_levels_go_on_from_the_same_training(problem: Problem) -> None:
    shared = lived(problem, Fats)
    forks = [shared.fork(), shared.fork()]
    forks[0].unlearn(choose_requests(problem, "client", 5, 1))
    assert forks[1].method.model_digest == shared.method.model_digest
    assert [m.accuracy for m in forks[1].moments] == [m.accuracy for m in shared.moments]


def test_requests_are_of_different_clients_and_do_not_depend_on_the_draws(problem: Problem) -> None:
    requests = choose_requests(problem, "sample", 10, 3)
    assert len({request.client for request in requests}) == 10
    assert requests == choose_requests(problem, "sample", 10, 3)
    assert requests != choose_requests(problem, "sample", 10, 4)


def test_test_samples_of_leaving_clients_are_not_measured(problem: Problem) -> None:
    data = problem.data
    assert data.test is not None
    count = len(data.test[1])
    data.test_owners = tuple(np.arange(count) % 2)
    try:
        halves = [Meter(problem, {owner}).whole(problem.initial) for owner in (0, 1)]
        assert np.mean(halves) == pytest.approx(Meter(problem).whole(problem.initial), abs=1e-9)
        assert halves[0] != halves[1]
    finally:
        data.test_owners = None
