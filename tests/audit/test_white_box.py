"""The real training step, white box: canaries among real examples, micro-batches, sampling; mu from below."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, Gaussian, Noise, Poisson, PrivacyPlan, PrivateStep, RunKey, Sampler
from sfumato.audit import white_box
from sfumato.privacy import FixedClipping, FullBatch

CANARIES, OTHERS, PIXELS, SIGMA, NORM = 400, 32, 16, 1.0, 0.3


class WithCanaries(nn.Module):
    """A small network whose canaries each have a coordinate of their own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(PIXELS, 8), nn.Tanh(), nn.Linear(8, 3))
        self.own = nn.Linear(2 * CANARIES, 3, bias=False)
        nn.init.zeros_(self.own.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs[:, :PIXELS]) + self.own(inputs[:, PIXELS:])


def records() -> tuple[torch.Tensor, torch.Tensor]:
    """Real examples first, then the canaries, of which the first half is ever in."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.zeros(OTHERS + CANARIES, PIXELS + 2 * CANARIES)
    inputs[:OTHERS, :PIXELS] = torch.randn(OTHERS, PIXELS, generator=generator)
    inputs[OTHERS:, PIXELS : PIXELS + CANARIES] = 1000 * torch.eye(CANARIES)
    return inputs, torch.arange(OTHERS + CANARIES) % 3 * (torch.arange(OTHERS + CANARIES) < OTHERS)


@pytest.mark.parametrize(("q", "steps"), [(1.0, 25), (0.5, 60)], ids=["full batches", "Poisson"])
def test_mu_is_shown_to_within_a_fifth_and_never_above(q, steps):
    """More observations where a canary is there half of the time; confidence 1 - 1e-6."""
    inputs, targets = records()
    count = len(inputs)
    plan = PrivacyPlan(
        population=count,
        participation=FullBatch() if q == 1 else Poisson(batch_size=round(q * count)),
        mechanism=Gaussian(noise_multiplier=SIGMA),
        steps=steps,
        delta=1e-5,
        clipping=FixedClipping(NORM),
    )
    torch.manual_seed(0)
    model, key = WithCanaries(), RunKey.from_seed(0)
    gradient = ClippedGradient(model, functional.cross_entropy, max_norm=NORM)
    step = PrivateStep(plan=plan, gradient=gradient, noise=Noise(plan.mechanism, max_norm=NORM, key=key))
    sampler = Sampler(plan, key, records=count)
    with torch.no_grad():
        direction = functional.normalize(model(inputs[-1:] * 0).softmax(1)[0] - torch.eye(3)[0], dim=0)
    seen = []
    for index in range(steps):
        pieces = [(inputs[rows], targets[rows]) for rows in torch.from_numpy(sampler.draw(index)).split(150)]
        released = step(index, pieces)["own.weight"] * plan.expected_batch_size / SIGMA
        seen.append(direction @ released)
    seen = torch.stack(seen).numpy()
    found, plain = white_box(
        seen[:, :CANARIES].ravel(),
        seen[:, CANARIES:].ravel(),
        delta=1e-5,
        confidence=1 - 1e-6,
        thresholds=0.5 / SIGMA,
        sampling_probability=q,
        nominal_mu=1 / SIGMA,
    )
    assert 0.8 / SIGMA < found.mu <= 1 / SIGMA
    assert plain.proven
    assert found.smallest_fault > 0.7
