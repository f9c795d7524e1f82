"""The README's command on whole data sets, some runs each: python benchmarks/accuracy/whole.py DATA [NAME ...]

`sfumato train npz:DATA/NAME.npz --epsilon E` with no other option and a fresh key, in one process (DATA holds
cifar10.npz and mnist.npz). Fixed features do not depend on the key: they are computed once for each data set and kept.
`seconds` is what a run took without them, `features` what they took. Resumes where it stopped; writes
results/whole.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
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

from benchmarks import RESULTS
from sfumato import cli
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


def main(data: Path, names: list[str], runs: int) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in names:
        archive, epsilons = SETS[name]
        inputs.features = steps.features = kept = Kept()
        with tempfile.TemporaryDirectory() as place:
            for epsilon in epsilons:
                rows = found.setdefault(f"{name}, epsilon {epsilon}", {})
                for number in range(runs):
                    if str(number) not in rows:
                        before = kept.seconds
                        result = train(f"npz:{data / archive}.npz", epsilon, f"{place}/{epsilon}-{number}")
                        features = kept.seconds - before
                        row = {key: result[key] for key in ("accuracy", "epsilon", "delta")}
                        rows[str(number)] = row | {"seconds": round(result["seconds"] - features, 1)}
                        if features:
                            rows[str(number)]["features"] = round(features, 1)
                        RESULT.write_text(json.dumps(found, indent=1) + "\n")
                show(f"{name}, epsilon {epsilon}", [row["accuracy"] for row in rows.values()])


def train(source: str, epsilon: int, directory: str) -> dict[str, Any]:
    """What the command prints for programs, and how many seconds it took."""
    os.environ["SFUMATO_HOME"] = f"{directory}-home"
    began, printed = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = cli.main(["train", source, "--epsilon", str(epsilon), "--output", directory, "--json"])
    if status:
        raise SystemExit(status)
    return json.loads(printed.getvalue().splitlines()[-1]) | {"seconds": time.monotonic() - began}


def show(name: str, accuracies: list[float]) -> None:
    """One line for the reader."""
    mean = statistics.mean(accuracies)
    error = statistics.stdev(accuracies) / len(accuracies) ** 0.5 if len(accuracies) > 1 else float("nan")
    print(f"{name:<24}{mean:8.2%}  standard error {error:.2%} of {len(accuracies)} runs", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("data", type=Path)
    options.add_argument("names", nargs="*", default=list(SETS))
    options.add_argument("--runs", type=int, default=3)
    chosen = options.parse_args()
    main(chosen.data, chosen.names, chosen.runs)
