"""How the sites of a federation should train: python benchmarks/accuracy/federation_rule.py DATA PLACE [--seeds 5]

Digits with five seeds and 20,000 images of CIFAR-10 with one, as in federation.py, with 3 and 10 sites, equal or skewed
by class, at epsilon 1, 3 and 8:

- rounds x steps in each: 60 steps in all, or 20 rounds
- the sites' momentum of 0.9 kept from round to round or fresh in each, or none, in 20 x 3
- the last average, the mean of the last half of the averages, or their moving mean, in 60 x 1
- weights by the sites' sizes, by their squares, or equal, for shares of 70, 20 and 10%, in 60 x 1; `sorted` gives each
  site a range of the classes

And photographs of hands in one place, where a record is a person with the mean loss of ten photographs, or a photograph
whose person has ten (`users=`, `per_user=10`), at the rate of the rule and at half and twice that.

The rate always follows by the same rule: the noise of the average moves a logit by kappa. Goes on where it stopped;
writes results/federation-rule.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.accuracy.federation import IGNORED, PER_PERSON, Set, cifar10, digits, divided, hands, together

SAME_TOTAL, SAME_ROUNDS = ((60, 1), (30, 2), (20, 3), (12, 5), (6, 10)), ((20, 1), (20, 2), (20, 5), (20, 10))
SHARES = (0.7, 0.2, 0.1)
RESULT = RESULTS / "federation-rule.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name, opened, seeds in (
        ("digits", digits, given.seeds),
        ("CIFAR-10", cifar10, 1),
        ("hands", hands, given.seeds),
    ):
        drawn = opened(given.data, given.place)
        for key, measured in (records() if name == "hands" else choices(small=name == "digits")).items():
            if (row := f"{name}, {key}") not in found:
                accuracies = [measured(drawn(seed), seed) for seed in range(seeds)]
                means, deviations = np.mean(accuracies, 0), np.std(accuracies, 0)
                found[row] = {"mean": means.round(4).tolist(), "deviation": deviations.round(4).tolist()}
                RESULT.write_text(json.dumps(found, indent=1) + "\n")
                print(f"{row:<70}", *(f"{100 * one:6.1f}" for one in means), flush=True)


def choices(*, small: bool) -> dict[str, Callable[[Set, int], list[float]]]:
    """What is measured, by name."""
    found: dict[str, Callable[[Set, int], list[float]]] = {}
    for sites in (3, 10) if small else (3,):
        for split in ("equal", "by class"):

            def trained(sites: int = sites, split: str = split, **options: object) -> Callable[[Set, int], list[float]]:
                return lambda held, seed: held.accuracies(
                    together(held, divided(held, sites, split, seed), seed, **options)  # type: ignore[arg-type]
                )

            name = f"{sites} sites, {split}"
            for rounds, local in SAME_TOTAL + SAME_ROUNDS if small else (*SAME_TOTAL[:3], *SAME_ROUNDS[:2]):
                found[f"{name}, {rounds} x {local}"] = trained(rounds=rounds, local=local)
            if small:
                found[f"{name}, 20 x 3, fresh momentum"] = trained(rounds=20, local=3, fresh=True)
                found[f"{name}, 20 x 3, no momentum"] = trained(rounds=20, local=3, momentum=0.0)
                found[f"{name}, 60 x 1, no momentum"] = trained(momentum=0.0)
                found[f"{name}, 60 x 1, mean of the last half"] = trained(result=last_half)
                found[f"{name}, 60 x 1, moving mean"] = trained(result=moving_mean)
    for name, weigh in WEIGHTS.items() if small else ():
        for order in ("mixed", "sorted"):
            found[f"70, 20 and 10%, {order}, {name}"] = unequal(weigh, order)
    return found


WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "by size": lambda sizes: sizes,
    "by squared size": lambda sizes: sizes**2,
    "equal weights": torch.ones_like,
}


def unequal(weigh: Callable[[Tensor], Tensor], order: str) -> Callable[[Set, int], list[float]]:
    def measured(held: Set, seed: int) -> list[float]:
        labels = held.labels[:, 0].numpy()
        rows = np.argsort((labels + 3 * seed) % 10, kind="stable") if order == "sorted" else np.arange(len(labels))
        parts = np.split(rows, np.round(np.cumsum(SHARES)[:-1] * len(rows)).astype(int))
        return held.accuracies(together(held, parts, seed, weigh=weigh))

    return measured


def records() -> dict[str, Callable[[Set, int], list[float]]]:
    """A person as one record, or each of their photographs: full batches of them have sensitivity 10 C."""

    def measured(held: Set, seed: int, alone: bool, factor: float) -> list[float]:
        if alone:
            kept = held.labels != IGNORED
            held = held._replace(features=held.features[kept][:, None], labels=held.labels[kept][:, None])
        held = held._replace(rule=held.rule._replace(noise_on_a_logit=factor * held.rule.noise_on_a_logit))
        noise = float(PER_PERSON if alone else 1)
        return held.accuracies(together(held, [np.arange(len(held.labels))], seed, noise=noise))

    return {
        f"one place, {name}, rate x {factor:g}": partial(measured, alone=alone, factor=factor)
        for alone, name in ((False, "a record for each person"), (True, "a record for each photograph"))
        for factor in (0.5, 1, 2)
    }


def last_half(averages: list[Tensor]) -> Tensor:
    return torch.stack(averages[len(averages) // 2 :]).mean(0)


def moving_mean(averages: list[Tensor]) -> Tensor:
    """As `--ema` of train."""
    mean = torch.zeros_like(averages[0])
    for step, one in enumerate(averages):
        mean = mean.lerp(one, 1 - min(0.9999, (1 + step) / (10 + step)))
    return mean


if __name__ == "__main__":
    main()
