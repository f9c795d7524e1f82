"""One of several workers whose model lies on the counting device: a private step. A script for test_on_a_device.py.

An operation on tensors of two devices is refused there, and so is what CUDA would refuse. It prints as JSON how far the
step is from that of one process on the CPU, and where its tensors lie.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sfumato import ClippedGradient, Noise, PrivacyPlan, PrivateStep, RunKey
from sfumato.privacy import FixedClipping, FullBatch, Tree
from sfumato.randomness import NoiseState
from sfumato.randomness.noise import blocks
from sfumato.training import launch
from sfumato.training.workers import ALONE, Workers

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks.shared.counting import NAME, counted, counting_device

blocks.BLOCK = 50  # so that each worker has several
PLAN = PrivacyPlan(
    population=20,
    participation=FullBatch(),
    mechanism=Tree(noise_multiplier=2.0),
    steps=3,
    delta=1e-3,
    clipping=FixedClipping(0.3),
)


def steps(module: nn.Module, workers: Workers, device: str) -> list[dict[str, torch.Tensor]]:
    """The private gradients of two steps, and what the noise remembers."""
    gradient = ClippedGradient(module.to(device), cross_entropy, max_norm=0.3)
    noise = Noise(PLAN.mechanism, max_norm=0.3, key=RunKey.from_seed(0))
    step, state = PrivateStep(plan=PLAN, gradient=gradient, noise=noise, workers=workers), NoiseState(step=0)
    found = []
    for number in range(2):
        drawn = torch.Generator().manual_seed(number)
        inputs, targets = torch.randn(20, 6, generator=drawn), torch.arange(20) % 3
        pieces = [(inputs[at : at + 3].to(device), targets[at : at + 3].to(device)) for at in range(0, 20, 3)]
        dealt = workers.deal(number, np.arange(20), [len(piece[0]) for piece in pieces])
        private, state = step(number, [pieces[place] for place in dealt], state)
        found += [private, workers.gather_state(state).tensors]
    return found


def main() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))
    with launch.join_workers() as workers:  # torch knows of no way of its own between devices that count
        with counting_device():
            pass  # before the first backward pass
        expected = steps(module, ALONE, "cpu")
        compare(module, workers, expected)


def compare(module: nn.Module, workers: Workers, expected: list[dict[str, torch.Tensor]]) -> None:
    """Print how far the device's steps are from these."""
    with counting_device():
        with counted() as counts:
            found = steps(module, workers, NAME)
        apart = [
            float((mine[name].cpu() - value).abs().max()) / max(1e-9, float(value.abs().max()))
            for mine, own in zip(found, expected, strict=True)
            for name, value in own.items()
            if value.numel()
        ]
        where = sorted({value.device.type for one in found[::2] for value in one.values()})
        workers.refuse_diverged(found[2], 1)
    print(json.dumps({"apart": max(apart), "where": where, **counts.to_dict()}))


if __name__ == "__main__":
    main()
