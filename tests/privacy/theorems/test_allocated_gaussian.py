"""Random allocation: the authors' own bounds, simulations of whole runs, closed forms, and what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from sfumato import SfumatoError
from sfumato.privacy import (
    Allocated,
    BandedToeplitz,
    FixedOrder,
    FullBatch,
    Gaussian,
    Participation,
    Poisson,
    PrivacyPlan,
    User,
)
from sfumato.privacy.theorems.allocated_gaussian import LEAST_AMPLIFIED, AllocatedEpochs


def plan(sigma: float, steps: int, epochs: int, rule: type[Participation] = Allocated, **parts) -> PrivacyPlan:
    """A plan with `steps` steps in an epoch."""
    usual = {
        "population": 100 * steps,
        "participation": rule(batch_size=100),
        "mechanism": Gaussian(noise_multiplier=sigma),
        "steps": steps * epochs,
        "delta": 1e-5,
    }
    return PrivacyPlan(**(usual | parts))


# (sigma, steps of an epoch, epochs, lower and upper bound on epsilon at delta 1e-5), by PLD_accounting 2.0 of the
# authors of arXiv 2602.17284, at the finest spacings that were tried (benchmarks/results/allocation.json).
AUTHORS = [
    (5.0, 4, 10, 1.19808, 1.21233),
    (2.0, 10, 10, 2.12920, 2.14662),
    (5.0, 12, 20, 0.95846, 0.97593),
    (3.0, 12, 20, 1.72630, 1.74358),
]


@pytest.mark.parametrize(("sigma", "steps", "epochs", "lower", "upper"), AUTHORS)
def test_epsilon_lies_between_the_authors_bounds(sigma, steps, epochs, lower, upper):
    assert lower < plan(sigma, steps, epochs).epsilon() < upper


def simulated(sigma: float, steps: int, epochs: int, seed: int, runs: int = 60_000) -> tuple[np.ndarray, np.ndarray]:
    """Privacy losses of whole runs: of those with the unit, and minus those of runs without it."""
    generator, losses = np.random.default_rng(seed), np.zeros((2, runs))
    for _ in range(epochs):
        without, present = sigma * generator.standard_normal((2, runs, steps))
        present[np.arange(runs), generator.integers(steps, size=runs)] += 1
        for place, outcome in enumerate((present, without)):
            losses[place] += logsumexp((2 * outcome - 1) / (2 * sigma**2), axis=1) - math.log(steps)
    return losses[0], -losses[1]


SIMULATED = [
    *((sigma, steps, epochs) for sigma in (0.8, 1.5, 3.0) for steps, epochs in ((1, 3), (2, 8), (5, 4), (16, 2))),
    *((sigma, steps, 1) for sigma in (0.6, 1.0, 2.0, 6.0) for steps in (3, 30)),
]


@pytest.mark.parametrize(("sigma", "steps", "epochs"), SIMULATED)
def test_simulated_runs_stay_below_the_bound_and_come_close(sigma, steps, epochs):
    """Twenty plans, in both directions; at epsilons where delta is large enough to be seen."""
    losses = simulated(sigma, steps, epochs, seed=steps)
    promise = plan(sigma, steps, epochs).loss
    for share in (0.5, 0.1, 0.02):
        epsilon = max(0.0, *(float(np.quantile(one, 1 - share)) for one in losses))
        (delta,) = promise.deltas([epsilon])
        terms = [-np.expm1(np.minimum(epsilon - one, 0)) for one in losses]
        error = max(float(one.std()) for one in terms) / math.sqrt(len(losses[0]))
        largest = max(float(one.mean()) for one in terms)
        assert largest - 4.5 * error <= delta <= 1.01 * largest + 4.5 * error


@pytest.mark.parametrize("sigma", [0.7, 2.0, 6.0])
def test_both_directions_of_an_epoch_of_two_steps_are_those_of_its_density(sigma):
    """By summing over a grid of both outcomes. Without the unit they are normal; with it, the mean of two normals."""
    points = np.linspace(-11, 11 + 1 / sigma, 1501)
    step = points[1] - points[0]
    densities = [np.exp(-(one**2) / 2) * step / math.sqrt(2 * math.pi) for one in (points, points - 1 / sigma)]
    out = np.outer(densities[0], densities[0])
    half = np.outer(densities[1], densities[0]) / 2
    present = half + half.T
    epochs = AllocatedEpochs(sigma=sigma, epoch=2, steps=1)
    both = epochs.step_distribution(1e-4 * epochs.coarsening)
    for epsilon in (0.0, 0.1 / sigma, 1 / sigma, 2 / sigma):
        removed, added = (
            float(np.maximum(one - math.exp(epsilon) * other, 0).sum())
            for one, other in ((present, out), (out, present))
        )
        assert removed - 1e-7 <= both._pmf_remove.get_delta_for_epsilon(epsilon) <= removed * 1.005 + 1e-6
        assert added - 1e-7 <= both._pmf_add.get_delta_for_epsilon(epsilon) <= added * 1.005 + 1e-6


def test_one_step_an_epoch_is_full_batches():
    one, full = plan(2.0, 1, 10), plan(2.0, 1, 10, participation=FullBatch())
    assert full.epsilon() < one.epsilon() < 1.001 * full.epsilon()


@given(sigma=st.floats(0.4, 20), steps=st.integers(2, 20), epochs=st.integers(1, 30))
@settings(max_examples=15, deadline=None)
def test_a_secret_step_costs_less_than_a_known_one_and_more_steps_less(sigma, steps, epochs):
    allocated = plan(sigma, steps, epochs).epsilon()
    assert allocated <= plan(sigma, steps, epochs, FixedOrder).epsilon() * 1.001
    assert plan(sigma, 2 * steps, epochs).epsilon() <= allocated


def test_an_unfinished_epoch_counts_as_a_whole_one():
    whole = plan(2.0, 8, 3)
    assert whole.epsilon(steps=17) == whole.epsilon(steps=24) == whole.epsilon()
    assert whole.epsilon(steps=16) < whole.epsilon(steps=17)
    assert whole.loss.composed_with(whole.loss).epsilon(1e-5) == plan(2.0, 8, 6).epsilon()


def test_steps_of_other_rules_compose_with_epochs():
    allocated, sampled = plan(2.0, 8, 3), plan(4.0, 8, 3, Poisson)
    total = allocated.loss.composed_with(sampled.loss).epsilon(1e-5)
    assert max(allocated.epsilon(), sampled.epsilon()) < total < allocated.epsilon() + sampled.epsilon()


def test_a_finer_grid_is_as_wide_as_an_epoch_allows():
    """Other releases' grids may be much finer; an epoch's is at least half as wide as alone."""
    epochs = AllocatedEpochs(sigma=2.0, epoch=8, steps=1)
    own = 1e-4 * epochs.coarsening
    alone, finer = (epochs.step_distribution(width).get_delta_for_epsilon(0.5) for width in (own, own / 37.5))
    assert finer == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_calibration_meets_the_budget_and_a_little_less_would_not(epsilon):
    found = PrivacyPlan.calibrate(
        examples=5000, batch_size=400, steps=130, epsilon=epsilon, delta=1e-5, participation=Allocated(batch_size=1)
    )
    assert found.participation == Allocated(batch_size=400)
    assert 0.998 * epsilon < found.epsilon() <= epsilon
    assert found.with_noise(found.noise_multiplier * 0.995).epsilon() > epsilon
    most = found.most_steps(epsilon)
    assert most % 13 == 0
    assert found.epsilon(steps=most) <= epsilon < found.epsilon(steps=most + 1)


def test_from_the_least_noise_to_the_most_epsilon_falls():
    sigmas = (1e-3, 0.01, LEAST_AMPLIFIED * 0.999, LEAST_AMPLIFIED, 0.2, 0.5, 0.51, 1.0, 10.0, 1e3)
    epsilons = [plan(sigma, 10, 2).epsilon() for sigma in sigmas]
    assert all(more > less for more, less in itertools.pairwise(epsilons))
    assert plan(1e9, 10, 2).epsilon(1e-12) > 0  # delta at epsilon 0 is about mu / sqrt(2 pi)


@pytest.mark.parametrize("sigma", [0.06, 2.0, 30.0])
def test_a_wider_grid_never_gives_less(sigma):
    epsilons = [plan(sigma, 10, 2).epsilon(grid=grid) for grid in (1e-4, 1e-3, 1e-2, 1e-1)]
    assert epsilons == sorted(epsilons)
    assert epsilons[1] < 1.06 * epsilons[0]


def test_a_small_delta_is_resolved():
    many = plan(1.0, 50, 200)
    assert many.epsilon(1e-12) > many.epsilon(1e-9) > many.epsilon()


def test_there_is_no_renyi_divergence():
    assert plan(2.0, 8, 3).loss.accountants == ("pld",)
    with pytest.raises(SfumatoError, match="none for truncated Poisson sampling and random allocation"):
        plan(2.0, 8, 3).epsilon(accountant="rdp")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"unit": User(drawn="clients")}, "one user in virtual clients exchanges a vector for another one"),
        ({"unit": User(drawn="examples", at_most=2, users=400)}, "they lie in different steps of an epoch"),
        (
            {"mechanism": BandedToeplitz(noise_multiplier=1.0, coefficients=(1.0, 0.5))},
            "banded noise under allocated participation: the last step of an epoch and the first of the next",
        ),
    ],
)
def test_what_is_not_proven_is_refused(parts, words):
    with pytest.raises(SfumatoError, match=words):
        plan(2.0, 8, 3, **parts)


def test_users_who_are_sampled_as_a_whole_are_covered_as_examples_are():
    assert plan(2.0, 8, 3, unit=User(drawn="users")).epsilon() == plan(2.0, 8, 3).epsilon()
    assert plan(2.0, 8, 3, adjacency="zero-out").epsilon() == plan(2.0, 8, 3).epsilon()
