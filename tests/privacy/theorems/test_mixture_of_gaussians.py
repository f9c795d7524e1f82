"""A person with several records under Poisson sampling: published figures, brute force and samples."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from sfumato import PrivacyPlan
from sfumato.privacy.loss import Loss
from sfumato.privacy.theorems.mixture_of_gaussians import NEGLIGIBLE, MixedGaussians, _weights


def loss(q: float, sigma: float, steps: int, records: int) -> Loss:
    mixed = MixedGaussians(sigma=sigma, probability=q, records=records, steps=steps)
    return Loss(unit=example(q, sigma, steps).unit, adjacency="add-or-remove", parts=(mixed,))


def example(q: float, sigma: float, steps: int) -> PrivacyPlan:
    size = round(q * 100_000)
    return PrivacyPlan.calibrate(examples=100_000, batch_size=size, steps=steps, noise_multiplier=sigma, delta=1e-5)


# (q, sigma, T, G, epsilon, to how much) at delta 1e-5, by dp-accounting 0.6.0; those of sigma 1 on a coarser grid.
VECTORS = [
    (0.01, 4.0, 500, 4, 0.85253, 2e-4),
    (0.01, 4.0, 500, 16, 4.01794, 2e-4),
    (0.02, 1.0, 200, 4, 8.7513, 1e-3),
    (0.02, 1.0, 200, 16, 48.5177, 1e-3),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "records", "epsilon", "tolerance"), VECTORS)
def test_a_person_with_several_records(q, sigma, steps, records, epsilon, tolerance):
    assert loss(q, sigma, steps, records).epsilon(1e-5) == pytest.approx(epsilon, abs=tolerance)


@pytest.mark.parametrize(("q", "sigma", "steps", "epsilon"), [(0.01, 4.0, 500, 0.18758), (0.02, 1.0, 200, 1.8529)])
def test_one_record_is_an_example(q, sigma, steps, epsilon):
    plan = example(q, sigma, steps)
    assert plan.epsilon() == pytest.approx(epsilon, abs=2e-4)
    assert loss(q, sigma, steps, 1).epsilon(1e-5) == pytest.approx(plan.epsilon(), rel=2e-4)
    (mixed,) = loss(q, sigma, steps, 1).parts
    assert mixed.equivalent_steps(0.3) == pytest.approx(plan.theorem.equivalent_steps(plan, 0.3), rel=1e-9)


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


def test_steps_add_up():
    assert loss(0.01, 4.0, 200, 4).composed_with(loss(0.01, 4.0, 300, 4)) == loss(0.01, 4.0, 500, 4)
    assert len(loss(0.01, 4.0, 500, 4).composed_with(loss(0.01, 4.0, 500, 5)).parts) == 2
