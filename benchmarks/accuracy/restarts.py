"""Training over the mean of the last weights: does a step start at the mean too?

    python benchmarks/accuracy/restarts.py MNIST PLACE [--seeds 5] [--rates 2 6]

MNIST is an .npz with x_train, y_train, x_test, y_test. A linear classifier at epsilon 1, 100 steps of 1,024, plain SGD
at a constant rate; trained plainly, over the mean of the last five weights (uta) with a restart and without,
over a moving average of decay .9 (ema), and plainly with that average at the end (averaged). Prints mean test
accuracies, and the mean difference from plain training with its standard error; writes results/restarts.json. Goes on
where it stopped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import tyro

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS

RESULT = RESULTS / "restarts.json"
EVERY = "--epsilon 1 --steps 100 --batch-size 1024 --optimizer sgd --schedule constant --model linear --keep 0"
AVERAGE = "--ema 0.9 --ema-form constant"
WAYS = {
    "plain": "--ema 0",
    "uta": "--aggregate uta --aggregate-restart False",
    "restart": "--aggregate uta --aggregate-restart True",
    "ema": f"--aggregate ema --aggregate-restart False {AVERAGE}",
    "averaged": AVERAGE,
}


def main(
    mnist: Annotated[Path, tyro.conf.Positional],
    place: Annotated[Path, tyro.conf.Positional],
    *,
    seeds: int = 5,
    rates: tuple[float, ...] = (2.0, 6.0),
) -> None:
    """Measure.

    Args:
        mnist: the .npz.
        place: where runs are kept.
        seeds: how many.
        rates: learning rates.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for rate in rates:
        for way, options in WAYS.items():
            runs = [place / f"r-{rate:g}-{seed}-{way}" for seed in range(seeds)]
            asked = f"{options} --learning-rate {rate:g}"
            accuracies = [_accuracy(mnist, run, asked, seed) for seed, run in enumerate(runs)]
            found.setdefault(f"rate {rate:g}", {})[way] = accuracies
        _show(rate, found[f"rate {rate:g}"])
        RESULT.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _accuracy(mnist: Path, run: Path, options: str, seed: int) -> float:
    """Test accuracy of one run, which is trained unless it stands there."""
    if not (run / "evaluation.json").exists():
        command = [
            sys.executable,
            "-m",
            "sfumato",
            "train",
            f"npz:{mnist}",
            "--public",
            *EVERY.split(),
            *options.split(),
        ]
        subprocess.run([*command, "--seed", str(seed), "--output", str(run)], check=True, capture_output=True)
    return json.loads((run / "evaluation.json").read_text())["accuracy"]


def _show(rate: float, ways: dict[str, Sequence[float]]) -> None:
    for way, accuracies in ways.items():
        gains = [100 * (one - plain) for one, plain in zip(accuracies, ways["plain"], strict=True)]
        error = stdev(gains) / len(gains) ** 0.5
        print(f"rate {rate:g}  {way:<11}{100 * mean(accuracies):6.2f}%  {mean(gains):+6.2f} ({error:.2f})", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
