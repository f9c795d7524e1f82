"""What a step's noise takes, and what is kept for it: python benchmarks/speed/noise.py [THREADS ...]

For the parameters of a WRN-16-4 (2.75 million) and of a ResNet-50 (25.6 million) steps of each mechanism and of
independent noise are taken in turn, from the ninth to the last of 24; the ratio is that of their means, since some
steps of a tree or of bands do more than others. What would fill the memory that is left (64 bands of the larger one
keep 13 GB) is left out. Writes results/noise-MACHINE.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import psutil
import torch
from torch import Tensor
from torchvision.models import resnet50

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import machine, machine_name
from sfumato import Noise, RunKey, models
from sfumato.privacy.mechanism import BandedToeplitz, Gaussian, Mechanism, Tree

WARM, STEPS = 8, 24
KEY = RunKey.from_seed(0)


def square_root(bands: int) -> tuple[float, ...]:
    """The coefficients of the square root of the prefix sums' matrix."""
    column = [1.0]
    for place in range(1, bands):
        column.append(column[-1] * (2 * place - 1) / (2 * place))
    return tuple(column)


MECHANISMS: dict[str, Mechanism] = {
    "tree": Tree(noise_multiplier=1.0),
    "16 bands": BandedToeplitz(noise_multiplier=1.0, coefficients=square_root(16)),
    "64 bands": BandedToeplitz(noise_multiplier=1.0, coefficients=square_root(64)),
}


def main(threads: list[int]) -> None:
    rows, found = [], machine("cpu")
    found["threads"] = found["cores"]
    path = RESULTS / f"noise-{machine_name(found)}.json"
    del found["threads"]
    for model, total in (("wrn-16-4", wide_resnet()), ("resnet50", large_resnet())):
        for count in threads:
            torch.set_num_threads(count)
            for name, mechanism in MECHANISMS.items():
                if not fits(mechanism, total):
                    continue
                rows.append({"threads": count, "model": model, "mechanism": name, **measured(mechanism, total)})
                print(line(rows[-1]), flush=True)
                path.write_text(json.dumps({"machine": found, "rows": rows}, indent=1) + "\n")


def fits(mechanism: Mechanism, total: dict[str, Tensor]) -> bool:
    """Whether what is kept takes at most two thirds of the memory that is left."""
    buffers = Noise(mechanism, max_norm=1.0, key=KEY).buffers(STEPS)
    return 8 * buffers * sum(value.numel() for value in total.values()) < psutil.virtual_memory().available * 2 / 3


def wide_resnet() -> dict[str, Tensor]:
    """A sum of gradients: zeros of the parameters' shapes."""
    module = models.create("wrn-16-4", classes=10, channels=3, size=32)
    return {name: torch.zeros(value.shape) for name, value in module.named_parameters()}


def large_resnet() -> dict[str, Tensor]:
    """The same, of a larger model."""
    with torch.device("meta"):
        module = resnet50()
    return {name: torch.zeros(value.shape) for name, value in module.named_parameters()}


def measured(mechanism: Mechanism, total: dict[str, Tensor]) -> dict[str, float]:
    """Milliseconds of a step and of an independent one, their ratio, and what is kept in copies of the model."""
    seconds: dict[str, list[float]] = {"plain": [], "own": []}
    mechanisms = {"plain": Gaussian(noise_multiplier=1.0), "own": mechanism}
    noises = {name: Noise(each, max_norm=1.0, key=KEY) for name, each in mechanisms.items()}
    states = {name: noise.begin() for name, noise in noises.items()}
    for step in range(STEPS):
        for name, noise in noises.items():
            began = time.perf_counter()
            _, states[name] = noise.add(total, step, states[name])
            seconds[name].append(time.perf_counter() - began)
    plain, own = (statistics.mean(seconds[name][WARM:]) for name in ("plain", "own"))
    return {
        "milliseconds": 1000 * own,
        "slowest": 1000 * max(seconds["own"][WARM:]),
        "independent": 1000 * plain,
        "ratio": own / plain,
        "buffers": noises["own"].buffers(STEPS),
        "bytes": sum(value.nbytes for value in states["own"].tensors.values()),
    }


def line(row: dict[str, float]) -> str:
    """For the reader."""
    return (
        f"{row['threads']} threads  {row['model']:<10}{row['mechanism']:<16}{row['milliseconds']:>8.1f} ms"
        f"  ratio {row['ratio']:.2f}  slowest {row['slowest']:>8.1f} ms  {row['bytes'] / 2**30:>6.2f} GiB"
    )


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1, 2])
