"""The rules that settings are drawn by: their bounds hold, and bounds that are none are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import SfumatoError
from sfumato.randomness import Choice, LogUniform, Uniform


@given(low=st.floats(1e-6, 1e3), ratio=st.floats(1.001, 1e6), seed=st.integers(0, 1000))
def test_bounds_hold(low, ratio, seed):
    generator = np.random.default_rng(seed)
    high = low * ratio
    assert low <= Uniform(low=low, high=high).value(generator) <= high
    assert low * (1 - 1e-12) <= LogUniform(low=low, high=high).value(generator) <= high * (1 + 1e-12)


def test_values_of_a_choice_are_given_back_as_they_are():
    generator = np.random.default_rng(0)
    assert {Choice(values=(None, 3, "adam")).value(generator) for _ in range(50)} == {None, 3, "adam"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Choice(values=()), "values must be a non-empty tuple"),
        (lambda: Choice(values="sgd"), "values must be a non-empty tuple"),
        (lambda: Uniform(low=1, high=1), "low must be below high"),
        (lambda: Uniform(low=0, high=float("inf")), "high must be a finite number"),
        (lambda: LogUniform(low=0, high=1), "low must be positive"),
        (lambda: LogUniform(low=2, high=1), "low must be below high"),
    ],
)
def test_rules_that_are_none_are_refused(call, words):
    with pytest.raises(SfumatoError, match=words):
        call()
