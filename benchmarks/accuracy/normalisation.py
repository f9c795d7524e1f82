"""Normalisation under privacy on MNIST: python benchmarks/accuracy/normalisation.py MNIST PUBLIC PLACE [--seeds 5]

LeNet-5 with a norm after each layer but the last, delta 1e-5, at the budgets of Davody et al. 2020, table 5. From
random initialisation: by the statistics of public examples (PUBLIC, such as Omniglot: 128 of them), with each
example's own among them, group and layer norm, and none; and by public examples and layer norm in the paper's augmented
form, which normalises the logits too. By other public means: group norm pre-trained on
PUBLIC, and fixed wavelet features with a linear head. Batches of 1,024, or of 4,096 below epsilon 1, and so many steps
that all have about 1.7 epochs; with --longer 5 five times as many. The learning rate of each is the best of three with
a further key, at epsilon 1 and at epsilon 0.1 for those below. Both sources are npz archives and taken as public. Goes
on where it stopped; writes results/normalisation.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.experiment import Experiment
from sfumato.randomness import RunKey
from sfumato.runs.directory import RunDirectory
from sfumato.training.preparation.prepare import prepare
from sfumato.training.run import execute

RESULT = RESULTS / "normalisation.json"
EPSILONS = (7.0, 3.0, 1.0, 0.5, 0.1, 0.05)
FACTORS = (0.5, 1.0, 2.0)
TUNED_WITH, TUNED_AT = 1000, {False: 0.1, True: 1.0}
"""The key of the runs that choose learning rates, and their budget: of those below epsilon 1, and of the others."""
PAPER = {
    "LN (paper)": (97.35, 97.05, 96.68, 94.81, 87.45, 75.76),
    "BN (paper)": (98.68, 98.18, 97.61, 96.83, 90.68, 88.15),
}


def rows(public: str, pretrained: Path) -> dict[str, dict[str, Any]]:
    """What is compared, as choices of an experiment; `rate` is the middle one of those that are tried."""
    lenet, examples = {"model": "lenet5,norm=batch"}, {"public_data": public}
    return {
        "public-batch": {**lenet, **examples, "normalisation": "public-batch", "rate": 2.8},
        "group": {**lenet, "normalisation": "group", "rate": 4.0},
        "none": {"model": "lenet5", "rate": 2.0},
        "layer": {**lenet, "normalisation": "layer", "rate": 1.0},
        "layer, logits too": {"model": "lenet5,norm=layer,norm_last=1", "rate": 1.0},
        "public-batch, logits too": {
            **examples,
            "model": "lenet5,norm=batch,norm_last=1",
            "normalisation": "public-batch",
            "rate": 2.8,
        },
        "group, pre-trained": {"model": "lenet5,norm=group", "pretrained": str(pretrained), "rate": 1.0},
        "scattering": {"model": "scattering"},
        "public-batch-own": {**lenet, **examples, "normalisation": "public-batch-own", "rate": 2.8},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("public", type=Path)
    parser.add_argument("place", type=Path, help="for what is pre-trained")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=None, help="some of the rows")
    parser.add_argument("--longer", type=int, default=1, help="so many times the steps")
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    options = parser.parse_args()
    source = sfumato.open_source(f"npz:{options.mnist}", owner_key=bytes(32), public=True)
    pretrained = options.place / "omniglot-group"
    if not (pretrained / "done").exists() and "group, pre-trained" in (options.only or ["group, pre-trained"]):
        held_out = parted(options.public, options.place)
        longer = {"steps": 3000, "batch_size": 128, "learning_rate": 0.05, "schedule": "cosine", "seed": 0}
        how = {"directory": pretrained, "public": True, "device": "cpu", "threads": 1}
        sfumato.pretrain("lenet5,norm=group", f"npz:{held_out}", **how, **longer)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for seed in range(options.seeds):
        for row, choices in rows(f"npz:{options.public}", pretrained).items():
            name = row if options.longer == 1 else f"{row}, {options.longer} times as long"
            for epsilon in options.epsilons:
                place = found.setdefault(name, {}).setdefault(f"{epsilon:g}", {})
                if (options.only and row not in options.only) or str(seed) in place.get("accuracy", {}):
                    continue
                place["learning rate"] = rate = rate_of(found[name], choices, source, epsilon, options.longer)
                accuracy = trained(source, choices, epsilon, rate, seed, options.longer)
                place.setdefault("accuracy", {})[str(seed)] = accuracy
                RESULT.write_text(json.dumps(found, indent=1) + "\n")
                print(f"{name:<18} epsilon {epsilon:<5g} seed {seed} rate {rate} {accuracy:.2%}", flush=True)
    show(json.loads(RESULT.read_text()))


def parted(public: Path, place: Path) -> Path:
    """The public classes' training images, every tenth of them for a test."""
    held = np.load(public)
    images, labels = held["x_train"], held["y_train"]
    tested = np.arange(len(images)) % 10 == 0
    archive = place / "public.npz"
    np.savez(archive, x_train=images[~tested], y_train=labels[~tested], x_test=images[tested], y_test=labels[tested])
    return archive


def rate_of(found: dict[str, Any], choices: dict[str, Any], source: Any, epsilon: float, longer: int) -> float | None:
    """The learning rate of a row at that budget: tried now, where none was yet; None where it follows a rule."""
    middle = choices.get("rate")
    if middle is None:
        return None
    budget = TUNED_AT[epsilon >= 1]
    tried = found.setdefault("tried", {}).setdefault(f"{budget:g}", {})
    for factor in FACTORS:
        if f"{factor * middle:g}" not in tried:
            tried[f"{factor * middle:g}"] = trained(source, choices, budget, factor * middle, TUNED_WITH, longer)
    return float(max(tried, key=tried.__getitem__))


def trained(source: Any, choices: dict[str, Any], epsilon: float, rate: float | None, seed: int, longer: int) -> float:
    """Test accuracy of one run."""
    sizes: dict[str, Any] = {}
    choices = {name: value for name, value in choices.items() if name != "rate"}
    if rate is not None:
        sizes = {"batch_size": 1024, "steps": 100} if epsilon >= 1 else {"batch_size": 4096, "steps": 25}
        sizes |= {
            "steps": longer * sizes["steps"],
            "learning_rate": rate,
            "optimizer": "momentum",
            "schedule": "cosine",
            "ema": 0.0,
        }
    plan, settings, _ = Experiment(epsilon=epsilon, delta=1e-5, **choices, **sizes).decide(source)
    with tempfile.TemporaryDirectory() as folder:
        job = prepare(
            None, source, plan, settings, device="cpu", threads=1, key=RunKey.from_seed(seed, "mnist"), keep=0
        )
        return execute(job, RunDirectory(Path(folder) / "run")).accuracy


def show(found: dict[str, Any]) -> None:
    print(f"\n{'':<20}" + "".join(f"{epsilon:>14g}" for epsilon in EPSILONS))
    for name, each in found.items():
        cells = []
        for epsilon in EPSILONS:
            shares = [100 * share for share in each.get(f"{epsilon:g}", {}).get("accuracy", {}).values()]
            spread = f" ({statistics.stdev(shares):.2f})" if len(shares) > 1 else ""
            cells.append(f"{statistics.mean(shares):.2f}{spread}" if shares else "")
        print(f"{name:<20}" + "".join(f"{cell:>14}" for cell in cells))
    for name, figures in PAPER.items():
        print(f"{name:<20}" + "".join(f"{figure:>14}" for figure in figures))


if __name__ == "__main__":
    main()
