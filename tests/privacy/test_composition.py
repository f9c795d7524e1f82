"""Composed losses: never below the truth, by exact arithmetic and by a lower bound of another kind, at every delta."""

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import log_ndtr

from sfumato import PrivacyPlan, SfumatoError
from sfumato.privacy.composition import Composition, RepeatedLosses, compositions

WIDTH = 1e-2
SMALL = (1e-5, 1e-8, 1e-10, 1e-12, 1e-13, 1e-14, 1e-15)


@pytest.mark.parametrize(("sigma", "probability", "steps"), [(1.0, 0.01, 100), (4.0, 0.3, 20), (0.5, 1.0, 3)])
def test_deltas_are_those_of_dp_accounting(sigma, probability, steps):
    one = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=probability, value_discretization_interval=WIDTH
    )
    together = one.self_compose(steps)
    generator = np.random.default_rng(0)
    for largest in (0.1, 3.0, 100.0):
        epsilons = np.sort(generator.uniform(0, largest, 20)).tolist()
        ours = np.max([each.deltas(epsilons) for each in compositions([(one, steps)], WIDTH)], axis=0)
        np.testing.assert_allclose(ours, together.get_delta_for_epsilon(epsilons), rtol=1e-6, atol=3e-15)
    (both, *_) = compositions([(one, 2), (one, steps - 2)], WIDTH)
    assert both.epsilon(1e-6) == pytest.approx(together._pmf_remove.get_epsilon_for_delta(1e-6), rel=1e-6)
    assert both.deltas([1.0, np.inf])[-1] == both.lost
    assert both.deltas([]).tolist() == []


def exact_deltas(masses: list[int], first: int, steps: int, epsilons: list[float]) -> list[float]:
    """Deltas by whole numbers: masses are multiples of 2^-60, and a polynomial in 2^(number of bits) is one number."""
    size = 8 * steps + 8  # bytes
    packed = sum(mass << (8 * size * place) for place, mass in enumerate(masses)) ** steps
    last = (len(masses) - 1) * steps
    each = packed.to_bytes((last + 2) * size, "little")
    places = range(last + 1)
    numbers = [int.from_bytes(each[place * size : (place + 1) * size], "little") for place in places]
    summed = np.array([float(Fraction(number, 1 << (60 * steps))) for number in numbers])
    losses = WIDTH * (first * steps + np.arange(last + 1))
    return [math.fsum((summed * -np.expm1(np.minimum(one - losses, 0))).tolist()) for one in epsilons]


def jumpy() -> tuple[list[int], int]:
    """Small losses nearly always, and rarely large ones, as steps of few participants have them."""
    losses = np.arange(-2, 60)
    shape = np.exp(-np.abs(losses) * 2.0) + 1e-4 * np.exp(-np.abs(losses - 20) / 4)
    masses = [round(float(mass) * 2**60) for mass in shape / shape.sum()]
    masses[2] += 2**60 - sum(masses)
    return masses, -2


def test_deltas_and_epsilons_are_never_below_those_of_exact_arithmetic():
    steps = 32
    masses, first = jumpy()
    composed = Composition([RepeatedLosses(np.array([mass / 2**60 for mass in masses]), first, 0.0, steps)], WIDTH)
    epsilons = [0.0, 0.05, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0]
    exact = exact_deltas(masses, first, steps, epsilons)
    assert exact[0] > 1e-4
    assert exact[-1] < 1e-16
    for epsilon, ours, true in zip(epsilons, composed.deltas(epsilons), exact, strict=True):
        assert true <= ours <= true * (1 + 1e-5)
        found = composed.epsilon(true)
        assert epsilon <= found * (1 + 1e-15) <= epsilon + 1e-5


def test_losses_below_the_grid_are_not_forgotten():
    """A tilt that is too strong knows the largest losses alone."""
    masses, first = jumpy()
    composed = Composition([RepeatedLosses(np.array([mass / 2**60 for mass in masses]), first, 0.0, 3)], WIDTH)
    (true,) = exact_deltas(masses, first, 3, [0.01])
    strong = composed.tilted(300.0)
    assert strong.values[0] > 0.01
    assert strong.deltas(np.array([0.01]))[0][0] >= true
    assert composed.epsilon(true) == pytest.approx(0.01, abs=1e-6)


def test_a_loss_without_bound_counts_at_every_epsilon():
    masses = np.array([0.5, 0.3, 0.1])
    composed = Composition([RepeatedLosses(masses, -1, 0.1, 2)], WIDTH)
    assert composed.lost == pytest.approx(0.19)
    assert composed.deltas([5.0])[0] == pytest.approx(0.19)
    assert composed.epsilon(0.18) == math.inf
    assert composed.epsilon(0.2) < math.inf


def lower_bounds(q: float, sigma: float, steps: int, tilt: float) -> list[float]:
    """Epsilon at least: losses of one step rounded down, from normal tails, and tilted."""
    width, size = 1e-5, 1 << 20
    low = math.floor(math.log1p(-q) / width)
    edges = (low + np.arange(size + 1)) * width
    excess = np.expm1(edges) + q
    x = np.where(excess > 0, sigma**2 * np.log(np.maximum(excess, 1e-300) / q) + 0.5, -np.inf)
    tail = (1 - q) * np.exp(log_ndtr(-x / sigma)) + q * np.exp(log_ndtr((1 - x) / sigma))
    tail[0] = 1
    tilted = np.maximum(-np.diff(tail), 0) * np.exp(tilt * edges[:-1])
    total = tilted.sum()
    masses = np.maximum(np.fft.irfft(np.fft.rfft(tilted / total) ** steps, size), 0)
    start = -round(2 / width)
    masses = np.roll(masses, -((start - steps * low) % size))
    losses = (start + np.arange(size)) * width
    masses[masses < 1e-14 * masses.max()] = 0
    masses = masses * np.exp(steps * math.log(total) - tilt * losses)
    found = []
    for delta in SMALL:
        least, most = 0.0, 12.0
        for _ in range(20):
            middle = (least + most) / 2
            above = losses > middle
            more = float((masses[above] * -np.expm1(middle - losses[above])).sum()) > delta
            least, most = (middle, most) if more else (least, middle)
        found.append(least)
    return found


def test_ten_thousand_steps_cost_no_less_than_a_lower_bound_at_every_delta():
    """Without a tilt rounding is 1e-12 here: epsilon at delta 1e-12 is then 2.89 or 3.00, not 3.02."""
    sigma, steps, tilt = 0.7, 10_000, 2.0
    plan = PrivacyPlan.calibrate(examples=750_000, batch_size=250, steps=steps, noise_multiplier=sigma, delta=SMALL[0])
    for delta, least in zip(SMALL, lower_bounds(250 / 750_000, sigma, steps, tilt), strict=True):
        said = plan.epsilon(delta)
        assert least <= said <= least * 1.03 + 0.05
        assert said <= plan.epsilon(delta, accountant="rdp")


def test_a_delta_that_is_not_resolved_is_refused_by_the_smallest_that_is():
    plan = PrivacyPlan.calibrate(examples=750_000, batch_size=250, steps=10_000, noise_multiplier=0.9, delta=1e-5)
    with pytest.raises(SfumatoError, match="give a delta of at least 7e-23, or fewer steps"):
        plan.epsilon(2e-23)
    assert plan.epsilon(1e-18) < plan.epsilon(7e-23) < math.inf
