"""The comparison of pairs: predictions agree with replays of the noise, and the pair to take has the least."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato import Noise, RunKey, SfumatoError
from sfumato.privacy.planning.comparison import compare, to_take

STEPS, MOMENTUM = 24, 0.8


@pytest.fixture(scope="module")
def pairs():
    return compare(examples=200, batch_size=25, steps=STEPS, epsilon=5.0, delta=1e-5, momentum=MOMENTUM)


def test_every_pair_has_a_plan_within_the_budget_or_a_reason(pairs):
    assert len(pairs) == 9
    for pair in pairs:
        assert (pair.plan is None) == bool(pair.why)
        if pair.plan is not None:
            assert 4.9 < pair.plan.epsilon() <= 5.0
            assert (pair.plan.steps, pair.plan.expected_batch_size) == (STEPS, 25)
    assert [pair.participation for pair in pairs if pair.plan is None] == ["full-batch"]


def test_predictions_are_what_replays_of_the_noise_leave_in_the_weights(pairs):
    """Heavy-ball SGD at rate 1 on noise alone, 20,000 weights at once: within five standard errors."""
    count = 20_000
    for pair in pairs:
        if pair.plan is None:
            continue
        noise = Noise(pair.plan.mechanism, max_norm=1.0, key=RunKey.from_seed(3))
        state, velocity, weights, squares = noise.begin(), np.zeros(count), np.zeros(count), 0.0
        for step in range(STEPS):
            noisy, state = noise.add({"w": torch.zeros(count)}, step, state)
            velocity = MOMENTUM * velocity + noisy["w"].numpy() / 25
            weights = weights - velocity
            squares += float((weights**2).mean()) / STEPS
        assert np.sqrt((weights**2).mean()) == pytest.approx(pair.final, rel=5 / np.sqrt(2 * count))
        assert np.sqrt(squares) == pytest.approx(pair.all_steps, rel=0.03)


def test_memory_is_what_the_noise_keeps(pairs):
    for pair in pairs:
        if pair.plan is not None:
            noise = Noise(pair.plan.mechanism, max_norm=1.0, key=RunKey.from_seed(0))
            state = noise.begin()
            for step in range(STEPS):
                _, state = noise.add({"w": torch.zeros(3)}, step, state)
            kept = state.tensors.get("w")
            assert pair.buffers == noise.buffers(STEPS) == (0 if kept is None else len(kept))


def test_the_pair_to_take_has_nearly_the_least_noise_and_keeps_little(pairs):
    known = [pair for pair in pairs if pair.plan is not None]
    assert [pair.final for pair in known] == sorted(pair.final for pair in known)
    best = to_take(pairs)
    assert best.final <= 1.03 * known[0].final
    assert all(pair.buffers >= best.buffers for pair in known if pair.final <= 1.03 * known[0].final)
    assert not to_take(pairs, sampled=False).sampled


def test_more_steps_than_can_be_compared_are_refused():
    with pytest.raises(SfumatoError, match="pairs are compared over at most 1000000 steps, got 1000001"):
        compare(examples=200, batch_size=25, steps=1_000_001, epsilon=5.0, delta=1e-5)
