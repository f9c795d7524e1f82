"""Training in bfloat16 against training in float32: python benchmarks/accuracy/bfloat16.py DATA

Three problems in small, (3, 1e-5)-DP, C = 1: cnn on 1,200 digits, LeNet-5 on 8,192 images of MNIST, a WRN-10-1 on 8,192
images of CIFAR-10 halved to 16 x 16 pixels. SGD at a constant rate, the best of three or four in float32 with another
seed. Each of five seeds trains twice: in float32, and with the matrix products and convolutions of the steps in
bfloat16 (`--precision bfloat16`). Both runs have the same first weights, participants and noise. Averaged weights are
scored in float32 on test images. Prints the means, and the mean difference with the standard error of the paired
differences.

DATA holds mnist.npz and cifar10.npz. Goes on where it stopped; writes results/bfloat16.json. 20 minutes on one thread
of a busy machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import EMA, ClippedGradient, Noise, PrivacyPlan, PrivateStep, RunKey, Sampler, _devices, models
from sfumato.training.step import descend

RESULT = RESULTS / "bfloat16.json"
EPSILON, DELTA, SEEDS = 3.0, 1e-5, (1, 2, 3, 4, 5)
MICRO_BATCH = 64
Part = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is trained, on what, and how."""

    model: str
    data: str
    trained: int
    batch: int
    steps: int
    rate: float


PROBLEMS = {
    "digits, cnn": Problem(model="cnn", data="digits", trained=1_200, batch=256, steps=60, rate=2.0),
    "MNIST, LeNet-5": Problem(model="lenet5", data="mnist", trained=8_192, batch=512, steps=100, rate=4.0),
    "CIFAR-10, WRN-10-1": Problem(model="wrn-10-1", data="cifar10", trained=8_192, batch=256, steps=100, rate=4.0),
}


def parts(problem: Problem, data: Path) -> tuple[Part, Part]:
    """Images (N, C, H, W) from -1 to 1 and classes, to train on and to score on."""
    if problem.data == "digits":
        pixels, labels = load_digits(return_X_y=True)
        images, classes = torch.tensor(pixels).float().reshape(-1, 1, 8, 8) / 8 - 1, torch.tensor(labels)
        ends = slice(problem.trained), slice(problem.trained, None)
        return (images[ends[0]], classes[ends[0]]), (images[ends[1]], classes[ends[1]])
    with np.load(data / f"{problem.data}.npz") as arrays:
        return (
            prepared(arrays["x_train"][: problem.trained], arrays["y_train"][: problem.trained]),
            prepared(arrays["x_test"], arrays["y_test"]),
        )


def prepared(images: np.ndarray, labels: np.ndarray) -> Part:
    """Of bytes (N, H, W), or (N, H, W, 3), which are halved."""
    shown = torch.from_numpy(images).float() / 127.5 - 1
    shown = functional.avg_pool2d(shown.permute(0, 3, 1, 2), 2) if shown.ndim == 4 else shown.unsqueeze(1)
    return shown, torch.from_numpy(labels).long()


def accuracy(problem: Problem, seed: int, precision: str, known: tuple[Part, Part]) -> float:
    """Test accuracy of one run's averaged weights."""
    (inputs, targets), judged = known
    plan = PrivacyPlan.calibrate(
        examples=problem.trained, batch_size=problem.batch, steps=problem.steps, epsilon=EPSILON, delta=DELTA
    )
    key = RunKey.from_seed(seed, "bfloat16")
    torch.manual_seed(seed)
    net = models.create(problem.model, classes=10, channels=inputs.shape[1], size=inputs.shape[-1])
    gradient = ClippedGradient(net, functional.cross_entropy, max_norm=plan.max_norm)
    noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=key)
    take, sampler = PrivateStep(plan=plan, gradient=gradient, noise=noise), Sampler(plan, key, records=problem.trained)
    weights, averaging = dict(net.named_parameters()), EMA()
    optimizer = torch.optim.SGD(weights.values(), problem.rate)
    average = averaging.begin(weights)
    for step in range(problem.steps):
        rows = torch.from_numpy(sampler.draw(step)).split(MICRO_BATCH)
        with _devices.compute_mode("cpu", precision):
            released = take(step, [(inputs[some], targets[some]) for some in rows])
        descend(optimizer, weights, released)
        average = averaging.update(average, weights, step)
    with torch.no_grad():
        for name, value in average.items():
            weights[name].copy_(value)
        answers = torch.cat([net(some).argmax(1) for some in judged[0].split(500)])
    return float((answers == judged[1]).double().mean())


def line(name: str, rows: dict[str, Sequence[float]]) -> str:
    """A problem's means and paired difference, in points."""
    before, after = ([100 * value for value in rows[precision]] for precision in _devices.PRECISIONS)
    apart = [one - other for one, other in zip(after, before, strict=True)]
    error = stdev(apart) / len(apart) ** 0.5
    return f"{name:<20}{mean(before):6.2f}% {mean(after):6.2f}%   {mean(apart):+.2f} ({error:.2f})"


def main(data: Path) -> None:
    torch.set_num_threads(1)  # as fast as two for such small batches, and more even beside other work
    found = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    for name, problem in PROBLEMS.items():
        rows = found.setdefault(name, {precision: [] for precision in _devices.PRECISIONS})
        known = parts(problem, data)
        for place, seed in enumerate(SEEDS):
            for precision in _devices.PRECISIONS:
                if len(rows[precision]) == place:
                    rows[precision].append(accuracy(problem, seed, precision, known))
                    RESULT.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(line(name, rows), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
