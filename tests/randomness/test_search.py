"""What a search draws: K by its law (a wrong law is rejected), settings and noise by their own, each by its key."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato import RunKey, SfumatoError
from sfumato.privacy import CandidateCount
from sfumato.randomness import Choice, LogUniform, Uniform, draw_settings, noisy_score, number_of_candidates

KEYS = [RunKey.from_seed(seed) for seed in range(6000)]
SPACE = {
    "learning_rate": LogUniform(low=0.01, high=10.0),
    "momentum": Uniform(low=0.5, high=1.0),
    "optimizer": Choice(values=("sgd", "adam", "lamb")),
}
LIMIT = 5.5
OTHER_SHAPE = {-0.5: 0.0, 0.0: 1.0, 1.0: 0.3, 4.0: 1.5, math.inf: 10.0}
LAWS = [CandidateCount(mean=5, shape=shape) for shape in OTHER_SHAPE]


def fits(counts: list[int], draws: CandidateCount) -> bool:
    """Whether a chi-square test over cells of at least 20 expected searches accepts the law."""
    observed = np.bincount(counts)
    cells: list[list[float]] = [[0.0, 0.0]]
    for count, mass in enumerate(draws.masses()):
        cells[-1][0] += observed[count] if count < len(observed) else 0
        cells[-1][1] += mass * len(counts)
        if cells[-1][1] >= 20:
            cells.append([0.0, 0.0])
    rest = cells.pop()
    cells[-1] = [cells[-1][0] + rest[0], cells[-1][1] + rest[1]]
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return stats.chi2.sf(statistic, len(cells) - 1) > 1e-6


def drawn(draws: CandidateCount) -> list[int]:
    return [number_of_candidates(draws, key) for key in KEYS]


@pytest.mark.parametrize("draws", LAWS, ids=lambda draws: f"{draws.law} {draws.mean}")
def test_k_has_its_law_and_no_other(draws):
    counts = drawn(draws)
    assert fits(counts, draws)
    for wrong in (
        CandidateCount(mean=2 * draws.mean, shape=draws.shape),
        CandidateCount(mean=draws.mean / 2, shape=draws.shape),
        CandidateCount(mean=draws.mean, shape=OTHER_SHAPE[draws.shape]),
    ):
        assert not fits(counts, wrong), wrong


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


def errors(noise: float = 20.0, key: RunKey = KEYS[0]) -> np.ndarray:
    return np.array([noisy_score(900, noise, candidate, key) - 900 for candidate in range(6000)])


def scale_is(values: np.ndarray, deviation: float) -> bool:
    return abs((values**2).mean() / (deviation**2 + 1 / 12) - 1) < LIMIT * math.sqrt(2 / len(values))


def test_the_score_s_noise_has_its_scale_and_no_other():
    assert scale_is(errors(), 20.0)
    assert scale_is(errors(7.0), 7.0)
    for wrong in (10.0, 18.0, 22.0, 40.0):
        assert not scale_is(errors(), wrong)
    assert abs(errors().mean()) < LIMIT * 20 / math.sqrt(6000)
    spread = errors() + KEYS[0].generator("cells", 0).uniform(-0.5, 0.5, 6000)
    assert stats.kstest(spread, stats.norm(0, 20).cdf).pvalue > 1e-6  # scipy 1.18 takes no arguments with "norm"
    assert stats.kstest(spread, stats.norm(0, 23).cdf).pvalue < 1e-6


def test_the_score_s_noise_is_drawn_for_each_candidate_by_its_number():
    assert abs(np.mean(errors()[1:] * errors()[:-1])) < LIMIT * 400 / math.sqrt(6000)
    assert abs(np.mean(errors() * errors(key=KEYS[1]))) < LIMIT * 400 / math.sqrt(6000)
    assert noisy_score(900, 20.0, 7, KEYS[0]) == noisy_score(900, 20.0, 7, RunKey.from_seed(0))
    assert noisy_score(901, 20.0, 7, KEYS[0]) == noisy_score(900, 20.0, 7, KEYS[0]) + 1
    assert isinstance(noisy_score(900, 20.0, 7, KEYS[0]), int)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: noisy_score(0.9, 20.0, 0, KEYS[0]), "right must be a number of records"),
        (lambda: noisy_score(9, 0.0, 0, KEYS[0]), "noise must be positive"),
        (lambda: noisy_score(9, 20.0, -1, KEYS[0]), "candidate must be a number from 0"),
        (lambda: draw_settings(0, {"views": (1, 2)}, KEYS[0]), "the space of 'views' is not a rule to draw from"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, words):
    with pytest.raises(SfumatoError, match=words):
        call()
