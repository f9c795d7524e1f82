"""What a search draws: settings by their rules (a wrong rule is rejected), each by its key."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sfumato import RunKey, SfumatoError
from sfumato.randomness import Choice, LogUniform, Uniform, draw_settings

KEYS = [RunKey.from_seed(seed) for seed in range(6000)]
SPACE = {
    "learning_rate": LogUniform(low=0.01, high=10.0),
    "momentum": Uniform(low=0.5, high=1.0),
    "optimizer": Choice(values=("sgd", "adam", "lamb")),
}
LIMIT = 5.5


def test_settings_are_drawn_by_their_rules():
    many = [draw_settings(candidate, SPACE, KEYS[0]) for candidate in range(3000)]
    rates = np.log([settings["learning_rate"] for settings in many])
    width = math.log(1000)
    assert stats.kstest(rates, "uniform", args=(math.log(0.01), width)).pvalue > 1e-6
    assert stats.kstest(rates, "uniform", args=(math.log(0.01), 1.1 * width)).pvalue < 1e-6
    momenta = [settings["momentum"] for settings in many]
    assert stats.kstest(momenta, "uniform", args=(0.5, 0.5)).pvalue > 1e-6
    assert stats.kstest(momenta, "uniform", args=(0.5, 0.55)).pvalue < 1e-6
    chosen = [settings["optimizer"] for settings in many]
    assert stats.chisquare([chosen.count(name) for name in ("sgd", "adam", "lamb")]).pvalue > 1e-6
    assert abs(np.corrcoef(rates, momenta)[0, 1]) < LIMIT / math.sqrt(3000)
    assert abs(np.corrcoef(rates[1:], rates[:-1])[0, 1]) < LIMIT / math.sqrt(3000)


def test_candidates_are_drawn_with_replacement():
    two = {"optimizer": Choice(values=("sgd", "adam"))}
    pairs = [tuple(draw_settings(candidate, two, key)["optimizer"] for candidate in (0, 1)) for key in KEYS[:800]]
    assert stats.chisquare([pairs.count(pair) for pair in sorted(set(pairs))]).pvalue > 1e-6
    assert len(set(pairs)) == 4


def test_settings_are_functions_of_key_candidate_and_name():
    here = draw_settings(3, SPACE, KEYS[0])
    assert here == draw_settings(3, SPACE, RunKey.from_seed(0))
    assert here["learning_rate"] != draw_settings(4, SPACE, KEYS[0])["learning_rate"]
    assert here["learning_rate"] != draw_settings(3, SPACE, KEYS[1])["learning_rate"]
    fewer = {"momentum": SPACE["momentum"]}
    assert draw_settings(3, fewer, KEYS[0]) == {"momentum": here["momentum"]}
    same = draw_settings(3, {"a": SPACE["momentum"], "b": SPACE["momentum"]}, KEYS[0])
    assert same["a"] != same["b"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: draw_settings(-1, SPACE, KEYS[0]), "candidate must be at least 0"),
        (lambda: draw_settings(0, {"views": (1, 2)}, KEYS[0]), "the space of 'views' is not a rule to draw from"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, words):
    with pytest.raises(SfumatoError, match=words):
        call()


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
