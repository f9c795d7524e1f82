"""LAMB against momentum and Adam on a whole network at full batch, after Mehta et al. 2022, tables 1 and 2:
python benchmarks/accuracy/lamb.py DATA PLACE

LeNet-5 is trained on CIFAR-100 without privacy, then all of its layers on 5,000 images of CIFAR-10, all of them in each
of 12 steps (the paper's ten epochs at batch 1,048,576 of ImageNet), at epsilon 10, with a head that begins at zero.
Schedules are the paper's, and LAMB's for Adam. Each optimizer is tuned alike: six rates on one half of 10,000 training
images, scored on the other half. Then three runs with other seeds on 5,000 images, measured on 5,000 test images.

DATA holds cifar10.npz and cifar100.npz. PLACE keeps the runs, so that the command goes on where it was cut. Writes
results/lamb.json. 15 minutes on two busy cores.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.runs import last_row, sfumato

RESULT = RESULTS / "lamb.json"
EXAMPLES = 5_000
STEPS, EPSILON, DELTA = 12, 10.0, 1e-5
OPTIMIZERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "momentum": ("cosine", (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)),
    "lamb": ("linear", (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),  # of a tensor's own norm
    "adam": ("linear", (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)),
}


def main() -> None:
    data, place = (Path(word) for word in sys.argv[1:])
    place.mkdir(parents=True, exist_ok=True)
    public = place / "cifar100"
    source, twice = (fewer(data, place, count) for count in (EXAMPLES, 2 * EXAMPLES))
    last_row(
        public,
        *("pretrain", f"npz:{data / 'cifar100.npz'}", "--public", "--model", "lenet5", "--seed", "0"),
        *("--steps", "1560", "--batch-size", "128", "--flip", "True", "--shift", "4"),
    )
    with ThreadPoolExecutor(2) as pool:
        rows = {name: pool.submit(best, source, twice, public, place, name) for name in OPTIMIZERS}
        found = {name: row.result() for name, row in rows.items()}
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found.items():
        print(f"{name:<10} {row['accuracy']:.1%} (deviation {row['deviation']:.1%}, rate {row['rate']:g})")


def fewer(data: Path, place: Path, count: int) -> str:
    """CIFAR-10's first images to train on, and 5,000 test images."""
    path = place / f"cifar10-{count}.npz"
    if not path.exists():
        with np.load(data / "cifar10.npz") as arrays:
            some = {name: arrays[name][:count] for name in ("x_train", "y_train")}
            some |= {name: arrays[name][:EXAMPLES] for name in ("x_test", "y_test")}
        np.savez(path, **some)
    return f"npz:{path}"


def best(source: str, twice: str, public: Path, place: Path, optimizer: str) -> dict[str, Any]:
    """Accuracy of three runs at the rate that is best on the validation part, and what all rates gave there.

    Args:
        source: of which every image is trained on in the end.
        twice: as many images to train on and as many to score on.
        public: the run of the pre-trained network.
        place: where the runs go.
        optimizer: a name in `OPTIMIZERS`.
    """
    schedule, rates = OPTIMIZERS[optimizer]
    common = (
        *("--public", "--model", "lenet5", "--pretrained", str(public), "--trainable", "all", "--max-norm", "1"),
        *("--epsilon", str(EPSILON), "--delta", str(DELTA), "--steps", str(STEPS), "--batch-size", str(EXAMPLES)),
        *("--optimizer", optimizer, "--schedule", schedule, "--ema", "0", "--views", "1", "--device", "cpu"),
    )
    swept = sfumato(
        *("sweep", twice, *common, "--validation", "0.5", "--seed", "0", "--output", str(place / f"{optimizer}-sweep")),
        *("--vary", f"learning-rate={','.join(map(str, rates))}"),
    )
    rate = swept["best"]["learning_rate"]
    full = sfumato(
        *("train", source, *common, "--learning-rate", str(rate), "--seeds", "3"),
        *("--output", str(place / f"{optimizer}-seeds")),
    )
    tried = {f"{row['learning_rate']:g}": row["accuracy"] for row in swept["rows"]}
    return {"rate": rate, "accuracy": full["accuracy"], "deviation": full["spread"], "tried": tried}


if __name__ == "__main__":
    main()
