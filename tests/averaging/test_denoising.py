"""The rule for k on quadratic problems, where a search knows the best k: runs of SGD with noise of a known scale."""

from typing import Any

import numpy as np
import pytest
import torch

from sfumato import SfumatoError
from sfumato.averaging import last_k, squared_distances
from sfumato.averaging.denoising import responses_to

STEPS, DIRECTIONS, DEVIATION = 200, 2000, 0.05
SHAPES = {"constant": np.ones(STEPS), "cosine": 0.5 * (1 + np.cos(np.pi * np.arange(STEPS) / STEPS))}
CURVATURES = {
    "many decades": np.geomspace(1e-3, 1, DIRECTIONS),
    "a power law": np.arange(1, DIRECTIONS + 1) ** -0.7,
    "one": np.full(DIRECTIONS, 0.02),
}


def descended(
    curvatures: np.ndarray, rates: np.ndarray, momentum: float, noise: np.ndarray, begin: np.ndarray
) -> np.ndarray:
    """The errors e_0, ..., e_T (T + 1, d) of SGD as torch does it."""
    errors, velocity = [begin], np.zeros_like(begin)
    for rate, one in zip(rates, noise, strict=True):
        velocity = momentum * velocity + curvatures * errors[-1] + one
        errors.append(errors[-1] - rate * velocity)
    return np.array(errors)


def distances_of(kept: np.ndarray) -> np.ndarray:
    return squared_distances([{"w": torch.from_numpy(each)} for each in kept])


def losses(kept: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
    """1/2 sum_h h e^2 of the mean of the last k, by search."""
    means = np.cumsum(kept[::-1], axis=0) / np.arange(1, len(kept) + 1)[:, None]
    return 0.5 * (means**2 @ curvatures)


def run(*, curvatures: str, shape: str, rate: float, momentum: float, begin: float, seed: int = 0) -> dict[str, Any]:
    """What the rule is given, and the losses by search."""
    rng = np.random.default_rng(seed)
    rates = rate * (1 - momentum) * SHAPES[shape]
    noise = DEVIATION * rng.standard_normal((STEPS, DIRECTIONS))
    h = CURVATURES[curvatures]
    errors = descended(h, rates, momentum, noise, begin * rng.standard_normal(DIRECTIONS))
    steps = np.arange(5, STEPS + 1, 5)
    asked = {"rates": rates, "noise": np.full(STEPS, DEVIATION**2), "parameters": DIRECTIONS, "momentum": momentum}
    return {"distances": distances_of(errors[steps]), "steps": steps, "losses": losses(errors[steps], h), **asked}


CASES = [
    {"curvatures": curvatures, "shape": shape, "rate": rate, "momentum": momentum, "begin": begin}
    for curvatures in CURVATURES
    for shape in SHAPES
    for rate, momentum in ((0.2, 0.9), (1.0, 0.0))
    for begin in (0.1, 1.0)
]


def excess_over_the_best(cases: list[dict[str, Any]], **changed: Any) -> dict[str, np.ndarray]:
    """For each case, the loss of the k that is picked, of the last weights and of all, over that of the best k."""
    found: dict[str, list[float]] = {"picked": [], "last": [], "all": []}
    for case in cases:
        asked = run(**case)
        by_search = asked.pop("losses")
        k = last_k(**{**asked, **changed})
        for name, place in (("picked", k - 1), ("last", 0), ("all", -1)):
            found[name].append(by_search[place] / by_search.min())
    return {name: np.array(values) for name, values in found.items()}


def test_the_picked_k_is_close_to_the_best_one():
    found = excess_over_the_best(CASES)
    assert np.median(found["picked"]) < 1.02
    assert np.quantile(found["picked"], 0.9) < 1.1
    assert found["picked"].max() < 1.3
    for other in ("last", "all"):
        assert np.quantile(found[other], 0.9) > 1.3
        assert found[other].max() > 2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("curvature", [0.0, 0.3])
def test_responses_are_those_of_sgd(momentum, curvature):
    """Each column of A is a run from the optimum with noise of 1 in one step; r is a run without noise from 1."""
    steps, total = np.array([0, 3, 4, 9]), 9
    rates = np.linspace(1.0, 0.2, total)
    kept, rows = responses_to(curvature, steps, rates, momentum)
    of_noise = descended(np.full(total, curvature), rates, momentum, np.eye(total), np.zeros(total))
    np.testing.assert_allclose(rows, of_noise[steps], atol=1e-14)
    of_error = descended(np.array([curvature]), rates, momentum, np.zeros((total, 1)), np.ones(1))
    np.testing.assert_allclose(kept, of_error[steps, 0], atol=1e-14)


FIT = {"rates": [1.0] * 4, "noise": [1.0] * 4, "parameters": 2}
APART = np.ones((2, 2)) - np.eye(2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: last_k(APART, [1, 5], **FIT), "ascending numbers from 0 to 4"),
        (lambda: last_k(APART, [1, 2, 3], **FIT), "distances must be those of 3"),
        (lambda: last_k(0 * APART, [1, 2], **FIT), "weights that are equal"),
        (lambda: last_k(APART, [1, 2], **{**FIT, "rates": [1.0, 1.0, 0.0, 1.0]}), "rates must be above 0"),
        (lambda: last_k(APART, [1, 2], **FIT, momentum=1.0), "momentum must be below 1"),
    ],
)
def test_what_tells_nothing_is_refused(call, words):
    with pytest.raises(SfumatoError, match=words):
        call()
