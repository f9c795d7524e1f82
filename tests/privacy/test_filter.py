"""A privacy filter: its arithmetic against dp-accounting's, and that what it admits keeps to its total."""

import math
import random

import numpy as np
import pytest
from dp_accounting import rdp

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import FixedOrder, PrivacyFilter, TruncatedPoisson, User
from sfumato.privacy.filter import best_order


def plan(sigma: float = 2.0, steps: int = 50, batch_size: int = 100, **others) -> PrivacyPlan:
    given = {"population": 1000, "participation": Poisson(batch_size=batch_size), "delta": 1e-5} | others
    return PrivacyPlan(mechanism=Gaussian(noise_multiplier=sigma), steps=steps, **given)


def full(sigma: float, steps: int = 1, **others) -> PrivacyPlan:
    return plan(sigma, steps, participation=FullBatch(), **others)


@pytest.fixture(scope="module")
def eight() -> PrivacyFilter:
    return PrivacyFilter.for_total(epsilon=8, delta=1e-5)


def test_a_plan_costs_its_renyi_divergence_at_the_one_order(eight):
    assert eight.order == 3.87
    assert eight.cost(plan()) == plan().loss.renyi([3.87])[0] < plan().loss.renyi([4.0])[0]
    assert eight.cost(full(2.0, 3)) == pytest.approx(3 * 3.87 / (2 * 2.0**2)), "rho = a mu^2 / 2"


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_the_limit_is_the_most_that_dp_accounting_converts_to_the_total(epsilon, delta):
    own = PrivacyFilter.for_total(epsilon=epsilon, delta=delta)
    converted = [rdp.compute_epsilon([own.order], [share * own.limit], delta)[0] for share in (1.0, 1 + 1e-9)]
    assert converted[0] <= epsilon < converted[1]
    assert own.epsilon_of(own.limit) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_no_other_order_admits_more_gaussian_releases(epsilon):
    def squared_mu(order: float) -> float:
        own = PrivacyFilter(epsilon=epsilon, delta=1e-5, order=order)
        return 2 * own.limit / order

    best = best_order(epsilon, 1e-5)
    assert squared_mu(best) >= max(map(squared_mu, np.geomspace(1.05, 500, 60))) * (1 - 1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_admitted_one_after_the_other_keeps_to_the_total(seed):
    """The composition of the admitted plans had they been fixed beforehand, which is less than the filter's promise."""
    draw = random.Random(seed)
    own = PrivacyFilter.for_total(epsilon=draw.choice([1.0, 3.0, 8.0]), delta=1e-5)
    admitted: list[PrivacyPlan] = []
    costs: list[float] = []
    for _ in range(12):  # the noise of the next follows how much was left
        sigma = draw.choice([0.9, 1.5, 3.0, 6.0]) * (1 + math.fsum(costs) / own.limit)
        one = full(2 * sigma) if draw.random() < 0.3 else plan(sigma, draw.choice([10, 30, 60]))
        if own.fits([*costs, own.cost(one)]):
            admitted.append(one)
            costs.append(own.cost(one))
    assert admitted
    losses = [one.loss for one in admitted]
    assert losses[0].composed_with(*losses[1:]).epsilon(1e-5, grid=1e-3) <= own.epsilon


def test_pure_releases_cost_what_randomized_response_does(eight):
    a, truth = 3.87, math.exp(1.0) / (1 + math.exp(1.0))
    lies = 1 - truth
    divergence = math.log(truth**a * lies ** (1 - a) + lies**a * truth ** (1 - a)) / (a - 1)
    assert eight.cost_of_pure(1.0) == pytest.approx(divergence)


def test_a_run_that_publishes_figures_costs_the_larger_of_the_two(eight):
    quiet = plan(20.0)
    assert eight.cost(quiet, figures=2.0) == eight.cost_of_pure(2.0) > eight.cost(quiet)
    assert eight.cost(plan(), figures=0.01) == eight.cost(plan())


def test_units_and_adjacencies_do_not_mix(eight):
    zero_out = plan(participation=FixedOrder(batch_size=100, assignment="position"), adjacency="zero-out")
    with pytest.raises(SfumatoError, match="holds for add-or-remove adjacency, but the plan only for zero-out"):
        eight.cost(zero_out)
    both = PrivacyFilter.for_total(epsilon=8, delta=1e-5, adjacency="zero-out")
    assert both.cost(zero_out) > 0
    assert both.cost(plan()) == pytest.approx(PrivacyFilter(epsilon=8, delta=1e-5, order=both.order).cost(plan()))
    users = plan(unit=User())
    with pytest.raises(SfumatoError, match="for each single example, but the plan for each single user"):
        eight.cost(users)
    assert PrivacyFilter.for_total(epsilon=8, delta=1e-5, unit="user").cost(users) == eight.cost(plan())


def test_plans_without_a_renyi_divergence_are_refused(eight):
    cut = plan(participation=TruncatedPoisson(batch_size=100, largest=130), adjacency="zero-out")
    with pytest.raises(SfumatoError, match="no Renyi divergence is known for one of the releases"):
        PrivacyFilter.for_total(epsilon=8, delta=1e-5, adjacency="zero-out").cost(cut)


def test_the_plan_with_more_noise_that_still_fits(eight):
    left = eight.cost(plan(4.0))
    found = eight.with_enough_noise(plan(1.0), left)
    assert found is not None
    assert found.noise_multiplier == pytest.approx(4.0, rel=1e-4)
    assert eight.cost(found) <= left
    assert eight.with_enough_noise(plan(1.0), 0.0) is None


def test_a_filter_is_read_back_and_one_of_another_accounting_is_refused(eight):
    assert PrivacyFilter.from_dict(eight.to_dict()) == eight
    with pytest.raises(SfumatoError, match="otherwise than by Renyi divergences"):
        PrivacyFilter.from_dict(eight.to_dict() | {"accounting": "gaussian"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 1.0}, "delta must lie strictly between"),
        ({"unit": "person"}, "unit must be one of"),
        ({"adjacency": "replace"}, "adjacency must be one of"),
    ],
)
def test_what_is_no_filter(given, words):
    with pytest.raises(SfumatoError, match=words):
        PrivacyFilter.for_total(**{"epsilon": 8.0, "delta": 1e-5} | given)
