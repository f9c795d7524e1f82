"""What the audit by canary gradients shows of a real run on digits, beside what the run promises.

    python benchmarks/trust/white_box.py [--seeds 5] [--steps 5]

A small network is trained with full batches on the digits and on 5,000 canaries, each of which has a row of weights of
its own; 5,000 more rows belong to canaries that are not there. In each step the onlooker sees the noisy sum
in each canary's direction and adds the steps up: 5,000 observations of the whole run in each world. The threshold is
half of the nominal mu, fixed beforehand. "gaussian" is the bound that presumes a Gaussian curve, "plain" the one that
presumes nothing, both with confidence 95%; "most" is the former at the counts that are to be expected. Each seed is a
run; the median is what is quoted. Writes results/white-box.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import median

import numpy as np
import torch
from scipy.special import ndtr
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import ClippedGradient, Noise, PrivacyPlan, PrivateStep, RunKey
from sfumato.audit import Bound, epsilon_of, white_box
from sfumato.audit.gaussian import mu_lower_bound
from sfumato.privacy import FullBatch
from sfumato.training.step import descend

RESULT = RESULTS / "white-box.json"
CANARIES, DELTA, PIECE = 5000, 1e-5, 512


class WithCanaries(nn.Module):
    """A classifier of digits beside a table with a row for each canary, which stays at zero, none for digits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        self.own = nn.Embedding(2 * CANARIES + 1, 10)
        nn.init.zeros_(self.own.weight)

    def forward(self, pixels: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return self.body(pixels) + 1000 * (row < 2 * CANARIES).unsqueeze(-1) * self.own(row)


def pieces(pixels: torch.Tensor, labels: torch.Tensor):
    """The full batch: digits, then canaries of class 0 whose image is black."""
    for start in range(0, len(labels), PIECE):
        part = slice(start, start + PIECE)
        yield (pixels[part], torch.full((len(labels[part]),), 2 * CANARIES)), labels[part]
    for start in range(0, CANARIES, PIECE):
        rows = torch.arange(start, min(start + PIECE, CANARIES))
        yield (torch.zeros(len(rows), 64), rows), torch.zeros_like(rows)


def observed(plan: PrivacyPlan, seed: int) -> tuple[np.ndarray, float]:
    """What the run shows of each canary, in standard deviations: (2 CANARIES,); and the accuracy on the digits."""
    torch.manual_seed(seed)
    images, classes = load_digits(return_X_y=True)
    pixels, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(classes)
    model = WithCanaries()
    gradient = ClippedGradient(model, functional.cross_entropy, max_norm=plan.max_norm)
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=RunKey.from_seed(seed))
    step = PrivateStep(plan=plan, gradient=gradient, noise=noise)
    body = {name: value for name, value in model.named_parameters() if name.startswith("body")}
    optimizer = torch.optim.SGD(body.values(), lr=20.0)
    seen = torch.zeros(2 * CANARIES)
    for index in range(plan.steps):
        with torch.no_grad():
            blank = model.body(torch.zeros(1, 64)).softmax(1)[0]
        direction = functional.normalize(blank - functional.one_hot(torch.tensor(0), 10), dim=0)
        private = step(index, pieces(pixels, labels))
        scale = plan.expected_batch_size / plan.mechanism.noise_multiplier
        seen += private["own.weight"][:-1] @ direction * scale / math.sqrt(plan.steps)
        descend(optimizer, body, private)
    with torch.no_grad():
        accuracy = (model.body(pixels).argmax(1) == labels).float().mean().item()
    return seen.numpy(), accuracy


def measured(epsilon: float, steps: int, seeds: int) -> dict:
    """One row of the results."""
    count = len(load_digits().target) + CANARIES
    plan = PrivacyPlan.calibrate(
        examples=count, participation=FullBatch(), steps=steps, epsilon=epsilon, delta=DELTA, max_norm=1.0
    )
    mu = math.sqrt(steps) / plan.mechanism.noise_multiplier
    bounds: list[tuple[Bound, Bound]] = []
    accuracies = []
    for seed in range(seeds):
        seen, accuracy = observed(plan, seed)
        found = white_box(seen[:CANARIES], seen[CANARIES:], delta=DELTA, thresholds=mu / 2, nominal_mu=mu)
        bounds.append(found)
        accuracies.append(accuracy)
        print(f"epsilon {epsilon:g}, seed {seed}: {found[0].sentence}; {found[1].sentence}", file=sys.stderr)
    errors = round(CANARIES * float(ndtr(-mu / 2)))
    gaussian = [one.epsilon for one, _ in bounds]
    return {
        "noise multiplier": plan.mechanism.noise_multiplier,
        "mu": mu,
        "gaussian": median(gaussian),
        "share": median(gaussian) / epsilon,
        "most": epsilon_of(mu_lower_bound(errors, errors, (CANARIES, CANARIES), 0.05), DELTA),
        "plain": median(one.epsilon for _, one in bounds),
        "noticed": bounds[0][0].smallest_fault,
        "gaussian by seed": gaussian,
        "plain by seed": [one.epsilon for _, one in bounds],
        "accuracy": median(accuracies),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    rows = {f"{epsilon:g}": measured(epsilon, given.steps, given.seeds) for epsilon in (1.0, 3.0, 8.0)}
    result = {"canaries": CANARIES, "delta": DELTA, "steps": given.steps, "seeds": given.seeds, "epsilon": rows}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
