"""Intervals of one run against others.

    python benchmarks/trust/uncertainty.py [digits|quadratic] [--runs 20] [--epsilon 3]

By every mechanism, with independent noise and correlated. Trains digits so many times with keys of their own at a
constant rate, without an average, and takes for each test image the logit of the class that the first run names. Shows,
over images and runs, the ratio of what `sfumato.intervals` gives from one run to what the runs themselves show (both
prediction intervals at 95%, by Student's t), and how often the logit of another run lies in one run's interval.

quadratic does the same for weights on quadratic losses of several curvatures, with the noise that runs have: SGD at
a constant rate eta, of which eta h T says how often a direction of curvature h is forgotten in T steps; the steps that
a run keeps by rule; 4,000 coordinates of two runs for each cell. "plain" is the coverage of the formula as it is for
independent noise, "widened" that of what `intervals` gives. Writes results/uncertainty.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from benchmarks.shared import measuring
from sfumato.averaging import interval, kept_steps, select_spaced, widening_of
from sfumato.experiment import Experiment
from sfumato.privacy import BandedToeplitz, Gaussian, Mechanism, Tree
from sfumato.privacy.factorisation import square_root
from sfumato.randomness import Noise, RunKey
from sfumato.runs.prediction_intervals import spacing_of

RESULT = RESULTS / "uncertainty.json"
SETTINGS: dict[str, Any] = {"model": "cnn", "schedule": "constant", "ema": 0.0, "optimizer": "sgd"}
FIXED: dict[str, Any] = {"participation": "fixed-order"}
CASES: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "tree": {**FIXED, "mechanism": "tree"},
    "tree, 64 steps": {**FIXED, "mechanism": "tree", "steps": 64},
    "banded": {**FIXED, "mechanism": "banded"},
}
CURVATURES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 1024.0)
COORDINATES = 4000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("digits", "quadratic"), default="digits")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--learning-rate", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if options.what == "quadratic":
        found["quadratic"] = quadratic()
    else:
        for name in options.only:
            found[name] = of_digits(name, options)
            RESULT.write_text(json.dumps(found, indent=1) + "\n")
            for figure, value in found[name].items():
                print(f"{name:<16} {figure:<36} {value}", flush=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


def of_digits(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs by one mechanism, and each one's intervals against all others."""
    source = sfumato.open_source("digits", owner_key=bytes(32), public=True)
    asked = Experiment(epsilon=options.epsilon, learning_rate=options.learning_rate, **SETTINGS)
    plan, settings, _ = replace(asked, **CASES[name]).decide(source)
    images = [source.test.images[place] for place in range(len(source.test))]
    last, accuracies, intervals = [], [], []
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            run = sfumato.train(None, source, plan, directory=place, settings=settings, keep=20)
            last.append(sfumato.load(place).logits(images).double())
            intervals.append(sfumato.intervals(place, images))
            accuracies.append(run.accuracy)
        print(f"{name}, run {number}: accuracy {run.accuracy:.2%}", flush=True)
    among = torch.stack(last)
    named = among[0].argmax(1, keepdim=True)

    def of_named(values: torch.Tensor) -> torch.Tensor:
        return values.gather(1, named).flatten()

    low, high, *_ = interval(among)
    truth = of_named(high - low)
    ratios = torch.stack([of_named(one.high - one.low) / truth for one in intervals])
    inside = [
        (of_named(one.low) <= of_named(other)) & (of_named(other) <= of_named(one.high))
        for place, one in enumerate(intervals)
        for number, other in enumerate(last)
        if number != place
    ]
    ends = torch.tensor([0.05, 0.95], dtype=torch.float64)
    return {
        "runs": options.runs,
        "epsilon": options.epsilon,
        "learning_rate": options.learning_rate,
        "steps taken": plan.steps,
        "noise_multiplier": plan.noise_multiplier,
        "accuracy": statistics.mean(accuracies),
        "median ratio of widths": ratios.median().item(),
        "ratio of widths, 5% and 95%": ratios.flatten().quantile(ends).tolist(),
        "median ratio of images, 5% and 95%": ratios.median(0).values.quantile(ends).tolist(),
        "coverage": torch.stack(inside).double().mean().item(),
        "notes": list(intervals[0].notes),
        "steps": list(intervals[0].steps),
        **where(),
    }


def where() -> dict[str, Any]:
    return {"date": datetime.now(UTC).date().isoformat(), "machine": measuring.machine("cpu")}


def quadratic() -> dict[str, Any]:
    """Coverage of weights along directions of several curvatures, by mechanism and number of steps."""
    rows = []
    for steps in (60, 1000, 1024):
        mechanisms: dict[str, Mechanism] = {
            "gaussian": Gaussian(noise_multiplier=1.0),
            "tree": Tree(noise_multiplier=1.0),
            "five trees, completed": Tree(noise_multiplier=1.0, steps_per_tree=steps // 5, completed=True),
            "banded, 16": BandedToeplitz(noise_multiplier=1.0, coefficients=tuple(square_root(16).tolist())),
        }
        kept = select_spaced(kept_steps(steps, 20), steps, spacing=spacing_of(steps))
        for name, mechanism in mechanisms.items():
            factor = 1.0
            if not mechanism.independent:
                factor = widening_of(mechanism.variances, kept, rates=[1.0] * steps, total=steps)
            row: dict[str, Any] = {"mechanism": name, "steps": steps, "kept": len(kept), "widening": factor}
            for curvature in CURVATURES:
                one, other = (weights(mechanism, curvature / steps, steps, seed) for seed in (0, 1))
                values = torch.stack([one[step] for step in kept])
                row[f"plain, {curvature:g}"] = covered(values, other[steps], 1.0)
                row[f"widened, {curvature:g}"] = covered(values, other[steps], factor)
            rows.append(row)
            print(row, flush=True)
    return {"coordinates": COORDINATES, "rows": rows, **where()}


def weights(mechanism: Mechanism, curvature: float, steps: int, seed: int) -> dict[int, torch.Tensor]:
    """(COORDINATES,) after each step, from the optimum, at the rate 1; a rate times a curvature is 1 at most."""
    noise = Noise(mechanism, max_norm=1.0, key=RunKey.from_seed(seed, "uncertainty"))
    state, now, found = noise.begin(), torch.zeros(COORDINATES), {}
    for step in range(steps):
        gradient, state = noise.add({"w": min(curvature, 1.0) * now}, step, state)
        now = now - gradient["w"]
        found[step + 1] = now
    return found


def covered(values: torch.Tensor, other: torch.Tensor, factor: float) -> float:
    found = interval(values, widening=factor)
    return ((found.low <= other) & (other <= found.high)).double().mean().item()


if __name__ == "__main__":
    main()
