"""Aggregates of weights against the last ones: python benchmarks/aggregates.py PLACE [--source digits] [--seeds 20]

One key for all methods of a seed (so they have the same beginning, participants and noise; on public data only), at
epsilon 1 and 8, by DP-SGD and by DP-FTRL (tree noise). From one run without an average: its last weights, and of the 20
that it kept the UPA, OPA and OMV over as many of the last as the rule says, and over the number that is best on the
test part (an upper bound, for it has seen what it is measured on). Trained anew: with the moving average released
(ema), and over it or over the mean of the last five weights (ema trained, uta trained; algorithm 1 of Shejwalkar et al.
2022).

The table has the mean test accuracy of the last weights with the standard deviation over seeds, and for each method the
mean paired difference with its standard error and its standard deviation over seeds; below it, the smallest difference
that so many pairs detect with probability 0.8 at level 0.05. Goes on where it stopped; writes results/aggregates.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import measuring
import sfumato
from sfumato.randomness import DiceKey
from sfumato.runs.directory import RunDirectory
from sfumato.training import Experiment
from sfumato.training.prepare import prepare
from sfumato.training.run import execute

RESULT = measuring.RESULTS / "aggregates.json"
NOISES = {"sgd": {}, "ftrl": {"mechanism": "tree", "participation": "fixed-order"}}
TRAINED: dict[str, dict[str, Any]] = {
    "last": {"ema": 0.0},
    "ema": {"ema": 0.9, "ema_form": "constant"},
    "ema trained": {"ema": 0.9, "ema_form": "constant", "aggregate": "ema"},
    "uta trained": {"ema": 0.0, "aggregate": "uta", "aggregate_last": 5},
}
DETECTED = 1.96 + 0.84


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path)
    parser.add_argument("--source", default="digits", help="public: digits, or features:PATH")
    parser.add_argument("--model", default=None)
    parser.add_argument("--learning-rate", type=float, default=None)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 8.0])
    options = parser.parse_args()
    source = sfumato.open_source(options.source, owner_key=bytes(32), public=True)
    options.place.mkdir(parents=True, exist_ok=True)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    name = options.source if options.source == "digits" else Path(options.source).name
    for epsilon in options.epsilons:
        for noise, pair in NOISES.items():
            asked = Experiment(
                epsilon=epsilon, model=options.model, learning_rate=options.learning_rate, schedule="constant", **pair
            )
            row = found.setdefault(name, {}).setdefault(f"{noise}, epsilon {epsilon:g}", {})
            for seed in range(options.seeds):
                if str(seed) not in row.get("last", {}):
                    for method, accuracy in accuracies(source, asked, seed, options.place).items():
                        row.setdefault(method, {})[str(seed)] = accuracy
                    RESULT.write_text(json.dumps(found, indent=1) + "\n")
            show(f"{name}, {noise}, epsilon {epsilon:g}", row)


def accuracies(source: Any, asked: Experiment, seed: int, place: Path) -> dict[str, float]:
    """Test accuracies of all methods by one key."""
    key, found = DiceKey.from_seed(seed, "aggregates"), {}
    for method, average in TRAINED.items():
        plan, settings, _ = replace(asked, **average).decide(source)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            run = RunDirectory(Path(folder) / "run")
            keep = 20 if method == "last" else 0
            job = prepare(None, source, plan, settings, device="cpu", threads=1, key=key, keep=keep)
            found[method] = execute(job, run).accuracy
            if method == "last":
                found |= of_kept(run, source)
    return found


def of_kept(run: RunDirectory, source: Any) -> dict[str, float]:
    """Test accuracies of what is made of a run's kept weights."""
    ruled = len(sfumato.aggregate(run.path, "upa").recipe.steps)
    found: dict[str, float] = {}
    for method in ("upa", "opa", "omv"):
        made = sfumato.aggregate(run.path, method, score_on=source)  # type: ignore[arg-type]
        assert made.accuracies is not None
        found |= {method: made.accuracies[ruled - 1], f"{method}, best k": max(made.accuracies)}
    return found


def show(title: str, row: dict[str, dict[str, float]]) -> None:
    last = row["last"]
    seeds = sorted(last)
    print(f"\n{title}: last weights {_mean([last[seed] for seed in seeds])}, {len(seeds)} seeds")
    for method, each in row.items():
        if method != "last" and len(seeds) > 1:
            gains = [100 * (each[seed] - last[seed]) for seed in seeds]
            error = statistics.stdev(gains) / math.sqrt(len(gains))
            print(
                f"  {method:<14} {statistics.mean(gains):+.2f} ({error:.2f})   deviation over seeds "
                f"{100 * statistics.stdev(each.values()):.2f}   detectable {DETECTED * error:.2f}"
            )


def _mean(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2%} ({100 * spread:.2f})"


if __name__ == "__main__":
    main()
