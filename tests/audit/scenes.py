"""The real step, and the same with one bug that released systems have had: what an onlooker observes of a canary.

The onlooker knows everything but the canary's presence and the noise: from the sums without noise in both worlds they
have the direction in which these differ, and observe the release in that direction, in standard deviations of the
nominal noise. One release is repeated in so many copies of its sum, each with noise of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import ClippedGradient, Gaussian, Noise, Poisson, PrivacyPlan, PrivateStep, RunKey, Sampler
from sfumato.gradients import ClippedSum, UserGradient
from sfumato.privacy import BandedToeplitz, FixedClipping, FullBatch, User
from sfumato.randomness.noise import blocks

SIGMA, NORM, COPIES, WIDTH, SIZE = 1.0, 2.0, 2000, 3, 40
PLAN = PrivacyPlan(
    population=SIZE,
    participation=FullBatch(),
    mechanism=Gaussian(noise_multiplier=SIGMA),
    steps=10,
    delta=1e-5,
    clipping=FixedClipping(NORM),
)
MU = 1 / SIGMA
"""What the plan promises of one release."""

Batches = Sequence[tuple[torch.Tensor, ...]]
Observed = tuple[np.ndarray, np.ndarray]


def linear() -> nn.Module:
    """Whose gradient for an example is the example."""
    return nn.Linear(WIDTH, 1, bias=False)


def mean(outputs: torch.Tensor, _: Any) -> torch.Tensor:
    return outputs.mean()


def examples(*rows: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples with these gradients in the first coordinate, in clipping norms."""
    inputs = torch.zeros(len(rows), WIDTH)
    inputs[:, 0] = torch.tensor(rows) * NORM
    return inputs, torch.zeros(len(rows))


class Copies:
    """A query whose sum is released in many copies.

    Args:
        sums: of a micro-batch, {parameter: sum}; the real one unless a bug is planted.
        of: whose norm, unit and sensitivity it claims.
    """

    def __init__(self, sums: Callable[..., dict[str, torch.Tensor]], of: Any):
        self.sums, self.of = sums, of
        self.max_norm, self.sums_over, self.sensitivity = of.max_norm, of.sums_over, of.sensitivity

    def zeros(self) -> dict[str, torch.Tensor]:
        return {name: value.expand(COPIES, *value.shape).clone() for name, value in self.of.zeros().items()}

    def __call__(self, *batch: torch.Tensor) -> ClippedSum:
        found = {name: value.expand(COPIES, *value.shape).clone() for name, value in self.sums(*batch).items()}
        return ClippedSum(gradients=found, norms=torch.zeros(0), losses=torch.zeros(0))


def real(gradient: Any) -> Copies:
    return Copies(lambda *batch: gradient(*batch).gradients, gradient)


def flat(values: dict[str, torch.Tensor]) -> np.ndarray:
    """(COPIES, coordinates)."""
    return torch.cat([value.reshape(COPIES, -1) for value in values.values()], 1).double().numpy()


def observed(
    query: Copies,
    inside: Batches,
    outside: Batches,
    *,
    plan: PrivacyPlan = PLAN,
    divisors: tuple[float | None, float | None] = (None, None),
) -> Observed:
    """The release in both worlds, through `PrivateStep`, in the direction in which they differ."""
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=RunKey.from_seed(0))
    scale = plan.expected_batch_size * plan.max_norm
    clean, released = [], []
    for index, (batches, divisor) in enumerate(zip((inside, outside), divisors, strict=True)):
        step = PrivateStep(plan=plan, gradient=query, noise=noise, divisor=divisor)
        released.append(flat(step(index, batches)) * scale)
        total = sum((flat(query(*batch).gradients)[0] for batch in batches), start=np.zeros(released[0].shape[1]))
        clean.append(total * scale / (divisor or scale))
    difference = clean[0] - clean[1]
    direction = difference / np.linalg.norm(difference)
    unit = plan.max_norm * plan.mechanism.noise_multiplier
    return (released[0] - clean[1]) @ direction / unit, (released[1] - clean[1]) @ direction / unit


