"""CIFAR-10 from public features, after Mehta et al. 2022: python benchmarks/transfer.py DATA WEIGHTS PLACE

Features of a SqueezeNet that was trained on ImageNet (images enlarged to 96 pixels), and of a WRN-16-1 that is trained
here on CIFAR-100; on each a head under differential privacy. The optimizers at full batch, one step against ten and
more; where the head begins; the privacy budgets. Rates are chosen on a tenth of the training part, and the figures are
those of the test part.

DATA holds cifar10.npz and cifar100.npz, WEIGHTS is squeezenet1_0_imagenet.safetensors. PLACE keeps caches and runs, so
that the command goes on where it was cut. Writes results/transfer.json.
"""

from __future__ import annotations

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runs import last_row, sfumato

RESULTS = Path(__file__).parent / "results" / "transfer.json"
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
DELTA, EXAMPLES = "1e-5", 50_000
# Rates that bracket the best one, by optimizer; for one step Adam and LAMB move each weight by the rate.
RATES = {
    "sgd": (0.3, 1.0, 3.0, 10.0, 30.0),
    "momentum": (0.1, 0.3, 1.0, 3.0, 10.0),
    "adam": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "lamb": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
}
STEPS = (1, 10, 100)
HEAD = ("--model", "head,norm=12.5", "--ema", "0", "--examples", str(EXAMPLES))
TRAINED = round(0.9 * EXAMPLES)  # without the validation part


def main() -> None:
    data, weights, place = (Path(word) for word in sys.argv[1:])
    public = place / "cifar100"
    last_row(  # as finetune.py trains it
        public,
        *("pretrain", f"npz:{data / 'cifar100.npz'}", "--public", "--model", "wrn-16-1", "--seed", "0"),
        *("--steps", "3120", "--batch-size", "128", "--flip", "True", "--shift", "4"),
    )
    backbones = {
        "SqueezeNet, ImageNet": (
            *("--backbone", "torchvision:squeezenet1_0"),
            *("--weights", str(weights), "--resolution", "96"),
        ),
        "WRN-16-1, CIFAR-100": ("--backbone", str(public)),
    }
    found: dict[str, Any] = {}
    for name, options in backbones.items():
        cache = place / name.split(",")[0].lower()
        sfumato("features", f"npz:{data / 'cifar10.npz'}", "--public", *options, "--output", str(cache))
        found[name] = table(cache, place)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        show(name, found[name])


def table(cache: Path, place: Path) -> dict[str, Any]:
    """All comparisons on one cache."""
    optimizers = {
        f"{optimizer}, {steps} steps": best(cache, place, optimizer, steps, 2.0)
        for optimizer in RATES
        for steps in STEPS
    }
    width = json.loads((cache / "features.json").read_text())["width"]
    begins = {
        label: best(cache, place, "lamb", 1, 2.0, "--head-deviation", str(deviation))
        for label, deviation in (("zero", 0.0), ("0.01", 0.01), ("LeCun", 1 / math.sqrt(width)))
    }
    budgets = {epsilon: best(cache, place, "adam", 10, epsilon) for epsilon in EPSILONS}
    return {"optimizers at epsilon 2": optimizers, "beginning, LAMB, one step": begins, "Adam, ten steps": budgets}


def best(cache: Path, place: Path, optimizer: str, steps: int, epsilon: float, *more: str) -> dict[str, float]:
    """Test accuracy of three seeds at the rate that is best on the validation part."""
    plan = ("--epsilon", str(epsilon), "--delta", DELTA, "--steps", str(steps))
    common = (*plan, "--optimizer", optimizer, *HEAD, *more)
    stem = place / "runs" / f"{cache.name}-{optimizer}-{steps}-{epsilon:g}{''.join(more).replace('-', '_')}"
    swept = sfumato(
        *("sweep", f"features:{cache}", *common, "--batch-size", str(TRAINED), "--seed", "0"),
        *("--vary", f"learning-rate={','.join(map(str, RATES[optimizer]))}", "--output", f"{stem}-sweep"),
        *("--processes", "2"),
    )
    rate = swept["best"]["learning_rate"]
    full = (*common, "--batch-size", str(EXAMPLES), "--learning-rate", str(rate))

    def accuracy(seed: int) -> float:
        run = Path(f"{stem}-seed{seed}")
        return last_row(run, "train", f"features:{cache}", *full, "--seed", str(seed))["accuracy"]

    with ThreadPoolExecutor(2) as pool:
        accuracies = list(pool.map(accuracy, range(3)))
    return {"rate": rate, "accuracy": sorted(accuracies)[1], "spread": max(accuracies) - min(accuracies)}


def show(name: str, comparisons: dict[str, Any]) -> None:
    print(name)
    for title, rows in comparisons.items():
        print(f"  {title}")
        for label, row in rows.items():
            print(f"    {label!s:<22} {row['accuracy']:.1%} (spread {row['spread']:.1%}, rate {row['rate']:g})")


if __name__ == "__main__":
    main()
