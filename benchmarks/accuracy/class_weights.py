"""What class weights do for a rare class: python benchmarks/accuracy/class_weights.py [SEEDS]

The digit 8 against all others, in training with few of the eights, at epsilon 3 with no other option: without weights,
with weights in the loss (before clipping), and by `class_prevalence` (after it). Sensitivity and specificity are at the
threshold 0.5, balanced accuracy there and at the eights' share, on test images that are the same for all. Writes
benchmarks/results/class-weights.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.models import losses
from sfumato.models.losses import class_weights

RESULT = RESULTS / "class-weights.json"
CLASSES = ("rest", "eight")
SHARES = (0.06, 0.03)
PLAIN = losses.LOSSES


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rows = {}
    for share in SHARES:
        for way in ("none", "in the loss", "class_prevalence"):
            found = [figures(way, share, seed) for seed in range(seeds)]
            rows[f"{share:.0%} {way}"] = {name: statistics.median(one[name] for one in found) for name in found[0]}
            print(f"{share:.0%} {way:<17}", *(f"{name} {value:.3f}" for name, value in found[0].items()), flush=True)
    RESULT.write_text(json.dumps({"epsilon": 3.0, "runs": seeds, "medians": rows}, indent=2) + "\n")


def figures(way: str, share: float, seed: int) -> dict[str, float]:
    """Of one run, with the eights at this share of the training images."""
    images, digits = load_digits(return_X_y=True)
    images, labels = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), (digits == 8).astype(int)
    order = np.random.default_rng(1).permutation(len(labels))
    rest, eights = order[labels[order] == 0], order[labels[order] == 1]
    test = np.concatenate([rest[:400], eights[:87]])
    rare = round(share / (1 - share) * (len(rest) - 400))
    train = np.concatenate([rest[400:], eights[87 : 87 + rare]])
    prevalence = {"rest": 1 - share, "eight": share}
    weighted = {"class_prevalence": prevalence} if way == "class_prevalence" else {}
    losses.LOSSES = {**PLAIN, "softmax": in_the_loss(prevalence)} if way == "in the loss" else PLAIN
    with tempfile.TemporaryDirectory() as place:
        parts = {"x_train": images[train], "y_train": labels[train], "x_test": images[test], "y_test": labels[test]}
        np.savez(f"{place}/digits.npz", **parts, classes=np.array(CLASSES))
        source = f"npz:{place}/digits.npz"
        sfumato.train(None, source, epsilon=3.0, directory=f"{place}/run", seed=seed, threads=1, **weighted)
        scores = np.asarray(sfumato.load(f"{place}/run").predict(list(images[test])))[:, 1]
    wanted = labels[test] == 1
    sensitivity, specificity = float((scores > 0.5)[wanted].mean()), float((scores <= 0.5)[~wanted].mean())
    at_the_share = float((scores > share)[wanted].mean()), float((scores <= share)[~wanted].mean())
    return {
        "balanced": (sensitivity + specificity) / 2,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "balanced at the share": sum(at_the_share) / 2,
        "auc": float(roc_auc_score(wanted, scores)),
    }


def in_the_loss(prevalence: dict[str, float]):
    """The cross-entropy times 1 / (C p_c), of mean 1 under the prevalence."""
    weights = np.array(class_weights(prevalence, CLASSES))
    weights /= sum(weight * prevalence[name] for weight, name in zip(weights, CLASSES, strict=True))

    def loss(logits, labels):
        each = functional.cross_entropy(logits, labels, reduction="none")
        return (each * logits.new_tensor(weights.tolist())[labels]).mean()

    return loss


if __name__ == "__main__":
    main()
