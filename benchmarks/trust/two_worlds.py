"""Two worlds of De et al. 2022, table 9: python benchmarks/trust/two_worlds.py [MODELS] [TRIED] [EPSILON ...]

|D| = 100: the first 100 training images of MNIST, delta 1 / 100, nominal epsilon 8, 1, 4 and 2, or those named here,
whose rows replace those of earlier calls. Phase I tries the 54 choices of table 8 with TRIED (50) linear models in each
world, for each epsilon; phase II trains MODELS (6,000) in each world by the best of them, takes the threshold from half
of them, and bounds epsilon by the other half at confidence 99.9%. The paper has LeNets, 500,000 in each world, of which
490,000 give the bound.

Needs mnist.npz in SFUMATO_DATA. Writes benchmarks/results/two-worlds.json. About 10 minutes on one core.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import machine
from sfumato.audit import largest_provable
from sfumato.search.audits.two_worlds import Measured, TwoWorlds, World, choices

RECORDS, CLASSES, CONFIDENCE = 100, 10, 0.999
PAPER = {8.0: (4.327, 0.91, 0.67), 1.0: (0.361, 0.59, 0.13), 4.0: (2.461, 0.79, 0.43), 2.0: (0.837, 0.66, 0.22)}
"""Table 9, |D| = 100: nominal epsilon, and its lower bound, AUC and advantage."""
PAPERS_MODELS = 490_000


def problem(epsilon: float) -> TwoWorlds:
    """D and the canaries, flat pixels in [0, 1]."""
    with np.load(Path(os.environ["SFUMATO_DATA"]) / "mnist.npz") as stored:
        images, labels = stored["x_train"][:RECORDS], stored["y_train"][:RECORDS]
        tests, answers = stored["x_test"], stored["y_test"]
    seven = tests[int(np.flatnonzero(answers == 7)[0])]
    noise = np.random.default_rng(0).random(seven.shape) * 255
    canaries = {"blank": (np.zeros_like(seven), 0), "noise": (noise, 0), "mislabelled": (seven, 8)}
    return TwoWorlds(
        records=world(images, labels),
        canaries={name: world(image[None], [label]) for name, (image, label) in canaries.items()},
        classes=CLASSES,
        epsilon=epsilon,
        delta=1 / RECORDS,
    )


def world(images: Any, labels: Any) -> World:
    return World(
        torch.as_tensor(images / 255, dtype=torch.float32).flatten(1), torch.as_tensor(labels, dtype=torch.int64)
    )


def row(measured: Measured, began: float) -> dict[str, Any]:
    """What was found, and what the paper found."""
    bound, auc, advantage = PAPER[measured.epsilon]
    print(f"epsilon {measured.epsilon:g}: {measured.sentence}", flush=True)
    return {
        **measured.to_dict(),
        "seconds": time.perf_counter() - began,
        "paper": {"epsilon": bound, "auc": auc, "advantage": advantage},
    }


def main(models: int = 6000, tried: int = 50, *epsilons: int) -> None:
    torch.set_num_threads(1)
    place = RESULTS / "two-worlds.json"
    rows = json.loads(place.read_text("utf-8"))["rows"] if place.is_file() else []
    for epsilon in epsilons or PAPER:
        these, began = problem(float(epsilon)), time.perf_counter()
        best, apart = these.choose(choices(), models=tried)[0]
        print(f"epsilon {epsilon:g}: {best}, total variation {apart:.3f}", flush=True)
        seconds, began = time.perf_counter() - began, time.perf_counter()
        measured = row(these.measure(best, models=models, confidence=CONFIDENCE), began)
        own = {**measured, "tried": tried, "total_variation": apart, "seconds_of_phase_one": seconds}
        rows = sorted([one for one in rows if one["epsilon"] != epsilon] + [own], key=lambda one: one["epsilon"])
        found = {
            "machine": machine("cpu"),
            "confidence": CONFIDENCE,
            "largest_provable_by_the_paper": largest_provable(PAPERS_MODELS, 1 / RECORDS, CONFIDENCE),
            "rows": rows,
        }
        place.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
