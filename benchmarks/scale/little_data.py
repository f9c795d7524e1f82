"""How little a class may have: python benchmarks/scale/little_data.py DATA

The default model on a few images of each class, at epsilon 1, 3, 8 and 1000 (delta 1e-5), which stands for no privacy:
MNIST, Omniglot, CIFAR-10 and CIFAR-100 (DATA holds NAME.npz with x_train, y_train, x_test, y_test). What matters is
the plan's signal for each class over the noise, B sqrt(T) / (sigma K) (`signal_per_class`): below 10, most
learn less than half of what is learnt without privacy, counted from chance. Goes on where it stopped; writes
results/little-data.json.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.runs import sfumato

SETS = (
    ("mnist", 10, (4, 8, 16, 32, 64, 128)),
    ("omniglot", 10, (4, 8, 12)),
    ("omniglot", 40, (4, 8, 12)),
    ("omniglot", 100, (8, 15)),
    ("cifar10", 10, (16, 64, 256)),
    ("cifar100", 40, (20, 100)),
    ("cifar100", 100, (50, 150)),
)
EPSILONS = (1, 3, 8, 1000)
TESTED = 2000
RESULT = RESULTS / "little-data.json"


def main(data: Path) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["SFUMATO_HOME"] = str(place / "home")
        for name, classes, numbers in SETS:
            for each in numbers:
                np.savez(place / "few.npz", **few(data / f"{name}.npz", classes, each))
                for epsilon in EPSILONS:
                    key = f"{name}, {classes} classes of {each}, epsilon {epsilon}"
                    if key not in found:
                        found[key] = measure(place, classes, epsilon)
                        RESULT.write_text(json.dumps(found, indent=1) + "\n")
                    print(f"{key:<48}{found[key]['accuracy']:8.1%}{found[key]['signal']:10.2f}", flush=True)


def few(file: Path, classes: int, each: int) -> dict[str, np.ndarray]:
    """So many images of so many classes to train on, and others of the same classes to test."""
    known, generator = np.load(file), np.random.default_rng(0)
    images, labels = known["x_train"], known["y_train"]
    others, theirs = known["x_test"], known["y_test"]
    apart = not set(labels.tolist()) & set(theirs.tolist())
    if apart:  # Omniglot's parts hold different characters
        images, labels = np.concatenate([images, others]), np.concatenate([labels, theirs])
    chosen = np.sort(generator.choice(np.unique(labels), classes, replace=False))
    places = [generator.permutation(np.flatnonzero(labels == label)) for label in chosen]
    train = np.concatenate([some[:each] for some in places])
    if apart:
        others, theirs, test = images, labels, np.concatenate([some[each:] for some in places])
    else:
        test = np.flatnonzero(np.isin(theirs, chosen))[:TESTED]
    return {
        "x_train": images[train],
        "y_train": np.searchsorted(chosen, labels[train]),
        "x_test": others[test],
        "y_test": np.searchsorted(chosen, theirs[test]),
    }


def measure(place: Path, classes: int, epsilon: float) -> dict[str, float]:
    """Accuracy and signal of one run by the default rules."""
    run = Path(tempfile.mkdtemp(dir=place)) / "run"
    told = sfumato(
        *("train", f"npz:{place / 'few.npz'}", "--public", "--epsilon", str(epsilon)),
        *("--delta", "1e-5", "--output", str(run)),
    )
    plan = json.loads((run / "plan.json").read_text())
    signal = plan["batch_size"] * math.sqrt(plan["steps"]) / (plan["noise_multiplier"] * classes)
    return {"accuracy": told["accuracy"], "signal": signal}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
