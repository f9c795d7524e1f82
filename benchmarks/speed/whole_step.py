"""What a whole step of a small network costs: python benchmarks/speed/whole_step.py [--rounds 3]

A LeNet-5 on 4,000 grey images of 28 pixels, batches of 256 by coins: the draw, the views, the clipped sum, the noise,
the optimizer, the average and the ledger, by processor time on one thread, over a plain step of PyTorch (forward, mean
loss, backward, momentum) on 256 images that lie ready; medians of runs in turn. Also how long it takes until the first
sum of a WRN-16-4, self-check and choice of methods included. Writes results/whole-step-MACHINE.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
import tyro
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import machine, machine_name
from sfumato import ClippedGradient, models, train
from sfumato.observers.observer import Observer

STEPS, BATCH, RECORDS, SIDE = 40, 256, 4000, 28


class Clock(Observer):
    """Processor time between the ends of steps."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, step: int) -> None:
        """A step has ended."""
        self.times.append(time.thread_time())


def private(source: str, directory: Path) -> float:
    """Milliseconds of a step of a run."""
    clock = Clock()
    plan = {"epsilon": 3.0, "steps": STEPS, "batch_size": BATCH, "micro_batch": 2 * BATCH, "keep": 0}
    train("lenet5", source, directory=directory, threads=1, observers=[clock], device="cpu", **plan)
    return 1e3 * median(np.diff(clock.times))


def plain(inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Milliseconds of a step without privacy."""
    model = models.create("lenet5", classes=10, channels=1, size=SIDE)
    optimizer, times = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(STEPS):
        began = time.thread_time()
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        times.append(time.thread_time() - began)
    return 1e3 * median(times)


def first_call() -> float:
    """Seconds for a WRN-16-4's self-check and first sum of 32 images."""
    began = time.thread_time()
    gradient = ClippedGradient(models.create("wrn-16-4", classes=10, channels=3, size=32), functional.cross_entropy)
    gradient.self_check((3, 32, 32))
    gradient(torch.randn(32, 3, 32, 32), torch.arange(32) % 10)
    return time.thread_time() - began


def main(rounds: int = 3) -> None:
    """Measure.

    Args:
        rounds: runs of each kind, in turn.
    """
    torch.set_num_threads(1)
    numbers = np.random.default_rng(0)
    images = numbers.integers(0, 255, (RECORDS + 500, SIDE, SIDE, 1), dtype=np.uint8)
    labels = np.arange(RECORDS + 500) % 10
    inputs = torch.randn(BATCH, 1, SIDE, SIDE)
    found: dict[str, list[float]] = {"private": [], "plain": []}
    with TemporaryDirectory() as place:
        parts = {"x_train": images[:RECORDS], "y_train": labels[:RECORDS]}
        np.savez(f"{place}/noise.npz", **parts, x_test=images[RECORDS:], y_test=labels[RECORDS:])
        for number in range(rounds):
            found["plain"].append(plain(inputs, torch.arange(BATCH) % 10))
            found["private"].append(private(f"npz:{place}/noise.npz", Path(place) / str(number)))
    ratios = sorted(one / other for one, other in zip(found["private"], found["plain"], strict=True))
    about = machine("cpu")
    result = {"machine": about, "milliseconds": found, "ratios": ratios, "first_call_seconds": first_call()}
    (RESULTS / f"whole-step-{machine_name(about)}.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(
        f"a step {median(found['private']):.1f} ms, plain {median(found['plain']):.1f} ms, ratio {median(ratios):.2f}"
    )
    print(f"until a WRN-16-4's first sum {result['first_call_seconds']:.1f} s")


if __name__ == "__main__":
    tyro.cli(main)
