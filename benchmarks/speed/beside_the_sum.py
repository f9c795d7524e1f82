"""A whole step of `train` beside its bare clipped sum: python benchmarks/speed/beside_the_sum.py [--device cuda]

A WRN-16-4 on random images of 32 pixels, batches of 4,096 by coins, moved and mirrored. A whole step is the draw, the
images, their views, the clipped sum, the noise, the optimizer, the average, the ledger; the bare sum is
`ClippedGradient` on as many images that lie ready, in micro-batches of the same size, and with the methods, of the run.
Milliseconds by the clock, medians; prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import tyro
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from sfumato import ClippedGradient, _devices, models, train
from sfumato.observers.observer import Observer
from sfumato.training.step import delay_by_one

STEPS, SUMS, SIDE, TESTED = 8, 5, 32, 20
"""Few records are tested, since a short run is scored after every step."""


class Clock(Observer):
    """Seconds between the ends of steps, when the release has come back to be hashed."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, step: int) -> None:
        """A step has ended."""
        self.times.append(time.perf_counter())


def measured(
    model: str = "wrn-16-4", *, batch: int = 4096, views: int = 1, records: int = 50_000, device: str = "cuda"
) -> dict[str, Any]:
    """Milliseconds of a whole step and of the bare sum, one over the other, and the run's micro-batch and views.

    Args:
        model: its name.
        batch: examples in a step, expected and, of the bare sum, exactly.
        views: of each example.
        records: how many there are to draw from.
        device: where to compute.
    """
    numbers, clock = np.random.default_rng(0), Clock()
    labels = np.arange(records + TESTED) % 10
    images = numbers.integers(0, 255, (records + TESTED, SIDE, SIDE, 3), dtype=np.uint8)
    with TemporaryDirectory() as place:
        parts = {"x_train": images[:records], "y_train": labels[:records]}
        np.savez(f"{place}/noise.npz", **parts, x_test=images[records:], y_test=labels[records:])
        plan = {"steps": STEPS, "batch_size": batch, "noise_multiplier": 3.0, "delta": 1e-6, "views": views}
        known = {"shift": 4, "flip": True, "learning_rate": 0.1, "keep": 0, "observers": [clock], "device": device}
        train(model, f"npz:{place}/noise.npz", directory=f"{place}/run", **plan, **known)
        performance = json.loads(Path(place, "run", "settings.json").read_text("utf-8"))["performance"]
    whole = 1e3 * median(np.diff(clock.times))
    bare = _bare(model, batch, views, performance, device)
    return {
        "whole step": whole,
        "bare sum": bare,
        "ratio": whole / bare,
        "micro-batch": performance["micro_batch"],
        "views": views,
    }


def _bare(name: str, batch: int, views: int, performance: dict[str, Any], device: str) -> float:
    """Milliseconds of the clipped sum of images that lie on the device."""
    model = models.create(name, classes=10, channels=3, size=SIDE).to(device)
    gradient = ClippedGradient(model, cross_entropy, views=views, methods=performance["methods"], capture=True)
    shape = (batch, *([views] if views > 1 else []), 3, SIDE, SIDE)
    inputs, targets = torch.randn(shape, device=device), torch.arange(batch, device=device) % 10
    size, times = performance["micro_batch"], []
    pieces = [slice(start, start + size) for start in range(0, batch, size)]
    with _devices.deterministic(device):
        for _ in range(SUMS + 1):
            began = time.perf_counter()
            for found in delay_by_one(gradient(inputs[piece], targets[piece]) for piece in pieces):
                assert found.gradients
            _devices.synchronize(inputs.device)
            times.append(1e3 * (time.perf_counter() - began))
    return median(times[1:])


def main(
    model: str = "wrn-16-4", batch: int = 4096, views: int = 1, records: int = 50_000, device: str = "cuda"
) -> None:
    """Measure.

    Args:
        model: its name.
        batch: examples in a step.
        views: of each example.
        records: how many there are to draw from.
        device: where to compute.
    """
    print(json.dumps(measured(model, batch=batch, views=views, records=records, device=device)))


if __name__ == "__main__":
    tyro.cli(main)
