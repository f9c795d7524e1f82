"""Truncated Poisson sampling: published figures, and what the cut costs."""

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from sfumato import SfumatoError
from sfumato.privacy import FullBatch, Gaussian, Poisson, PrivacyPlan, TruncatedPoisson
from sfumato.privacy.composition import Composition, RepeatedLosses
from sfumato.privacy.theorems import sampled_losses
from sfumato.privacy.theorems.sampled_losses import sampled_gaussian, sampled_gaussian_renyi


def plan(largest: int, sigma: float = 10.0, steps: int = 875) -> PrivacyPlan:
    """De et al. 2022, table 13, epsilon 1."""
    return PrivacyPlan(
        population=50_000,
        participation=TruncatedPoisson(batch_size=4096, largest=largest),
        mechanism=Gaussian(noise_multiplier=sigma),
        steps=steps,
        delta=1e-5,
        adjacency="zero-out",
    )


UNCUT = replace(plan(4352), participation=Poisson(batch_size=4096))


@pytest.mark.parametrize(("largest", "epsilon"), [(4352, 0.902909), (4224, 1.037444), (50_000, 0.902772)])
def test_rows_of_a_cut(largest, epsilon):
    assert plan(largest).epsilon() == pytest.approx(epsilon, abs=1e-5)


def test_a_cut_costs_and_a_deeper_one_costs_more():
    assert plan(50_000).epsilon() == pytest.approx(UNCUT.epsilon(), rel=1e-8)
    costs = [plan(largest, steps=100).epsilon() for largest in (4096, 4160, 4224, 4288, 6000)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 1.5 * costs[-1]


@pytest.mark.parametrize(("largest", "sigma"), [(4100, 0.3), (4686, 20.0), (5565, 0.3), (8000, 20.0)])
def test_every_cut_is_answered(largest, sigma):
    assert 0 < plan(largest, sigma, 3).epsilon(grid=1e-3) < 1e4


def test_steps_compose():
    halves = plan(4224, steps=300).loss.composed_with(plan(4224, steps=575).loss)
    assert halves == plan(4224).loss
    assert len(plan(4224, steps=300).loss.composed_with(plan(4160, steps=575).loss).parts) == 2, (
        "another cut is another step"
    )
    mixed = plan(4224, steps=300).loss.composed_with(replace(UNCUT, steps=575).loss)
    assert len(mixed.parts) == 2
    assert UNCUT.epsilon() < mixed.epsilon(1e-5) < plan(4224).epsilon()


def test_it_holds_for_zero_out_alone():
    with pytest.raises(SfumatoError, match="adjacency must be zero-out under truncated sampling"):
        replace(plan(4352), adjacency="add-or-remove")
    with pytest.raises(SfumatoError, match="do not compose"):
        plan(4352).loss.composed_with(replace(UNCUT, adjacency="add-or-remove").loss)
    everything = replace(UNCUT, participation=FullBatch(), steps=1)
    assert plan(4352, steps=1).loss.composed_with(everything.loss).epsilon(1e-5) > everything.epsilon()


def test_it_has_no_renyi_divergence():
    assert plan(4352).loss.accountants == ("pld",)
    assert UNCUT.loss.accountants == ("pld", "rdp")
    with pytest.raises(SfumatoError, match="no Renyi divergence is known"):
        plan(4352).epsilon(accountant="rdp")


# -- the losses of a sampled gaussian, all at once, are those that dp-accounting finds one by one ----------------------


@pytest.mark.parametrize(
    ("sigma", "probability", "width"),
    [(1.0, 0.01, 1e-2), (4.0, 0.3, 3.3e-3), (0.3, 1e-4, 1e-2), (2.0, 0.999, 3.3e-3), (2.0, 1.0, 1e-2)],
)
def test_losses_are_those_of_dp_accounting(sigma, probability, width):
    known = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=probability, value_discretization_interval=width
    )
    found = sampled_gaussian(sigma, probability, width)
    assert found._symmetric == known._symmetric
    for one, other in ((found._pmf_remove, known._pmf_remove), (found._pmf_add, known._pmf_add)):
        one, other = one.to_dense_pmf(), other.to_dense_pmf()
        assert (one.size, one._lower_loss) == (other.size, other._lower_loss)
        assert one._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-12, abs=1e-300)
        np.testing.assert_allclose(one._probs, other._probs, rtol=1e-12, atol=1e-15)


