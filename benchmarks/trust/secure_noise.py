"""What noise that holds on real machines costs: python benchmarks/trust/secure_noise.py [EXAMPLES]

Coordinates a second that one thread draws, and the share of a step of a WRN-16-4 on 512 CIFAR images, one view each: of
EXAMPLES synthetic ones (16 by default) the clipped sum is timed, one by one and all at once, and taken times 512 over
EXAMPLES. All by the processor time of the process, medians of three. Writes results/secure-noise-MACHINE.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import machine, machine_name
from sfumato import ClippedGradient, Gaussian, Noise, RunKey, models
from sfumato.gradients import GridSum
from sfumato.randomness.noise.secure import SecureNoise

BATCH = 512


def seconds(action: Callable[[], object]) -> float:
    """Processor time, the median of three after one that does not count."""
    action()
    found = []
    for _ in range(3):
        began = time.process_time()
        action()
        found.append(time.process_time() - began)
    return median(found)


def main(examples: int) -> None:
    torch.set_num_threads(1)
    found = machine("cpu")
    path = RESULTS / f"secure-noise-{machine_name(found)}.json"
    torch.manual_seed(0)
    gradient = ClippedGradient(
        models.create("wrn-16-4", classes=10, channels=3, size=32), functional.cross_entropy, max_norm=1.0
    )
    gradient.self_check((3, 32, 32))
    inputs, targets = torch.randn(examples, 3, 32, 32), torch.arange(examples) % 10

    def total(size: int) -> GridSum:
        parts = GridSum(gradient.zeros(), max_norm=1.0)
        for start in range(0, examples, size):
            parts.add(gradient(inputs[start : start + size], targets[start : start + size]).gradients)
        return parts

    parts = total(examples)
    elements = sum(value.numel() for value in parts.integers.values())
    result = {"machine": found, "coordinates": elements, "examples timed": examples}
    for kind, sigma in ((Noise, 3.0), (SecureNoise, 2.0), (SecureNoise, 3.0), (SecureNoise, 3.99)):
        noise = kind(Gaussian(noise_multiplier=sigma), max_norm=1.0, key=RunKey.from_seed(0))
        taken = seconds(lambda noise=noise: noise.add(noise.prepare_sum(parts), 0))
        name = f"{'secure' if kind is SecureNoise else 'standard'} noise, multiplier {sigma:g}"
        result[name] = {"seconds": round(taken, 4), "million coordinates a second": round(elements / taken / 1e6, 2)}
    secure = result["secure noise, multiplier 3.99"]["seconds"]
    for name, size in (("one by one", 1), ("all at once", examples)):
        step = seconds(lambda size=size: total(size)) * BATCH / examples
        result[f"clipped sum of {BATCH}, {name}"] = {
            "seconds": round(step, 2),
            "noise, percent of the step": round(100 * secure / (step + secure), 2),
        }
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 16)
