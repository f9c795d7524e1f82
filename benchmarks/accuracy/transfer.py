"""CIFAR-10 from public features, after Mehta et al. 2022.

    python benchmarks/accuracy/transfer.py DATA WEIGHTS PLACE [NAME]

Features of a SqueezeNet that was trained on ImageNet (images enlarged to 96 pixels), and of a WRN-16-1 that is trained
here on CIFAR-100; on each a head under differential privacy. The optimizers at full batch, one step against ten and
more; where the head begins; the privacy budgets; and what comes of no option but the budget. Rates are chosen on a
tenth of the training part, and the figures are those of the test part.

DATA holds cifar10.npz and cifar100.npz, WEIGHTS is squeezenet1_0_imagenet.safetensors. PLACE keeps caches and runs, so
that the command goes on where it was cut. NAME, such as lamb, computes the rows of that optimizer alone and keeps the
other rows of the results. Writes results/transfer.json.
"""

from __future__ import annotations

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.runs import public_network, sfumato

RESULT = RESULTS / "transfer.json"
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
BY_RULE = (0.5, 1.0, 2.0, 8.0)
DELTA, EXAMPLES = "1e-5", 50_000
# By optimizer. A single step from zero leaves the same order of classes whatever the rate is.
RATES = {
    "sgd": (0.3, 1.0, 3.0, 10.0, 30.0),
    "momentum": (0.3, 1.0, 3.0, 10.0, 30.0),
    "adam": (0.003, 0.01, 0.03, 0.1, 0.3),
    "lamb": (0.03, 0.1, 0.3, 1.0, 3.0),  # of a tensor's own norm
}
STEPS = (1, 10, 100)
HEAD = ("--model", "head,norm=12.5", "--ema", "0", "--examples", str(EXAMPLES))
TRAINED = round(0.9 * EXAMPLES)  # without the validation part


def main() -> None:
    data, weights, place = (Path(word) for word in sys.argv[1:4])
    only = sys.argv[4] if len(sys.argv) > 4 else None
    public = place / "cifar100"
    backbones = {
        "SqueezeNet, ImageNet": (
            *("--backbone", "torchvision:squeezenet1_0"),
            *("--weights", str(weights), "--resolution", "96"),
        ),
        "WRN-16-1, CIFAR-100": ("--backbone", str(public)),
    }
    found: dict[str, Any] = json.loads(RESULT.read_text()) if only else {}
    for name, options in backbones.items():
        if str(public) in options:
            public_network(public, data)
        cache = place / name.split(",")[0].lower()
        sfumato("features", f"npz:{data / 'cifar10.npz'}", "--public", *options, "--output", str(cache))
        for title, rows in table(cache, place, only).items():
            found.setdefault(name, {}).setdefault(title, {}).update(rows)
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
        show(name, found[name])


def table(cache: Path, place: Path, only: str | None = None) -> dict[str, Any]:
    """All comparisons on one cache, or those of one optimizer."""
    width = json.loads((cache / "features.json").read_text())["width"]
    beginnings = (("zero", 0.0), ("0.01", 0.01), ("LeCun", 1 / math.sqrt(width)))
    rows = {
        "optimizers at epsilon 2": {f"{name}, {steps} steps": (name, steps, 2.0) for name in RATES for steps in STEPS},
        "beginning, LAMB, one step": {
            label: ("lamb", 1, 2.0, "--head-deviation", str(deviation)) for label, deviation in beginnings
        },
        "Adam, ten steps": {f"{epsilon:g}": ("adam", 10, epsilon) for epsilon in EPSILONS},
    }
    with ThreadPoolExecutor(2) as pool:
        coming = {
            title: {
                label: pool.submit(best, cache, place, *options)
                for label, options in some.items()
                if only in (None, options[0])
            }
            for title, some in rows.items()
        }
        found = {title: {label: row.result() for label, row in some.items()} for title, some in coming.items()}
    if only:
        return found
    return found | {"by rule": {f"{epsilon:g}": by_rule(cache, place, epsilon) for epsilon in BY_RULE}}


def by_rule(cache: Path, place: Path, epsilon: float) -> dict[str, float]:
    """Test accuracy of three runs with no option but the budget."""
    options = ("--epsilon", str(epsilon), "--delta", DELTA, "--examples", str(EXAMPLES), "--seeds", "3")
    runs = place / "runs" / f"{cache.name}-by-rule-{epsilon:g}"
    found = sfumato("train", f"features:{cache}", *options, "--device", "cpu", "--output", str(runs))
    return {"accuracy": found["accuracy"], "deviation": found["spread"]}


def best(cache: Path, place: Path, optimizer: str, steps: int, epsilon: float, *more: str) -> dict[str, float]:
    """Test accuracy of three runs at the rate that is best on the validation part."""
    plan = ("--epsilon", str(epsilon), "--delta", DELTA, "--steps", str(steps))
    common = (f"features:{cache}", *plan, "--optimizer", optimizer, *HEAD, *more, "--device", "cpu")
    stem = place / "runs" / f"{cache.name}-{optimizer}-{steps}-{epsilon:g}{''.join(more).replace('-', '_')}"
    rates = ",".join(map(str, RATES[optimizer]))
    swept = sfumato(
        *("sweep", *common, "--batch-size", str(TRAINED), "--seed", "0"),
        *("--vary", f"learning-rate={rates}", "--output", f"{stem}-sweep"),
    )
    rate = swept["best"]["learning_rate"]
    full = ("--batch-size", str(EXAMPLES), "--learning-rate", str(rate), "--seeds", "3", "--output", f"{stem}-seeds")
    found = sfumato("train", *common, *full)
    return {"rate": rate, "accuracy": found["accuracy"], "deviation": found["spread"]}


def show(name: str, comparisons: dict[str, Any]) -> None:
    print(name)
    for title, rows in comparisons.items():
        print(f"  {title}")
        for label, row in rows.items():
            rate = f", rate {row['rate']:g}" if "rate" in row else ""
            print(f"    {label!s:<22} {row['accuracy']:.1%} (deviation {row['deviation']:.1%}{rate})")


if __name__ == "__main__":
    main()
