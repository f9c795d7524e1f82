"""For each bug that a released system has had, the audit that catches it; and the right code is not accused by it."""

import math

import numpy as np
import pytest

from sfumato.audit import at_least, at_most, white_box
from tests.audit import scenes

CONFIDENCE = 1 - 1e-6
THRESHOLDS = np.array([0.35, 0.5, 1.0]) * scenes.MU


def by_the_white_box(inside: np.ndarray, outside: np.ndarray) -> bool:
    """Whether mu is shown to be larger than the plan's."""
    found, _ = white_box(inside, outside, delta=1e-5, confidence=CONFIDENCE, thresholds=THRESHOLDS)
    return found.mu > scenes.MU


def by_two_worlds(inside: np.ndarray, outside: np.ndarray) -> bool:
    """Whether fewer go unnoticed than Poisson sampling leaves out: P_in >= (1 - q)^T P_out for any event."""
    plan, alpha, threshold = scenes.SHUFFLED, 1 - CONFIDENCE, 3.0
    unnoticed = at_most(int((inside < threshold).sum()), len(inside), alpha / 2)
    rightly = at_least(int((outside < threshold).sum()), len(outside), alpha / 2)
    return math.log(rightly / unnoticed) > -plan.steps * math.log1p(-plan.sampling_probability)


CAUGHT_BY = {
    "noise scale halved": (by_the_white_box, scenes.of_noise(1 / 2)),
    "noise without the clipping norm": (by_the_white_box, scenes.of_noise(1 / scenes.NORM)),
    "noise divided by the batch size": (by_the_white_box, scenes.of_noise(1 / scenes.SIZE)),
    "noise divided by the square root of the accumulation": (by_the_white_box, scenes.of_noise(4**-0.5, 4)),
    "no clipping": (by_the_white_box, scenes.no_clipping),
    "clipping after the sum": (by_the_white_box, scenes.clipping_after_the_sum),
    "views clipped one by one": (by_the_white_box, scenes.views_clipped_one_by_one),
    "the same noise in two steps": (by_the_white_box, scenes.the_same_noise_in_two_steps),
    "the same noise on two workers": (by_the_white_box, scenes.the_same_noise_on_two_workers),
    "private batch statistics": (by_the_white_box, scenes.private_batch_statistics),
    "an example twice in a batch": (by_the_white_box, scenes.an_example_twice_in_a_batch),
    "shuffling taken for Poisson": (by_two_worlds, scenes.shuffling_taken_for_poisson),
    "the realised batch as divisor": (by_the_white_box, scenes.the_realised_batch_as_divisor),
    "a user cut in two": (by_the_white_box, scenes.a_user_cut_in_two),
    "the state of correlated noise released": (by_the_white_box, scenes.the_state_of_correlated_noise_released),
}
"""{bug: (the audit that catches it, what is observed with it, or without it)}."""


@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_the_bug_is_caught(bug, monkeypatch):
    accuses, scene = CAUGHT_BY[bug]
    assert accuses(*scene(monkeypatch))


OF_THEIR_OWN = [
    bug for bug in CAUGHT_BY if bug not in ("noise without the clipping norm", "noise divided by the batch size")
]
"""Without their bug those of the noise's scale are one observation."""


@pytest.mark.parametrize("bug", OF_THEIR_OWN)
def test_the_right_code_is_not_accused(bug):
    accuses, scene = CAUGHT_BY[bug]
    assert not accuses(*scene(None))


def test_the_right_code_uses_what_the_clipping_allows():
    """An audit of a canary that hardly moves the sum would accuse nobody."""
    for bug in ("noise scale halved", "clipping after the sum", "a user cut in two", "the realised batch as divisor"):
        inside, outside = CAUGHT_BY[bug][1](None)
        assert inside.mean() - outside.mean() == pytest.approx(scenes.MU, abs=0.15)
