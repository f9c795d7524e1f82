"""Two worlds: what phase I chooses, what phase II proves of honest training, and that it catches a planted bug."""

import json

import numpy as np
import pytest
import torch

from sfumato import SfumatoError
from studies import many_models
from studies.worlds import Choice, Problem, World

EXAMPLES, WIDTH, CLASSES, MODELS = 40, 6, 3, 2000
BEST = Choice(canary="blank", learning_rate=0.1, max_norm=0.1, batch_size=EXAMPLES, steps=10)


def problem(epsilon=1.0):
    generator = torch.Generator().manual_seed(0)
    records = World(torch.rand(EXAMPLES, WIDTH, generator=generator), torch.arange(EXAMPLES) % CLASSES)
    canaries = {
        "blank": World(torch.zeros(1, WIDTH), torch.tensor([0])),
        "noise": World(torch.rand(1, WIDTH, generator=generator), torch.tensor([0])),
    }
    return Problem(records=records, canaries=canaries, classes=CLASSES, epsilon=epsilon, delta=0.01)


@pytest.mark.parametrize("hidden", [0, 4])
def test_honest_training_keeps_its_promise_and_comes_near_it(hidden):
    """At epsilon 4 so many models prove about 2, of Gaussian scores of exactly that promise too."""
    choice = Choice(**vars(BEST) | {"hidden": hidden})
    found = problem(4.0).measure(choice, models=MODELS)
    assert 1.5 < found.bound.epsilon < 4.0
    assert found.bound.at_most > 4.0
    assert found.bound.confidence == 0.999
    assert found.bound.observations["models_in"] == found.bound.observations["models_out"] == MODELS / 2
    assert found.advantage < found.advantage_at_most
    assert 0.5 < found.auc < 1
    assert "does not contradict the promise of 4" in found.sentence
    assert json.loads(json.dumps(found.to_dict()))["bound"]["epsilon"] == found.bound.epsilon


def a_third_of_the_noise(total, plan, generator):
    noise = torch.empty_like(total).normal_(generator=generator)
    deviation = plan.noise_multiplier * plan.max_norm / 3
    return (total + deviation * noise) / (plan.expected_batch_size * plan.max_norm)


def without_clipping(layers, inputs, targets, taken, *, max_norm, loss):
    return real_sum(layers, inputs, targets, taken, max_norm=30 * max_norm, loss=loss)


def the_last_record_twice(layers, inputs, targets, taken, *, max_norm, loss):
    times = torch.ones(len(inputs))
    times[-1] = 2
    return real_sum(layers, inputs, targets, taken * times, max_norm=max_norm, loss=loss)


real_sum = many_models.clipped_sum
BUGS = [("noisy_mean", a_third_of_the_noise), ("clipped_sum", without_clipping), ("clipped_sum", the_last_record_twice)]


@pytest.mark.parametrize(("place", "bug"), BUGS, ids=[bug.__name__ for _, bug in BUGS])
def test_a_planted_bug_is_caught(place, bug, monkeypatch):
    """Training that promises epsilon 2 and does not keep it."""
    monkeypatch.setattr(many_models, place, bug)
    found = problem(2.0).measure(BEST, models=5 * MODELS)
    assert found.bound.refutes(2.0)
    assert "contradicts the promise" in found.sentence


def test_phases_share_no_model_and_worlds_share_no_noise():
    these = problem()
    first, second = (np.concatenate(these.scores(BEST, 50, phase=phase)) for phase in (1, 2))
    assert len(np.unique(np.concatenate([first, second]))) == 200
    np.testing.assert_array_equal(np.concatenate(these.scores(BEST, 50, phase=2)), second)


def test_what_is_not_given_is_refused():
    with pytest.raises(SfumatoError, match="canary is '7 as 8'"):
        problem().measure(Choice(**vars(BEST) | {"canary": "7 as 8"}), models=10)
    with pytest.raises(SfumatoError, match="canary must be"):
        Choice(**vars(BEST) | {"canary": "yellow"})
    with pytest.raises(SfumatoError, match="models must be"):
        problem().measure(BEST, models=0)
