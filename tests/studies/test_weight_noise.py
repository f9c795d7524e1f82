"""Training with drawn weights: the draws, their means, the gradient, and the accuracy with them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.experiment import Settings
from sfumato.randomness import RunKey
from sfumato.training import pretraining
from sfumato.training.job import PublicTraining
from sfumato.training.steps import PublicSteps
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


@pytest.mark.parametrize("deviation", [0.1, 3.0])
def test_weights_are_drawn_around_their_means_with_the_deviation(deviation):
    layer = nn.Linear(300, 200)
    means = {name: value.detach().clone() for name, value in layer.named_parameters()}
    with sampled_weights(noisy_parameters(layer), deviation, generator()):
        noise = torch.cat([(value.detach() - means[name]).flatten() for name, value in layer.named_parameters()])
    count, within = len(noise), 5 / (2 * len(noise)) ** 0.5
    assert abs(noise.mean()) < 5 * deviation / count**0.5
    assert noise.std().item() == pytest.approx(deviation, rel=within)
    assert noise.std().item() != pytest.approx(1.05 * deviation, rel=within)  # another scale would be seen
    assert (noise.abs() < deviation).double().mean() == pytest.approx(0.6827, abs=0.01)
    assert all(torch.equal(value, means[name]) for name, value in layer.named_parameters())


def test_every_draw_is_another_and_the_same_generator_draws_the_same():
    layer, seen = nn.Linear(4, 4), []
    for seed in (0, 0, 1):
        with sampled_weights(noisy_parameters(layer), 1.0, generator(seed)):
            seen.append(layer.weight.detach().clone())
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_the_means_descend_by_the_gradient_at_the_draw(shown):
    """w = mu + sigma z: one step of plain SGD, by hand."""
    job, deviation = job_for(shown, steps=1, optimizer="sgd"), 0.5
    by_hand = job_for(shown, steps=1, optimizer="sgd")
    head = by_hand.module.head
    draws = torch.Generator().manual_seed(by_hand.key.seed("weights", 0))
    with torch.no_grad():
        means = {name: value.clone() for name, value in head.named_parameters()}
        for value in head.parameters():
            value.add_(deviation * torch.randn(value.shape, generator=draws))
    gradient, _ = PublicSteps(by_hand, by_hand.key)(0, None)
    train_noisy(job, deviation)
    for name, mean in means.items():
        assert gradient[f"head.{name}"].norm() > 0
        torch.testing.assert_close(job.module.head.get_parameter(name), mean - 0.1 * gradient[f"head.{name}"])


def test_training_that_diverges_ends_there_and_counts_as_nothing_right(shown):
    took = train_noisy(job_for(shown, model="lenet-300-100"), 1e30)
    assert took.diverged == 0
    assert took.accuracy == 0.0
