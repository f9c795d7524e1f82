"""What mends a model where classes have other shares: python benchmarks/accuracy/shift.py CIFAR10 [--seeds 5]

Two classes of CIFAR-10 (an npz archive with x_train, y_train, x_test, y_test) with the sizes and shares of a set of
paediatric chest X-rays: 5,000 images to train on, of which 74% are positive, and a published test part with 62%. Cats
(negative) and dogs, and deer (negative) and horses. Epsilon 3 with no other option but those of each row; one training
without weights and one with them for each seed, which draws the images as well. Writes benchmarks/results/shift.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.runs.loaded import Reading

RESULT = RESULTS / "shift.json"
CLASSES = ("negative", "positive")
PAIRS = {"cats and dogs": (3, 5), "deer and horses": (4, 7)}
TRAINED, USED = (1300, 3700), (380, 620)
FIRST, THERE = ({name: n / sum(counts) for name, n in zip(CLASSES, counts, strict=True)} for counts in (TRAINED, USED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    with np.load(given.data) as stored:
        data = {name: stored[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    rows: dict[str, dict[str, dict[str, list[float]]]] = {}
    for pair, numbers in PAIRS.items():
        for seed in range(given.seeds):
            for name, figures in rows_of(data, numbers, seed).items():
                print(
                    f"{pair}, seed {seed}, {name}:", *(f"{key} {one:.3f}" for key, one in figures.items()), flush=True
                )
                for key, one in figures.items():
                    rows.setdefault(pair, {}).setdefault(name, {}).setdefault(key, []).append(one)
    found = {
        pair: {
            name: {key: {"mean": statistics.mean(each), "each": each} for key, each in figures.items()}
            for name, figures in of_pair.items()
        }
        for pair, of_pair in rows.items()
    }
    record = {"epsilon": 3.0, "seeds": given.seeds, "trained": FIRST, "used": THERE}
    RESULT.write_text(json.dumps(record | {"rows": found}, indent=2) + "\n")


def rows_of(data: dict[str, np.ndarray], numbers: tuple[int, int], seed: int) -> dict[str, dict[str, float]]:
    """The figures of each remedy, by one training without weights and one with."""
    generator = np.random.default_rng(seed)
    parts = {}
    for part, counts in (("train", TRAINED), ("test", USED)):
        every = data[f"y_{part}"]
        places = [
            generator.permutation(np.flatnonzero(every == number))[:n]
            for number, n in zip(numbers, counts, strict=True)
        ]
        parts |= {f"x_{part}": data[f"x_{part}"][np.concatenate(places)], f"y_{part}": np.repeat([0, 1], counts)}
    truth = parts["y_test"]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        np.savez(place / "pair.npz", **parts, classes=np.array(CLASSES))

        def trained(name: str, **options: object) -> tuple[torch.Tensor, Reading]:
            how = {"directory": place / name, "seed": seed, "threads": 1, "device": "cpu"}
            loaded = sfumato.train(None, f"npz:{place}/pair.npz", epsilon=3.0, **how, **options).load()
            return loaded.logits(list(parts["x_test"])).double(), loaded.reading

        outputs, plain = trained("plain")
        weighted, of_weights = trained("weighted", class_prevalence=FIRST)
    return {
        "as trained": figures(outputs, plain, truth),
        "class weights": figures(weighted, of_weights, truth),
        "class weights, moved to declared shares": figures(weighted, of_weights.with_prevalence(THERE), truth),
    }


def figures(outputs: torch.Tensor, reading: Reading, truth: np.ndarray) -> dict[str, float]:
    """Accuracy, sensitivity and specificity of the class that is named."""
    named = reading.logits(outputs).argmax(1).numpy()
    sensitivity, specificity = float(named[truth == 1].mean()), float(1 - named[truth == 0].mean())
    return {
        "accuracy": float((named == truth).mean()),
        "sensitivity": sensitivity,
        "specificity": specificity,
        "balanced": (sensitivity + specificity) / 2,
    }


if __name__ == "__main__":
    main()