def clipped(max_norm: float = NORM, *, views: int = 1) -> ClippedGradient:
    return ClippedGradient(linear(), mean, max_norm=max_norm, views=views)


def of_noise(factor: float, micro_batches: int = 1):
    """A canary beside others; with the bug the noise has another scale."""

    def scene(patch: pytest.MonkeyPatch | None) -> Observed:
        if patch:
            scale = Noise.standard_deviation.fget  # type: ignore[attr-defined]
            patch.setattr(Noise, "standard_deviation", property(lambda noise: factor * scale(noise)))
        others = [examples(-3.0, 0.2)] * micro_batches
        return observed(real(clipped()), [*others, examples(9.0)], others)

    return scene


def no_clipping(patch: pytest.MonkeyPatch | None) -> Observed:
    sums = clipped(1e6 if patch else NORM)
    return observed(Copies(lambda *batch: sums(*batch).gradients, clipped()), [examples(2.0, 0.1)], [examples(0.1)])


def clipping_after_the_sum(patch: pytest.MonkeyPatch | None) -> Observed:
    """The canary turns the sum round."""
    whole, right = clipped(1e6), clipped()

    def late(*batch: torch.Tensor) -> dict[str, torch.Tensor]:
        total = whole(*batch).gradients["weight"]
        return {"weight": total * min(1.0, NORM / float(total.norm()))}

    query = Copies(late, right) if patch else real(right)
    return observed(query, [examples(-10.0, 20.0)], [examples(-10.0)])


