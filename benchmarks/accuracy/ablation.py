"""The ablation of De et al. 2022, table 2, scaled to two cores.

    python benchmarks/accuracy/ablation.py DATA PLACE [PROCESSES]

Group norm, a larger batch, weight standardisation, views and averaging are added one after another to a WRN-16-1 on
10,000 images of CIFAR-10 under (8, 1e-5)-DP; 5,000 other training images validate. Batches of 64 and 512 stand for the
paper's 256 and 4096 of 45,000, and 4 groups leave as many channels to a group as the paper's 16 do in its wider
network. Every row takes the same number of examples' gradients, whereas the paper's larger batches took more. The
learning rate is chosen for each row on the first seed, then all seeds run with it; the row with views takes the one
before it, since it costs four times as much.

DATA is an npz archive of CIFAR-10 (x_train, y_train, ...); PLACE keeps the runs, so that the command goes on where it
was cut. Averaged and last weights come from the same runs. Writes benchmarks/results/ablation.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.runs import accuracy_on, last_row

RESULT = RESULTS / "ablation.json"
TRAINED, VALIDATED, SEEDS, GRADIENTS = 10_000, 5_000, 3, 102_400
SMALL, LARGE = 64, 512
PLAIN = "wrn-16-1,norm=none,standardise=False"
NORMED = "wrn-16-1,groups=4,standardise=False"
STANDARDISED = "wrn-16-1,groups=4"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table: what it adds, and the options that it adds it by."""

    adds: str
    model: str
    batch: int
    views: int = 1
    rates: tuple[float, ...]


ROWS = (
    Row(adds=f"baseline: no normalisation, batch {SMALL}", model=PLAIN, batch=SMALL, rates=(0.125, 0.25, 0.5)),
    Row(adds="group norm (4 groups)", model=NORMED, batch=SMALL, rates=(0.25, 0.5, 1.0)),
    Row(adds=f"larger batch ({LARGE})", model=NORMED, batch=LARGE, rates=(0.5, 1.0, 2.0, 4.0)),
    Row(adds="weight standardisation", model=STANDARDISED, batch=LARGE, rates=(1.0, 2.0, 4.0)),
    Row(adds="4 views", model=STANDARDISED, batch=LARGE, views=4, rates=()),
)


def main() -> None:
    data, place, *processes = sys.argv[1:]
    archive = subset(Path(data), Path(place))
    at_once = int(*processes) if processes else 2

    def train(row: Row, rate: float, seed: int) -> dict[str, float]:
        return outcome(row, rate, seed, archive, Path(place))

    with ThreadPoolExecutor(at_once) as pool:
        tried = [(row, rate, pool.submit(train, row, rate, 0)) for row in ROWS for rate in row.rates]
        best: dict[Row, float] = {}
        for row in ROWS:
            if not row.rates:
                best[row] = [*best.values()][-1]
                continue
            scored = [(job.result()["validation"], rate) for other, rate, job in tried if other is row]
            best[row] = max(scored)[1]
            print(row.adds, {rate: f"{score:.2%}" for score, rate in scored}, flush=True)
        seeds = {row: [pool.submit(train, row, best[row], seed) for seed in range(SEEDS)] for row in ROWS}
        found = {row: [job.result() for job in jobs] for row, jobs in seeds.items()}
    table = [line(row, best[row], found[row], "last") for row in ROWS]
    table.append(line(ROWS[-1], best[ROWS[-1]], found[ROWS[-1]], "averaged") | {"adds": "averaged weights"})
    for before, after in pairwise(table):
        after["sign"] = sign(before, after)
    RESULT.write_text(
        json.dumps({"rows": table, "tried": {row.adds: list(row.rates) for row in ROWS}}, indent=1) + "\n"
    )
    for row in table:
        averaged = statistics.median(row["averaged"])
        print(
            f"{row['adds']:<40} {row['validation']:.1%} ({row['spread']:.1%}), averaged {averaged:.1%}  "
            f"{row.get('sign', '')}"
        )


def subset(data: Path, place: Path) -> Path:
    """10,000 images to train on and 5,000 to validate with, all of the official training part."""
    path = place / "subset.npz"
    if not path.exists():
        place.mkdir(parents=True, exist_ok=True)
        arrays = np.load(data)
        ends = (0, TRAINED, TRAINED + VALIDATED)
        parts = [{name: arrays[f"{name}_train"][start:end] for name in "xy"} for start, end in pairwise(ends)]
        np.savez(
            path,
            **{
                f"{name}_{kind}": part[name]
                for kind, part in zip(("train", "test"), parts, strict=True)
                for name in "xy"
            },
        )
    return path


def outcome(row: Row, rate: float, seed: int, archive: Path, place: Path) -> dict[str, float]:
    """Accuracies of one run, which goes on where an earlier call was cut, or is only read."""
    run = place / f"{ROWS.index(row)}-rate{rate:g}-seed{seed}"
    moved = ("--shift", "4", "--flip", "True") if row.views > 1 else ()
    last = last_row(
        run,
        *("train", f"npz:{archive}", "--public", "--examples", str(TRAINED), "--delta", "1e-5", "--epsilon", "8"),
        *("--model", row.model, "--batch-size", str(row.batch), "--steps", str(GRADIENTS // row.batch)),
        *("--optimizer", "sgd", "--learning-rate", str(rate), "--views", str(row.views), *moved, "--seed", str(seed)),
    )
    return {
        "averaged": last["accuracy"],
        "last": last["accuracy_of_last_weights"],
        "validation": last["accuracy_of_last_weights"],
        "training": accuracy_on(run, f"npz:{archive}", "train"),
    }


def line(row: Row, rate: float, runs: list[dict[str, float]], weights: str) -> dict[str, object]:
    """Median and spread over the seeds."""
    values = [run[weights] for run in runs]
    training = statistics.median(run["training"] for run in runs) if weights == "averaged" else None
    return {
        "adds": row.adds,
        "rate": rate,
        "validation": statistics.median(values),
        "spread": statistics.stdev(values),
        "runs": values,
        "averaged": [run["averaged"] for run in runs],
        "training": training,
    }


def sign(before: dict[str, object], after: dict[str, object]) -> str:
    """Whether a step helped, harmed, or stayed within the spread of the two rows."""
    change = float(after["validation"]) - float(before["validation"])  # type: ignore[arg-type]
    spread = max(float(before["spread"]), float(after["spread"]))  # type: ignore[arg-type]
    if abs(change) <= spread:
        return f"unresolved ({change:+.1%})"
    return f"{'helps' if change > 0 else 'harms'} ({change:+.1%})"


if __name__ == "__main__":
    main()
