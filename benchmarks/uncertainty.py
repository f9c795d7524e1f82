"""Intervals of one run against other runs: python benchmarks/uncertainty.py [--runs 20] [--epsilon 3]

Trains digits so many times with keys of their own at a constant rate, without an average, and takes for each test
image the logit of the class that the first run names. Shows, over images and runs, the ratio of what
`sfumato.intervals` gives from one run to what the runs themselves show (both prediction intervals at 95%, by Student's
t), and how often the logit of another run lies in one run's interval. Writes results/uncertainty.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

import measuring
import sfumato
from sfumato.averaging import interval
from sfumato.training import Experiment

RESULT = measuring.RESULTS / "uncertainty.json"
SETTINGS: dict[str, Any] = {"model": "cnn", "schedule": "constant", "ema": 0.0, "optimizer": "sgd", "momentum": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--learning-rate", type=float, default=1.0)
    options = parser.parse_args()
    source = sfumato.open_source("digits", owner_key=bytes(32), public=True)
    asked = Experiment(epsilon=options.epsilon, learning_rate=options.learning_rate, **SETTINGS)
    plan, settings, _ = asked.decide(source)
    images = [source.test.images[place] for place in range(len(source.test))]
    last, accuracies, intervals = [], [], []
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            run = sfumato.train(None, source, plan, directory=place, settings=settings, keep=20)
            last.append(sfumato.load(place).logits(images).double())
            intervals.append(sfumato.intervals(place, images))
            accuracies.append(run.accuracy)
        print(f"run {number}: accuracy {run.accuracy:.2%}", flush=True)
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
    found = {
        "runs": options.runs,
        "epsilon": options.epsilon,
        "learning_rate": options.learning_rate,
        "accuracy": statistics.mean(accuracies),
        "median ratio of widths": ratios.median().item(),
        "ratio of widths, 5% and 95%": ratios.flatten().quantile(ends).tolist(),
        "median ratio of images, 5% and 95%": ratios.median(0)
        .values.quantile(torch.tensor([0.05, 0.95]).double())
        .tolist(),
        "coverage": torch.stack(inside).double().mean().item(),
        "steps": list(intervals[0].steps),
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    for name, value in found.items():
        print(f"{name:<36} {value}")


if __name__ == "__main__":
    main()
