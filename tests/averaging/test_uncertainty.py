"""Prediction intervals: Student's by its formula and by simulation, of independent and of dependent draws."""

import math

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from sfumato import SfumatoError
from sfumato.averaging import interval, kept_steps, select_spaced, widening_of
from sfumato.privacy import BandedToeplitz, Gaussian, Tree
from sfumato.privacy.factorisation import square_root
from sfumato.randomness import Noise, RunKey

RUNS, K = 20_000, 6


def runs(correlation: float, seed: int, length: int = K) -> np.ndarray:
    """(RUNS, length): stationary AR(1) series of unit variance."""
    noise = np.random.default_rng(seed).standard_normal((RUNS, length))
    noise[:, 1:] *= math.sqrt(1 - correlation**2)
    return lfilter([1.0], [1.0, -correlation], noise, axis=1)


def coverage(correlation: float, shares: tuple[float, ...] = (1.0,), confidence: float = 0.95) -> float:
    """How often the interval from one run's checkpoints holds the figure of another run."""
    found = interval(torch.from_numpy(runs(correlation, 0).T.copy()), confidence, shares=shares)
    other = torch.from_numpy(runs(correlation, 1)[:, -len(shares) :] @ np.array(shares))
    return ((found.low <= other) & (other <= found.high)).double().mean().item()


def error_of(share: float) -> float:
    return 4.5 * math.sqrt(share * (1 - share) / RUNS)


@pytest.mark.parametrize(("shares", "confidence"), [((1.0,), 0.95), ((0.1, 0.3, 0.6), 0.8)])
def test_independent_draws_are_covered_as_often_as_it_says(shares, confidence):
    assert abs(coverage(0.0, shares, confidence) - confidence) < error_of(confidence)


def test_a_wrong_scale_would_be_found():
    """Without the 1 in sqrt(1 + 1 / k) it is an interval for the mean, and with 1 alone one for a known mean."""
    values = torch.from_numpy(runs(0.0, 0).T.copy())
    other = torch.from_numpy(runs(0.0, 1)[:, -1])
    found = interval(values)
    for scale in (math.sqrt(1 / K), 1.0):
        half = (found.high - found.mean) * scale / math.sqrt(1 + 1 / K)
        assert abs(((other - found.mean).abs() <= half).double().mean().item() - 0.95) > error_of(0.95)


TAKEN, COORDINATES = 64, 4000
CORRELATED = {
    "tree": Tree(noise_multiplier=1.0),
    "trees": Tree(noise_multiplier=1.0, steps_per_tree=24, completed=True),
    "banded": BandedToeplitz(noise_multiplier=1.0, coefficients=tuple(square_root(8).tolist())),
}


def iterates(mechanism, curvature: float, seed: int) -> torch.Tensor:
    """(TAKEN, COORDINATES): weights of SGD with rate 1 on a quadratic loss, with the noise that runs have."""
    noise = Noise(mechanism, max_norm=1.0, key=RunKey.from_seed(seed))
    state, weights, kept = noise.begin(), torch.zeros(COORDINATES), []
    for step in range(TAKEN):
        gradient, state = noise.add({"w": curvature * weights}, step, state)
        weights = weights - gradient["w"]
        kept.append(weights)
    return torch.stack(kept)


@pytest.mark.parametrize("name", CORRELATED)
def test_intervals_hold_with_the_noise_of_each_mechanism(name):
    """Where kept weights hardly hang together; along flat directions, at least as often as with independent noise."""
    mechanism = CORRELATED[name]
    places = select_spaced(kept_steps(TAKEN, 20), TAKEN, spacing=2)
    factor = widening_of(mechanism.variances, places, rates=[1.0] * TAKEN, total=TAKEN)

    def covered(mechanism, curvature: float, widening: float) -> float:
        run = iterates(mechanism, curvature, 0)[[step - 1 for step in places]]
        found, other = interval(run, widening=widening), iterates(mechanism, curvature, 1)[-1]
        return ((found.low <= other) & (other <= found.high)).double().mean().item()

    error = 4.5 * math.sqrt(0.95 * 0.05 / COORDINATES)
    assert covered(mechanism, 0.95, factor) > 0.95 - error
    for curvature in (0.0, 0.05):
        assert covered(mechanism, curvature, factor) > covered(Gaussian(noise_multiplier=1.0), curvature, 1.0)
    if name == "tree":  # whose 64th step moves more nodes than any before it
        assert covered(mechanism, 0.95, 1.0) < 0.9


def test_the_widening_is_that_of_the_worst_curvature():
    """By the noise's covariance and impulses through the recursion, on a grid of its own."""
    rates, momentum, places = np.linspace(1.0, 0.5, 40), 0.5, [22, 26, 30, 34, 38]
    band = np.array([1.0, 0.5, 0.375])
    matrix = np.linalg.inv(sum(value * np.eye(40, k=-lag) for lag, value in enumerate(band)))

    def deviations(curvature: float) -> np.ndarray:
        error, velocity, found = np.zeros(40), np.zeros(40), []
        for step in range(40):
            velocity = momentum * velocity + curvature * error + np.eye(40)[step]
            error = error - rates[step] * velocity
            found.append(np.linalg.norm(error @ matrix))
        return np.array(found)

    worst = max(
        deviations(curvature)[-1] / np.sqrt(np.mean(deviations(curvature)[np.array(places) - 1] ** 2))
        for curvature in (0.0, *np.geomspace(1e-3, 0.5, 60))
    )
    mechanism = BandedToeplitz(noise_multiplier=1.0, coefficients=tuple(band))
    found = widening_of(mechanism.variances, places, rates=rates.tolist(), total=50, momentum=momentum)
    assert found == pytest.approx(max(1.0, worst), rel=0.02)
    assert worst > 1.05


def test_by_default_the_second_half_of_a_run_counts():
    assert select_spaced([100, 500, 501, 700, 1000], 1000) == (501, 700, 1000)
    assert select_spaced([100, 500, 501, 700, 1000], 1000, burn_in=0, spacing=300) == (100, 700, 1000)
    assert select_spaced([7, 9], 11) == (7, 9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: interval(torch.ones(1, 3)), "checkpoints must be at least 2, got 1"),
        (lambda: interval(torch.ones(3), 1.0), "confidence must lie strictly between"),
        (lambda: interval(torch.ones(3), shares=[0.5, 0.4]), "shares must sum to 1"),
        (lambda: interval(torch.ones(3), widening=0.5), "widening must be at least 1, got 0.5"),
        (lambda: select_spaced([1, 2], 4), "an interval can use 0 of them: those after step 2"),
        (lambda: select_spaced([4, 3], 4), "kept steps must ascend"),
    ],
)
def test_what_gives_no_interval_is_refused(call, words):
    with pytest.raises(SfumatoError, match=words):
        call()
