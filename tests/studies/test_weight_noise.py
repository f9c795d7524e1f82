"""Training with drawn weights: the draws, their means, the gradient, and the accuracy with them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.experiment import Settings
from sfumato.randomness import RunKey
from sfumato.training import pretraining
from sfumato.training.job import PublicTraining
from studies.weight_noise.course import noisy_parameters, sampled_weights, train_noisy


@pytest.fixture(scope="module")
def shown(spots):
    return replace(spots, public=True)


def job_for(source, *, model="linear", steps=8, rate=0.1, optimizer="adam", seed=1):
    settings = Settings(model=model, optimizer=optimizer, learning_rate=rate, ema=0.0)
    training = PublicTraining(settings=settings, steps=steps, batch_size=50)
    return pretraining.prepare(source, training, threads=1, key=RunKey.from_seed(seed))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_draw_is_another_and_the_same_generator_draws_the_same():
    layer, seen = nn.Linear(4, 4), []
    for seed in (0, 0, 1):
        with sampled_weights(noisy_parameters(layer), 1.0, generator(seed)):
            seen.append(layer.weight.detach().clone())
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_training_that_diverges_ends_there_and_counts_as_nothing_right(shown):
    took = train_noisy(job_for(shown, model="lenet-300-100"), 1e30)
    assert took.diverged == 0
    assert took.accuracy == 0.0
