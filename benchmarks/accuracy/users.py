"""Ways to keep a promise for persons, in accuracy: python benchmarks/accuracy/users.py DATA PLACE [--seeds 5]

Photographs of hands that show the digits 0 to 9, about ten of each of 218 students (Mavi 2020; DATA is the folder with
its labels.csv), at 32 pixels, at most ten kept of each, split by person, the same for all. Each way has the rules'
model, batch size, steps and rate, and the least noise for (epsilon, delta) of a person with ten images:

    users               each person drawn, with the mean gradient of all their images clipped
    group privacy       a promise for single images so strict that group privacy makes it epsilon for ten of them

at epsilon 3 and 8 with five seeds, with the full batch of the rules and with a quarter of it, by Poisson sampling. A
seed's runs are a pair; the table has the mean accuracy of users, and of each other way the mean difference with its
standard error. Goes on where it stopped; writes results/users.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import PrivacyPlan, Source, open_source, train
from sfumato.data import cap_per_user
from sfumato.privacy.statements.other_units import group_privacy

EPSILONS, SEEDS, AT_MOST, DELTA = (3, 8), range(5), 10, 1e-5
BATCHES = {"full batch": 1.0, "a quarter": 0.25}
WAYS = ("users", "group privacy")
RESULT = RESULTS / "users.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--batches", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    options = parser.parse_args()
    os.environ["SFUMATO_HOME"] = str(options.place / "home")
    source = opened(options.data)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found["data"] = facts(source)
    for batch in options.batches:
        for epsilon in EPSILONS:
            row = found.setdefault(batch, {}).setdefault(str(epsilon), {})
            for seed in SEEDS[: options.seeds]:
                for way in WAYS:
                    runs = row.setdefault(way, {})
                    if str(seed) not in runs:
                        runs[str(seed)] = accuracy(source, way, epsilon, BATCHES[batch], seed, options.place / "run")
                        RESULT.write_text(json.dumps(found, indent=1) + "\n")
            show(batch, epsilon, row)
    print(f"majority class {found['data']['majority_class']:.2%}")


def opened(data: Path) -> Source:
    """The same split and the same records for all: the key is no secret here."""
    key = bytes(32)
    return cap_per_user(open_source(f"csv:{data / 'labels.csv'}", owner_key=key, size=32, public=True), key, AT_MOST)


def facts(source: Source) -> dict[str, Any]:
    most = np.bincount(source.train.labels).argmax()
    return {
        "train": len(source.train),
        "test": len(source.test),
        "users": source.users,
        "majority_class": float((source.test.labels == most).mean()),
    }


def accuracy(source: Source, way: str, epsilon: float, share: float, seed: int, directory: Path) -> float:
    if way == "group privacy":
        asked = least_noise(source.examples, epsilon, share)
    else:
        size = part(source.users or 0, share)
        asked = {"unit": "user", "per_user": AT_MOST, "epsilon": epsilon, "batch_size": size}
    try:
        return train(None, source, directory=directory, seed=seed, delta=DELTA, **asked).accuracy
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@functools.cache
def least_noise(examples: int, epsilon: float, share: float) -> dict[str, Any]:
    """A training for single images whose epsilon for ten of them, by group privacy, is at most this one."""
    asked = {"batch_size": part(examples, share), "steps": 60}

    def enough(noise: float) -> bool:
        plan = PrivacyPlan.calibrate(examples=examples, delta=DELTA, noise_multiplier=noise, **asked)
        return group_privacy(plan, AT_MOST) <= epsilon

    low, high = 1.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    while high > 1.003 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return {**asked, "noise_multiplier": high}


def part(size: int, share: float) -> int:
    return size if share == 1 else round(share * size)


def show(batch: str, epsilon: float, row: dict[str, dict[str, float]]) -> None:
    users = row["users"]
    parts = [f"{batch:<10} epsilon {epsilon}  users {statistics.mean(users.values()):.2%}"]
    for way in WAYS[1:]:
        gaps = [row[way][seed] - users[seed] for seed in users if seed in row[way]]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
        parts.append(
            f"{way} {statistics.mean(row[way].values()):.2%}, {100 * statistics.mean(gaps):+.2f} ({100 * error:.2f})"
        )
    print("   ".join(parts), flush=True)


if __name__ == "__main__":
    main()
