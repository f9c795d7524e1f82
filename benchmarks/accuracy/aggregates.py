"""Aggregates of weights against the last ones.

    python benchmarks/accuracy/aggregates.py PLACE [--source digits] [--seeds 20]

One key for all methods of a seed (so they have the same beginning, participants and noise; on public data only), at
epsilon 1 and 8, by DP-SGD and by DP-FTRL (tree noise). From one run: its last weights, their moving average (ema), and
of the 20 sets of weights that it kept the UPA, OPA and OMV over as many of the last as the rule says, and over the
number that is best on the test part (an upper bound, for it has seen what it is measured on). Trained anew: over the
moving average or over the mean of the last five weights (ema trained, uta trained; algorithm 1 of Shejwalkar et al.
2022). Each of the three trainings has the learning rate of four that does best with two further keys: a gradient at an
average lags behind, and wants a smaller one.
With --drift, DP-SGD alone, and records are drawn by turns rather from one half of the classes or from the other.

The table has the mean test accuracy of the last weights with the standard deviation over seeds, and for each method the
mean paired difference with its standard error and its standard deviation over seeds; below it, the smallest difference
that so many pairs detect with probability 0.8 at level 0.05. "over steps" is the mean over seeds of the standard
deviation of accuracy over the last ten steps. Goes on where it stopped; writes results/aggregates.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.evaluation import accuracy as evaluate
from sfumato.experiment import Experiment
from sfumato.randomness import RunKey
from sfumato.runs import aggregated
from sfumato.runs.directory import RunDirectory
from sfumato.training.preparation.prepare import prepare
from sfumato.training.run import execute

RESULT = RESULTS / "aggregates.json"
NOISES = {"sgd": {}, "ftrl": {"mechanism": "tree", "participation": "fixed-order"}}
AVERAGED: dict[str, Any] = {"ema": 0.9, "ema_form": "constant"}
TRAINED: dict[str, dict[str, Any]] = {
    "ema": AVERAGED,
    "ema trained": {**AVERAGED, "aggregate": "ema"},
    "uta trained": {"ema": 0.0, "aggregate": "uta", "aggregate_last": 5},
}
FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0)
TUNED_WITH = (1000, 1001)
RATE = "learning rates"
KEPT = 20
OVER_STEPS = "last, deviation over steps"
DETECTED = 1.96 + 0.84


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path)
    parser.add_argument("--source", default="digits", help="public: digits, or features:PATH")
    parser.add_argument("--model", default=None)
    parser.add_argument("--learning-rate", type=float, default=None)
    parser.add_argument("--batch-size", type=int, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--drift", type=int, default=None, help="period of a drift between the halves of the classes")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 8.0])
    options = parser.parse_args()
    source = sfumato.open_source(options.source, owner_key=bytes(32), public=True)
    options.place.mkdir(parents=True, exist_ok=True)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    name = options.source if options.source == "digits" else Path(options.source).stem
    noises: dict[str, dict[str, Any]] = NOISES
    if options.drift is not None:
        name += ", drift"
        second = source.classes[len(source.classes) // 2 :]
        noises = {"sgd": {"participation": "drifting", "drift": options.drift, "drift_groups": second}}
    for epsilon in options.epsilons:
        for noise, pair in noises.items():
            asked = Experiment(
                epsilon=epsilon,
                model=options.model,
                learning_rate=options.learning_rate,
                batch_size=options.batch_size,
                steps=options.steps,
                schedule="constant",
                optimizer="sgd",
                **pair,
            )
            row = found.setdefault(name, {}).setdefault(f"{noise}, epsilon {epsilon:g}", {})
            if RATE not in row:
                row[RATE] = {method: best_rate(source, asked, method, options.place) for method in TRAINED}
                RESULT.write_text(json.dumps(found, indent=1) + "\n")
            for seed in range(options.seeds):
                if str(seed) not in row.get("last", {}):
                    for method, accuracy in accuracies(source, asked, seed, options.place, row[RATE]).items():
                        row.setdefault(method, {})[str(seed)] = accuracy
                    RESULT.write_text(json.dumps(found, indent=1) + "\n")
            show(f"{name}, {noise}, epsilon {epsilon:g}", row)


def best_rate(source: Any, asked: Experiment, method: str, place: Path) -> float:
    """The learning rate, of some about the one that is asked for or chosen by rule, that does best."""
    begin = replace(asked, **TRAINED[method]).decide(source).settings.descent.learning_rate
    shares = {
        factor * begin: statistics.mean(
            trained(source, replace(asked, learning_rate=factor * begin), method, seed, place)["accuracy"]
            for seed in TUNED_WITH
        )
        for factor in FACTORS
    }
    print(f"{method}: {shares}", flush=True)
    return max(shares, key=shares.__getitem__)


def accuracies(source: Any, asked: Experiment, seed: int, place: Path, rates: dict[str, float]) -> dict[str, float]:
    """Test accuracies of all methods by one key."""
    found: dict[str, float] = {}
    for method in TRAINED:
        keep = KEPT if method == "ema" else 0
        made = trained(source, replace(asked, learning_rate=rates[method]), method, seed, place, keep=keep)
        found |= {method: made.pop("accuracy"), **made}
    return found


def trained(source: Any, asked: Experiment, method: str, seed: int, place: Path, *, keep: int = 0) -> dict[str, float]:
    """Test accuracy of one training, and those of what is made of the weights that it kept."""
    plan, settings, _ = replace(asked, **TRAINED[method]).decide(source)
    key = RunKey.from_seed(seed, "aggregates")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        run = RunDirectory(Path(folder) / "run")
        job = prepare(None, source, plan, settings, device="cpu", threads=1, key=key, keep=keep)
        accuracy = execute(job, run).accuracy
        return {"accuracy": accuracy, **(of_kept(run, source) if keep else {})}


def of_kept(run: RunDirectory, source: Any) -> dict[str, float]:
    """Test accuracies of what is made of a run's kept weights."""
    ruled = len(sfumato.aggregate(run.path, "upa").recipe.steps)
    found: dict[str, float] = {}
    for method in ("upa", "opa", "omv"):
        made = sfumato.aggregate(run.path, method, score_on=source)  # type: ignore[arg-type]
        assert made.accuracies is not None
        found |= {method: made.accuracies[ruled - 1], f"{method}, best k": max(made.accuracies)}
        found.setdefault("last", made.accuracies[0])
    found[OVER_STEPS] = statistics.stdev(each_alone(run, source)[-KEPT // 2 :])
    return found


def each_alone(run: RunDirectory, source: Any) -> list[float]:
    """Test accuracies of each kept set of weights by itself."""
    loaded = sfumato.load(run.path)
    module, transform = loaded.module_for(source) if source.cache is not None else (loaded.module, loaded.transform)
    rest, labels, shares = dict(loaded.module.state_dict()), torch.from_numpy(source.test.labels), []
    rest = {name: value.clone() for name, value in rest.items()}
    for weights in aggregated.load_weights(run, tuple(aggregated.kept_hashes(run))).values():
        loaded.module.load_state_dict({**rest, **weights})
        module = loaded.module_for(source)[0] if source.cache is not None else module
        outputs = evaluate.logits(module, source.test, transform, torch.device("cpu"))
        shares.append((outputs.argmax(1) == labels).double().mean().item())
    return shares


def show(title: str, row: dict[str, dict[str, float]]) -> None:
    last = row["last"]
    seeds = sorted(last)
    over = 100 * statistics.mean(row[OVER_STEPS].values())
    print(f"\n{title}: last weights {_mean([last[seed] for seed in seeds])}, over steps {over:.2f}, {len(seeds)} seeds")
    pairs = {method: each for method, each in row.items() if method not in ("last", OVER_STEPS, RATE)}
    for method, each in pairs.items():
        if len(seeds) > 1:
            gains = [100 * (each[seed] - last[seed]) for seed in seeds]
            error = statistics.stdev(gains) / math.sqrt(len(gains))
            print(
                f"  {method:<14} {statistics.mean(gains):+.2f} ({error:.2f})   deviation over seeds "
                f"{100 * statistics.stdev(each.values()):.2f}   detectable {DETECTED * error:.2f}",
                flush=True,
            )
    if len(seeds) > 1:
        gains = [100 * (row["ema trained"][seed] - row["ema"][seed]) for seed in seeds]
        error = statistics.stdev(gains) / math.sqrt(len(gains))
        print(f"  ema trained over ema {statistics.mean(gains):+.2f} ({error:.2f})", flush=True)


def _mean(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2%} ({100 * spread:.2f})"


if __name__ == "__main__":
    main()
