"""Banded noise under cyclic Poisson sampling: published events, and why there must be no more bands than groups."""

import math

import numpy as np
import pytest

from sfumato import SfumatoError
from sfumato.privacy import BandedToeplitz, CyclicPoisson, Gaussian, Poisson, PrivacyPlan

# (sigma, T, groups, N, B, epsilon by PLD, epsilon by RDP) at delta 1e-5; probability groups B / N of a turn.
EVENTS = [
    (1.0, 128, 16, 16_000, 10, 0.35841, 1.0264),
    (2.0, 1000, 10, 1000, 10, 2.33740, 2.58057),
    (4.0, 2000, 8, 1000, 80, 13.6327, 14.6140),  # dp-accounting bounds the divergence of order 2.7 here: 14.7215
    (4.0, 2000, 1, 1000, 80, 3.95353, 4.28155),
]


def plan(sigma, steps, groups, population, batch_size, coefficients=(1.0,)) -> PrivacyPlan:
    mechanism = BandedToeplitz(noise_multiplier=sigma, coefficients=coefficients)
    return PrivacyPlan(
        population=population,
        participation=CyclicPoisson(batch_size=batch_size, groups=groups),
        mechanism=mechanism if len(coefficients) > 1 else Gaussian(noise_multiplier=sigma),
        steps=steps,
        delta=1e-5,
    )


@pytest.mark.parametrize(("sigma", "steps", "groups", "population", "batch_size", "pld", "rdp"), EVENTS)
def test_rows_of_amplified_events(sigma, steps, groups, population, batch_size, pld, rdp):
    releases = plan(sigma, steps, groups, population, batch_size)
    assert releases.epsilon() == pytest.approx(pld, rel=3e-4)
    assert releases.epsilon(accountant="rdp") == pytest.approx(rdp, rel=3e-4)


def test_noise_counts_over_the_length_of_a_column():
    coefficients = (1.0, 0.5, 0.375, 0.3125)
    banded = plan(2.0 * math.hypot(*coefficients), 1000, 10, 1000, 10, coefficients)
    (part,), (independent,) = banded.loss.parts, plan(2.0, 1000, 10, 1000, 10).loss.parts
    assert part.sigma == pytest.approx(independent.sigma, rel=1e-12)
    assert (part.probability, part.steps) == (independent.probability, independent.steps) == (0.1, 100)


def test_a_group_whose_turn_has_begun_has_taken_it():
    turns = [plan(2.0, steps, 10, 1000, 10).loss.parts[0].steps for steps in (1, 10, 11, 20, 21)]
    assert turns == [1, 1, 2, 2, 3]
    whole = plan(2.0, 1000, 10, 1000, 10)
    assert whole.epsilon(steps=500) == plan(2.0, 500, 10, 1000, 10).epsilon() < whole.epsilon()


def test_one_group_is_poisson_sampling():
    poisson = PrivacyPlan(
        population=1000,
        participation=Poisson(batch_size=80),
        mechanism=Gaussian(noise_multiplier=4.0),
        steps=50,
        delta=1e-5,
    )
    assert plan(4.0, 50, 1, 1000, 80).epsilon() == poisson.epsilon()


@pytest.mark.parametrize("bands", [2, 3, 5])
def test_as_many_bands_as_groups_and_no_more(bands):
    """With so many the columns of one group's steps share no row; with one more they would."""
    coefficients = tuple(1 / (1 + k) for k in range(bands))
    column = BandedToeplitz(noise_multiplier=1.0, coefficients=coefficients).column(30)
    dense = np.array([[column[row - col] if row >= col else 0.0 for col in range(30)] for row in range(30)])
    for groups, shared in ((bands, 1), (bands - 1, 2)):
        assert (dense[:, ::groups] != 0).sum(axis=1).max() == shared
    assert plan(2.0, 30, bands, 1000, 10, coefficients).epsilon() > 0
    with pytest.raises(SfumatoError, match=f"at least as many as the {bands} bands of the noise, got {bands - 1}"):
        plan(2.0, 30, bands - 1, 1000, 10, coefficients)
