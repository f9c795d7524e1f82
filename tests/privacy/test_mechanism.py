"""Mechanisms: what they refuse, and what they are called."""

import math

import numpy as np
import pytest
import torch

from sfumato import SfumatoError
from sfumato.privacy import BandedToeplitz, Gaussian, Tree
from sfumato.privacy.factorisation import inverse, toeplitz_covariance, tree_covariance
from sfumato.randomness import Noise, RunKey


def banded(*coefficients) -> BandedToeplitz:
    return BandedToeplitz(noise_multiplier=1.0, coefficients=coefficients)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tree(noise_multiplier=0.0), "noise_multiplier must be positive"),
        (lambda: Tree(noise_multiplier=1.0, steps_per_tree=0), "steps_per_tree must be at least 1"),
        (lambda: Tree(noise_multiplier=1.0, steps_per_tree=5, completed=1), "completed must be true or false, got 1"),  # type: ignore[arg-type]
        (lambda: Tree(noise_multiplier=1.0, completed=True), "completed must be false if there is only one tree"),
        (lambda: Tree(noise_multiplier=np.int8(3)), r"noise_multiplier must be a number of Python, got np.int8\(3\)"),  # type: ignore[arg-type]
        (lambda: banded(), r"coefficients must begin with 1, got \(\)"),
        (lambda: banded(0.5, 0.2), r"coefficients must begin with 1, got \(0.5, 0.2\)"),
        (lambda: BandedToeplitz(noise_multiplier=1.0, coefficients=3), "coefficients must begin with 1, got 3"),  # type: ignore[arg-type]
        (lambda: banded(1.0, "0.5"), "coefficients must be a number"),
    ],
)
def test_bad_values_are_refused(make, words):
    with pytest.raises(SfumatoError, match=words) as error:
        make()
    assert error.value.remedy


def test_columns_begin_with_one_and_are_cut_to_the_steps():
    assert list(banded(1, 0.5, 0.25).column(2)) == [1, 0.5]
    assert list(banded(1, 0.5, 0.25).column(5)) == [1, 0.5, 0.25, 0, 0]


@pytest.mark.parametrize(
    "mechanism",
    [
        Gaussian(noise_multiplier=3.0),
        Tree(noise_multiplier=3.0),
        Tree(noise_multiplier=3.0, steps_per_tree=5),
        Tree(noise_multiplier=3.0, steps_per_tree=5, completed=True),
        banded(1.0, 0.5, 0.375),
    ],
    ids=repr,
)
def test_variances_are_those_of_the_noise_that_is_added(mechanism):
    """Of combinations of all steps, by the covariance of the noise; and of some of it, drawn."""
    steps, coordinates = 17, 20_000
    combinations = np.random.default_rng(0).standard_normal((4, steps))
    combinations[0] = 1.0
    combinations[1, 9:] = 0.0
    if isinstance(mechanism, Tree):
        covariance = tree_covariance(steps, steps_per_tree=mechanism.steps_per_tree, completed=mechanism.completed)
    else:
        column = [1.0] if isinstance(mechanism, Gaussian) else mechanism.column(steps)
        covariance = toeplitz_covariance(inverse(column, steps))
    found = mechanism.variances(combinations)
    np.testing.assert_allclose(found, np.diag(combinations @ covariance @ combinations.T), rtol=1e-9)
    noise = Noise(mechanism, max_norm=2.0, key=RunKey.from_seed(1))
    state, drawn = noise.begin(), []
    for step in range(steps):
        noisy, state = noise.add({"w": torch.zeros(coordinates)}, step, state)
        drawn.append(noisy["w"].double().numpy())
    measured = (combinations @ np.array(drawn)).var(1) / noise.standard_deviation**2
    np.testing.assert_allclose(measured, found, rtol=5 * math.sqrt(2 / coordinates))
