"""What weights of answers do for rare labels: python benchmarks/accuracy/label_weights.py [SEEDS]

Five labels of a digit, two of which (8, and 9) are rare in training, at epsilon 3 with no other option: without
weights, and by `class_prevalence` (in the loss, before clipping). Area under the ROC curve, and balanced accuracy at
the threshold 0.5, on test images that are the same for all; means over the two rare labels, and over the three others.
Writes benchmarks/results/label-weights.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS

RESULT = RESULTS / "label-weights.json"
LABELS = {"eight": {8}, "nine": {9}, "even": {0, 2, 4, 6, 8}, "loop": {0, 6, 8, 9}, "prime": {2, 3, 5, 7}}
RARE = 2
SHARES = (0.05, 0.02)
TEST = 500


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rows, counts = {}, {}
    for share in SHARES:
        arrays = data(share)
        counts[f"{share:.0%}"] = len(arrays["x_train"])
        for way in ("none", "class_prevalence"):
            found = [figures(arrays, way, seed) for seed in range(seeds)]
            rows[f"{share:.0%} {way}"] = {name: statistics.median(one[name] for one in found) for name in found[0]}
            print(f"{share:.0%} {way:<17}", rows[f"{share:.0%} {way}"], flush=True)
    RESULT.write_text(json.dumps({"epsilon": 3.0, "runs": seeds, "images": counts, "medians": rows}, indent=2) + "\n")


def data(share: float) -> dict[str, np.ndarray]:
    """Images and their labels, with 8 and 9 each at this share of the training images."""
    images, digits = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = np.stack([np.isin(digits, [*members]) for members in LABELS.values()], axis=1).astype(np.uint8)
    order = np.random.default_rng(1).permutation(len(digits))
    test, rest = order[:TEST], order[TEST:]
    common = rest[digits[rest] < 8]
    each = round(share / (1 - 2 * share) * len(common))
    train = np.concatenate([common, rest[digits[rest] == 8][:each], rest[digits[rest] == 9][:each]])
    parts = {"x_train": images[train], "y_train": labels[train], "x_test": images[test], "y_test": labels[test]}
    return parts | {"classes": np.array([*LABELS])}


def figures(arrays: dict[str, np.ndarray], way: str, seed: int) -> dict[str, float]:
    """Of one run. The shares are those of the training images: they would be declared."""
    shares = dict(zip(LABELS, arrays["y_train"].mean(0).tolist(), strict=True))
    weighted = {"class_prevalence": shares} if way == "class_prevalence" else {}
    with tempfile.TemporaryDirectory() as place:
        np.savez(f"{place}/digits.npz", **arrays)
        source = sfumato.open_source(f"npz:{place}/digits.npz", owner_key=sfumato.owner_key())
        sfumato.train(None, source, epsilon=3.0, directory=f"{place}/run", seed=seed, threads=1, **weighted)
        scores = np.asarray(sfumato.load(f"{place}/run").predict(list(arrays["x_test"])))
    columns = list(zip(arrays["y_test"].T, scores.T, strict=True))
    areas = [float(roc_auc_score(wanted, own)) for wanted, own in columns]
    balanced = [float(balanced_accuracy_score(wanted, own > 0.5)) for wanted, own in columns]
    return {
        "auc of the rare": statistics.mean(areas[:RARE]),
        "auc of the others": statistics.mean(areas[RARE:]),
        "balanced accuracy of the rare": statistics.mean(balanced[:RARE]),
        "balanced accuracy of the others": statistics.mean(balanced[RARE:]),
    }


if __name__ == "__main__":
    main()
