"""Users of several records under Poisson sampling: published figures, brute force, samples, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from sfumato import SfumatoError
from sfumato.privacy import (
    BandedToeplitz,
    CyclicPoisson,
    Example,
    FixedOrder,
    FullBatch,
    Gaussian,
    Poisson,
    PrivacyPlan,
    Tree,
    TruncatedPoisson,
    User,
)
from sfumato.privacy.loss import COARSE_GRID
from sfumato.privacy.theorems.mixture_of_gaussians import NEGLIGIBLE, MixedGaussians, _weights


def plan(q: float, sigma: float, steps: int, records: int, population: int = 100_000) -> PrivacyPlan:
    return PrivacyPlan(
        population=population,
        participation=Poisson(batch_size=round(q * population)),
        mechanism=Gaussian(noise_multiplier=sigma),
        steps=steps,
        delta=1e-5,
        unit=User(drawn="examples", at_most=records, users=population),
    )


# (q, sigma, T, G, epsilon, to how much) at delta 1e-5, by dp-accounting 0.6.0; those of sigma 1 on a coarser grid.
VECTORS = [
    (0.01, 4.0, 500, 4, 0.85253, 2e-4),
    (0.01, 4.0, 500, 16, 4.01794, 2e-4),
    (0.02, 1.0, 200, 4, 8.7513, 1e-3),
    (0.02, 1.0, 200, 16, 48.5177, 1e-3),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "records", "epsilon", "tolerance"), VECTORS)
def test_rows_of_users_with_several_records(q, sigma, steps, records, epsilon, tolerance):
    assert plan(q, sigma, steps, records).epsilon() == pytest.approx(epsilon, abs=tolerance)


@pytest.mark.parametrize(("q", "sigma", "steps", "epsilon"), [(0.01, 4.0, 500, 0.18758), (0.02, 1.0, 200, 1.8529)])
def test_one_record_is_an_example(q, sigma, steps, epsilon):
    alone = replace(plan(q, sigma, steps, 2), unit=User(drawn="examples", at_most=1, users=100_000))
    as_example = replace(alone, unit=Example())
    assert alone.epsilon() == as_example.epsilon() == pytest.approx(epsilon, abs=2e-4)
    assert alone.epsilon_rdp == as_example.epsilon_rdp
    mixed = MixedGaussians(sigma=sigma, probability=q, records=1, steps=steps)
    assert replace(alone.loss, parts=(mixed,)).epsilon(1e-5) == pytest.approx(alone.epsilon(), rel=2e-4)
    assert mixed.equivalent_steps(0.3) == pytest.approx(as_example.theorem.equivalent_steps(as_example, 0.3), rel=1e-9)


@pytest.mark.parametrize(
    ("q", "sigma", "records", "width"), [(1e-3, 2.0, 5, 1e-3), (0.9, 3.0, 3, 0.02), (0.2, 1.0, 4, 0.05)]
)
def test_one_step_is_dp_accounting_s(q, sigma, records, width):
    masses = stats.binom.pmf(range(records + 1), records, q)
    known = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, range(records + 1), masses, value_discretization_interval=width
    )
    ours = MixedGaussians(sigma=sigma, probability=q, records=records, steps=1).step_distribution(width)
    for epsilon in (0.0, 0.1, 1.0, 4.0):
        found, expected = ours.get_delta_for_epsilon(epsilon), known.get_delta_for_epsilon(epsilon)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-11)


def test_samples_of_two_records_of_one_user():
    """The release itself, drawn 400,000 times: noise plus as many records as came up. No set of outcomes may exceed."""
    q, sigma, records = 0.5, 1.0, 2
    generator = np.random.default_rng(5)
    noise = sigma * generator.standard_normal((2, count := 400_000))
    present = noise[0] + (generator.random((records, count)) < q).sum(axis=0)
    promise = MixedGaussians(sigma=sigma, probability=q, records=records, steps=1).step_distribution(1e-3)
    for epsilon in (0.0, 0.5, 1.0):
        delta = promise.get_delta_for_epsilon(epsilon)
        gaps = [
            (one > cut).mean() - math.exp(epsilon) * (other > cut).mean()
            for cut in np.linspace(-2, 4, 61)
            for one, other in ((present, noise[1]), (-noise[1], -present))
        ]
        assert max(gaps) <= delta + 0.006
        assert max(gaps) >= delta - 0.006


def test_tails_never_move_to_fewer_records():
    for records, q in ((64, 0.02), (1000, 0.02), (5000, 0.3), (7, 0.999)):
        counts, masses, lost = _weights(records, q)
        assert lost <= NEGLIGIBLE
        assert masses.sum() + lost == pytest.approx(1, abs=1e-12)
        for kept in (counts[0], counts[len(counts) // 2], counts[-1]):
            at_least = masses[counts >= kept].sum() + lost
            assert at_least >= stats.binom.sf(kept - 1, records, q) * (1 - 1e-12)
    assert len(_weights(5000, 0.3).counts) < 700


@pytest.mark.parametrize(("records", "steps"), [(4, 100), (64, 500)])
def test_calibration_meets_the_budget_and_a_little_less_would_not(records, steps):
    unit = User(drawn="examples", at_most=records, users=50_000)
    found = PrivacyPlan.calibrate(examples=100_000, batch_size=2000, steps=steps, epsilon=4.0, delta=1e-5, unit=unit)
    assert found.unit == unit
    assert 3.99 < found.epsilon() <= 4.0
    assert found.with_noise(found.noise_multiplier * 0.998).epsilon(grid=COARSE_GRID) > 4.0
    assert found.loss.accountants == ("pld",)
    assert found.epsilon_rdp is None
    with pytest.raises(SfumatoError, match="no Renyi divergence is known"):
        found.epsilon(accountant="rdp")


def test_the_most_steps_are_found_and_steps_add_up():
    known = plan(0.01, 4.0, 500, 4)
    assert known.most_steps(0.86) == pytest.approx(508, abs=6)
    halves = known.theorem.loss(known, 200).composed_with(known.theorem.loss(known, 300))
    assert halves == known.loss
    other = plan(0.01, 4.0, 500, 5).loss
    assert len(known.loss.composed_with(other).parts) == 2


@pytest.mark.parametrize(
    "mechanism",
    [
        Gaussian(noise_multiplier=20.0),
        Tree(noise_multiplier=20.0),
        BandedToeplitz(noise_multiplier=20.0, coefficients=(1.0, 0.5)),
    ],
)
def test_in_full_batches_all_records_of_a_user_are_one_vector_of_that_length(mechanism):
    user = replace(plan(0.5, 20.0, 6, 5), participation=FullBatch(), mechanism=mechanism)
    example = replace(user, unit=Example()).with_noise(20.0 / 5)
    assert user.epsilon() == pytest.approx(example.epsilon(), rel=1e-12)
    assert user.most_steps(2.0) == example.most_steps(2.0)


@pytest.mark.parametrize(
    ("participation", "mechanism", "why"),
    [
        (FixedOrder(batch_size=100), Gaussian(noise_multiplier=1.0), "they lie in different steps of an epoch"),
        (FixedOrder(batch_size=100), Tree(noise_multiplier=1.0), "they lie in different steps of an epoch"),
        (CyclicPoisson(batch_size=100, groups=4), Gaussian(noise_multiplier=1.0), "they lie in different groups"),
        (
            TruncatedPoisson(batch_size=100, largest=150),
            Gaussian(noise_multiplier=1.0),
            "several other records may take the places",
        ),
        (Poisson(batch_size=100), Tree(noise_multiplier=1.0), "may lie close together"),
    ],
)
def test_where_records_of_a_user_are_in_different_steps_nothing_is_proven(participation, mechanism, why):
    with pytest.raises(SfumatoError, match="for a user with 4 records that are sampled independently") as error:
        replace(plan(0.01, 1.0, 5, 4), participation=participation, mechanism=mechanism, adjacency="zero-out")
    assert why in error.value.problem
    assert "poisson or full-batch participation, or sample users" in error.value.remedy
