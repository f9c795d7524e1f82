"""Normalisation under privacy on MNIST: python benchmarks/normalisation.py MNIST PUBLIC [--seeds 5]

LeNet-5 with a norm after each layer but the last, from random initialisation, delta 1e-5, at the budgets of Davody et
al. 2020, table 5: by the statistics of public examples (PUBLIC, such as Omniglot: 128 of them), with each example's own
among few of them (own, 8), group and layer norm, and none; and fixed wavelet features with a linear head, a public
means of another kind. Batches of 1,024, or of 4,096 below epsilon 1, and so many steps that all have about 1.7 epochs
in batches. The learning rate of each is the best of three at each budget with a further key. Both sources are npz
archives and taken as public. Goes on where it stopped; writes results/normalisation.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import measuring
import sfumato
from sfumato.randomness import DiceKey
from sfumato.runs.directory import RunDirectory
from sfumato.training import Experiment
from sfumato.training.prepare import prepare
from sfumato.training.run import execute

RESULT = measuring.RESULTS / "normalisation.json"
EPSILONS = (7.0, 3.0, 1.0, 0.5, 0.1, 0.05)
FACTORS = (0.5, 1.0, 2.0)
TUNED_WITH = 1000
PAPER = {
    "LN (paper)": (97.35, 97.05, 96.68, 94.81, 87.45, 75.76),
    "BN (paper)": (98.68, 98.18, 97.61, 96.83, 90.68, 88.15),
}


def rows(public: str) -> dict[str, dict[str, Any]]:
    """What is compared, as choices of an experiment; `rate` is the middle one of those that are tried."""
    lenet = {"model": "lenet5,norm=batch"}
    return {
        "public-batch": {**lenet, "normalisation": "public-batch", "public_data": public, "rate": 1.4},
        "own, M = 8": {
            **lenet,
            "normalisation": "public-batch-own",
            "public_data": public,
            "public_examples": 8,
            "rate": 1.0,
        },
        "group": {**lenet, "normalisation": "group", "rate": 0.5},
        "layer": {**lenet, "normalisation": "layer", "rate": 0.5},
        "none": {"model": "lenet5", "rate": 0.25},
        "scattering": {"model": "scattering"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("public", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=None, help="some of the rows")
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    options = parser.parse_args()
    source = sfumato.open_source(f"npz:{options.mnist}", owner_key=bytes(32), public=True)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for seed in range(options.seeds):
        for name, choices in rows(f"npz:{options.public}").items():
            for epsilon in options.epsilons:
                place = found.setdefault(name, {}).setdefault(f"{epsilon:g}", {})
                if (options.only and name not in options.only) or str(seed) in place.get("accuracy", {}):
                    continue
                rate = choices.get("rate")
                if rate is not None and "learning rate" not in place:
                    tried = {
                        factor * rate: trained(source, choices, epsilon, factor * rate, TUNED_WITH)
                        for factor in FACTORS
                    }
                    place |= {"tried": tried, "learning rate": max(tried, key=tried.__getitem__)}
                accuracy = trained(source, choices, epsilon, place.get("learning rate"), seed)
                place.setdefault("accuracy", {})[str(seed)] = accuracy
                kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
                kept.setdefault(name, {})[f"{epsilon:g}"] = place
                RESULT.write_text(json.dumps(kept, indent=1) + "\n")
                print(
                    f"{name:<14} epsilon {epsilon:<5g} seed {seed} rate {place.get('learning rate')} {accuracy:.2%}",
                    flush=True,
                )
    show(json.loads(RESULT.read_text()))


def trained(source: Any, choices: dict[str, Any], epsilon: float, rate: float | None, seed: int) -> float:
    """Test accuracy of one run."""
    sizes: dict[str, Any] = {}
    choices = {name: value for name, value in choices.items() if name != "rate"}
    if rate is not None:
        sizes = {"batch_size": 1024, "steps": 100} if epsilon >= 1 else {"batch_size": 4096, "steps": 25}
        sizes |= {"learning_rate": rate, "optimizer": "momentum", "schedule": "cosine", "ema": 0.0}
    plan, settings, _ = Experiment(epsilon=epsilon, delta=1e-5, **choices, **sizes).decide(source)
    with tempfile.TemporaryDirectory() as folder:
        job = prepare(
            None, source, plan, settings, device="cpu", threads=1, key=DiceKey.from_seed(seed, "mnist"), keep=0
        )
        return execute(job, RunDirectory(Path(folder) / "run")).accuracy


def show(found: dict[str, Any]) -> None:
    print(f"\n{'':<16}" + "".join(f"{epsilon:>14g}" for epsilon in EPSILONS))
    for name, each in found.items():
        cells = []
        for epsilon in EPSILONS:
            shares = [100 * share for share in each.get(f"{epsilon:g}", {}).get("accuracy", {}).values()]
            spread = f" ({statistics.stdev(shares):.2f})" if len(shares) > 1 else ""
            cells.append(f"{statistics.mean(shares):.2f}{spread}" if shares else "")
        print(f"{name:<16}" + "".join(f"{cell:>14}" for cell in cells))
    for name, figures in PAPER.items():
        print(f"{name:<16}" + "".join(f"{figure:>14}" for figure in figures))


if __name__ == "__main__":
    main()