def views_clipped_one_by_one(patch: pytest.MonkeyPatch | None) -> Observed:
    views = 3
    right, single = clipped(views=views), clipped()

    def one_by_one(inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return single(inputs.flatten(0, 1), targets.repeat_interleave(views)).gradients

    inputs, targets = examples(5.0)
    batch = (inputs[:, None].expand(-1, views, -1).contiguous(), targets)
    return observed(Copies(one_by_one, right) if patch else real(right), [batch], [])


def the_same_noise_in_two_steps(patch: pytest.MonkeyPatch | None) -> Observed:
    """A canary takes part in one of two steps, whose difference is looked at."""
    if patch:
        draw = blocks.draw
        patch.setattr(blocks, "draw", lambda rule, shapes, kept, step, *rest: draw(rule, shapes, kept, 0, *rest))
    noise = Noise(PLAN.mechanism, max_norm=NORM, key=RunKey.from_seed(0))
    step = PrivateStep(plan=PLAN, gradient=real(clipped()), noise=noise)
    seen = [flat(step(index, batches))[:, 0] * SIZE for index, batches in enumerate([[examples(9.0)], [], [], []])]
    return (seen[0] - seen[1]) / SIGMA / 2**0.5, (seen[2] - seen[3]) / SIGMA / 2**0.5


def the_same_noise_on_two_workers(patch: pytest.MonkeyPatch | None) -> Observed:
    """Each draws one parameter's noise; the canary moves the first, and the second is taken off it."""
    if patch:
        generator = RunKey.generator
        patch.setattr(RunKey, "generator", lambda key, stream, step, *_: generator(key, stream, step))
    noise = Noise(PLAN.mechanism, max_norm=NORM, key=RunKey.from_seed(0))

    def released(present: bool, step: int) -> np.ndarray:
        total = {"first": torch.full((COPIES,), NORM * present), "second": torch.zeros(COPIES)}
        shares = [noise.prepare(total, step, share=(rank, 2)).add_to(total)[0] for rank in (0, 1)]
        return (shares[0]["first"] - shares[1]["second"]).numpy() / (NORM * SIGMA * 2**0.5)

    return released(True, 0), released(False, 1)


def private_batch_statistics(patch: pytest.MonkeyPatch | None) -> Observed:
    """Without the canary all are alike; beside it all others lie on one side of the batch's mean."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1, bias=False)).double()

    def coupled(inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        losses = 20 * NORM * model(inputs[:, :1].double())[:, 0]
        own = [torch.autograd.grad(loss, model[1].weight, retain_graph=True)[0] for loss in losses]
        return {"1.weight": sum(g * min(1.0, NORM / float(g.norm() + 1e-12)) for g in own).float()}  # type: ignore

    frozen = nn.Sequential(nn.BatchNorm1d(1, affine=False).eval(), nn.Linear(1, 1, bias=False))
    right = ClippedGradient(frozen, lambda outputs, _: 20 * NORM * outputs.mean(), max_norm=NORM)
    query = Copies(coupled, right) if patch else Copies(lambda x, y: right(x[:, :1], y).gradients, right)
    others = [0.1] * 10
    return observed(query, [examples(*others, 50.0)], [examples(*others)])


def an_example_twice_in_a_batch(patch: pytest.MonkeyPatch | None) -> Observed:
    inside = [examples(9.0, 9.0)] if patch else [examples(9.0)]
    return observed(real(clipped()), inside, [])


def the_realised_batch_as_divisor(patch: pytest.MonkeyPatch | None) -> Observed:
    """The canary pulls against all others, and makes the divisor larger."""
    others = [1.0] * (SIZE - 1)
    divisors = (SIZE * NORM, (SIZE - 1) * NORM) if patch else (None, None)
    return observed(real(clipped()), [examples(*others, -9.0)], [examples(*others)], divisors=divisors)


def a_user_cut_in_two(patch: pytest.MonkeyPatch | None) -> Observed:
    plan = replace(PLAN, unit=User())
    gradient = UserGradient(linear(), mean, max_norm=NORM)
    inputs, targets = examples(9.0, 9.0)
    whole = (inputs[None], targets[None].long(), torch.full((1, 2), 0.5))
    halves = (inputs[:, None], targets[:, None].long(), torch.ones(2, 1))
    return observed(real(gradient), [halves if patch else whole], [], plan=plan)


def the_state_of_correlated_noise_released(patch: pytest.MonkeyPatch | None) -> Observed:
    """Whoever has what the noise remembers takes it off."""
    mechanism = BandedToeplitz(noise_multiplier=SIGMA, coefficients=(1.0, 0.5))
    noise = Noise(mechanism, max_norm=NORM, key=RunKey.from_seed(0))

    def released(present: bool, seed: int) -> np.ndarray:
        noise = Noise(mechanism, max_norm=NORM, key=RunKey.from_seed(seed))
        total = {"weight": torch.full((COPIES,), NORM * present)}
        noisy, state = noise.add(total, 0, noise.begin())
        known = state.tensors["weight"][0].numpy() if patch else 0.0
        return noisy["weight"].double().numpy() / (NORM * SIGMA) - known

    assert noise.buffers(1) == 1
    return released(True, 0), released(False, 1)


SHUFFLED = PrivacyPlan(
    population=400,
    participation=Poisson(batch_size=40),
    mechanism=Gaussian(noise_multiplier=0.25),
    steps=10,
    delta=1e-5,
    clipping=FixedClipping(1.0),
)


def shuffling_taken_for_poisson(patch: pytest.MonkeyPatch | None, runs: int = 8) -> Observed:
    """Each of 400 records has a coordinate of its own, and 400 coordinates have no record; of each its largest step."""
    plan, count = SHUFFLED, SHUFFLED.population
    model = nn.Linear(2 * count, 1, bias=False)
    gradient = ClippedGradient(model, mean, max_norm=1.0)
    records, targets = 9 * torch.eye(2 * count)[:count], torch.zeros(count)
    largest = []
    for seed in range(runs):
        key = RunKey.from_seed(seed)
        step = PrivateStep(plan=plan, gradient=gradient, noise=Noise(plan.mechanism, max_norm=1.0, key=key))
        sampler = Sampler(plan, key, records=count)
        order = np.random.default_rng(seed).permutation(count).reshape(plan.steps, -1)
        drawn = [order[t] if patch else sampler.draw(t) for t in range(plan.steps)]
        steps = [step(t, [(records[rows], targets[rows])])["weight"][0] for t, rows in enumerate(drawn)]
        largest.append(torch.stack(steps).amax(0).numpy() * plan.expected_batch_size / plan.mechanism.noise_multiplier)
    seen = np.stack(largest)
    return seen[:, :count].ravel(), seen[:, count:].ravel()