def test_hardly_any_noise_has_losses_beyond_all_numbers():
    found = sampled_gaussian(1e-3, 0.3, 51.0)
    known = privacy_loss_distribution.from_gaussian_mechanism(
        1e-3, sampling_prob=0.3, value_discretization_interval=51.0
    )
    assert found.get_epsilon_for_delta(1e-5) == pytest.approx(known.get_epsilon_for_delta(1e-5), rel=1e-12)
    removed = Composition([RepeatedLosses.from_curve(found._pmf_remove, 1)], 51.0)
    near = [1.0, 100.0, 600.0]
    np.testing.assert_allclose(removed.deltas(near), known.get_delta_for_epsilon(near), rtol=1e-8)
    far = removed.deltas([1e3, 4e5, 1e9])  # of which dp-accounting's own are not numbers
    assert far[0] == pytest.approx(0.3, rel=1e-6)
    assert (np.diff(far) <= 0).all()
    assert found._pmf_remove._infinity_mass <= far[-1] < 1e-16


SHAPES = {"sigma": st.floats(0.1, 20), "probability": st.floats(1e-4, 1)}


@given(**SHAPES, order=st.integers(2, 80))
def test_renyi_divergences_of_whole_orders_are_dp_accounting_s_and_no_less(sigma, probability, order):
    accountant = rdp.RdpAccountant([order])
    accountant.compose(dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(sigma)))
    (found,) = sampled_gaussian_renyi(sigma, probability, [order])
    assert found == pytest.approx(accountant.rdp[0], rel=1e-9, abs=1e-12)
    assert found >= accountant.rdp[0] * (1 - 1e-12) - 1e-14


@given(sigma=st.floats(0.31, 20), probability=st.floats(1e-3, 0.999), order=st.floats(1.02, 12))
def test_renyi_divergences_of_other_orders_are_the_integral(sigma, probability, order):
    def density(z: float) -> float:
        likelihood = np.logaddexp(math.log1p(-probability), math.log(probability) + (2 * z - 1) / (2 * sigma**2))
        return math.exp(order * likelihood - z**2 / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    ends, within = (-12 * sigma, order + 12 * sigma), np.linspace(0, order, 5)
    expected = math.log(integrate.quad(density, *ends, points=within, limit=200, epsabs=0)[0]) / (order - 1)
    (found,) = sampled_gaussian_renyi(sigma, probability, [order])
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("order", [1.02, 1.5, 8.0, 300.0])
@pytest.mark.parametrize("probability", [1e-6, 0.3])
def test_renyi_divergences_with_hardly_any_noise_are_a_bound_that_is_as_good_as_exact(monkeypatch, order, probability):
    sigma = math.sqrt(2 * order / sampled_losses.MOST_POINTS) * 0.99
    (bound,) = sampled_gaussian_renyi(sigma, probability, [order])
    monkeypatch.setattr(sampled_losses, "MOST_POINTS", math.inf)
    (exact,) = sampled_gaussian_renyi(sigma, probability, [order])
    assert exact * (1 - 1e-10) <= bound <= exact * (1 + 1e-10)


def test_an_order_below_two_with_little_noise_is_finite_where_dp_accounting_has_none():
    accountant = rdp.RdpAccountant([1.3])
    accountant.compose(dp_accounting.PoissonSampledDpEvent(256 / 6800, dp_accounting.GaussianDpEvent(0.31)))
    assert accountant.rdp[0] == math.inf
    below, found, above = sampled_gaussian_renyi(0.31, 256 / 6800, [1.0001, 1.3, 2.0])
    assert 0 < below < found < above


def test_the_least_noise_is_answered_at_once():
    plan = PrivacyPlan.calibrate(examples=1000, batch_size=10, steps=5, noise_multiplier=1e-3, delta=1e-5)
    assert 1e6 < plan.epsilon_rdp < math.inf
