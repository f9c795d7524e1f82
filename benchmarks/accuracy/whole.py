"""The default on whole data sets, by several seeds: python benchmarks/accuracy/whole.py DATA [NAME ...] [--seeds 5]

No option but epsilon: all of CIFAR-10 and MNIST (DATA holds cifar10.npz and mnist.npz) at delta 1e-5, in one process.
Fixed features are no function of the seed, so they are computed once for each data set and kept; `seconds` is what a
run took without them, `features` what they took. Goes on where it stopped; writes results/whole.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.training import inputs, steps

RESULT = RESULTS / "whole.json"
SETS = {"CIFAR-10": ("cifar10", (1, 3, 8)), "MNIST": ("mnist", (1, 3, 8))}


class Kept:
    """`inputs.features`, which computes those of as many records once.

    The parts of a data set have different numbers of records, and their features know no seed.
    """

    def __init__(self) -> None:
        self._compute, self._kept = inputs.features, dict[tuple[int, bool], Tensor]()
        self.seconds = 0.0

    def __call__(
        self, job: Any, records: Any, progress: Any, *, mirrored: bool = False, into: Tensor | None = None, **how: Any
    ) -> Tensor:
        key = len(records), mirrored
        if key not in self._kept:
            began = time.monotonic()
            self._kept[key] = self._compute(job, records, progress, mirrored=mirrored, **how)
            self.seconds += time.monotonic() - began
        return self._kept[key] if into is None else into.copy_(self._kept[key])


def main(data: Path, names: list[str], seeds: int) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in names:
        archive, epsilons = SETS[name]
        inputs.features = steps.features = kept = Kept()
        with tempfile.TemporaryDirectory() as place:
            os.environ["SFUMATO_HOME"] = f"{place}/home"
            source = sfumato.open_source(f"npz:{data / archive}.npz", owner_key=sfumato.owner_key(), public=True)
            for epsilon in epsilons:
                rows = found.setdefault(f"{name}, epsilon {epsilon}", {})
                for seed in range(seeds):
                    if str(seed) not in rows:
                        began, before = time.monotonic(), kept.seconds
                        how = {"epsilon": float(epsilon), "delta": 1e-5, "seed": seed}
                        run = sfumato.train(None, source, **how, directory=f"{place}/{epsilon}-{seed}")
                        features = kept.seconds - before
                        seconds = round(time.monotonic() - began - features, 1)
                        rows[str(seed)] = {"accuracy": run.accuracy, "seconds": seconds}
                        if features:
                            rows[str(seed)]["features"] = round(features, 1)
                        RESULT.write_text(json.dumps(found, indent=1) + "\n")
                show(f"{name}, epsilon {epsilon}", [row["accuracy"] for row in rows.values()])


def show(name: str, accuracies: list[float]) -> None:
    """One line for the reader."""
    mean = statistics.mean(accuracies)
    error = statistics.stdev(accuracies) / len(accuracies) ** 0.5 if len(accuracies) > 1 else float("nan")
    print(f"{name:<24}{mean:8.2%}  standard error {error:.2%} of {len(accuracies)} seeds", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("data", type=Path)
    options.add_argument("names", nargs="*", default=list(SETS))
    options.add_argument("--seeds", type=int, default=5)
    chosen = options.parse_args()
    main(chosen.data, chosen.names, chosen.seeds)
