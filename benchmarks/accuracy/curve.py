"""Accuracy against epsilon, measured and drawn: python benchmarks/accuracy/curve.py [--seeds 5]

The default on scikit-learn's digits at seven epsilons, delta 1e-5, by seeds; CIFAR-10 and MNIST are those of
results/whole.json. Goes on where it stopped; writes results/curve.json and draws docs/images/accuracy.svg. A minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.report.plots.drawing import MUTED, SERIES, annotate, plot, style_axes, svg

RESULT, WHOLE = RESULTS / "curve.json", RESULTS / "whole.json"
PICTURE = RESULTS.parents[1] / "docs" / "images" / "accuracy.svg"
EPSILONS = (0.5, 1, 2, 3, 4, 6, 8)
SETS = {"MNIST": 60_000, "digits": 1_438, "CIFAR-10": 50_000}
"""How many images each data set trains on."""

Accuracies = dict[str, dict[float, list[float]]]
"""Of each data set, at each epsilon: one of each seed."""


def measure(seeds: int) -> dict[str, dict[str, float]]:
    """The test accuracy of digits by epsilon and seed, each of which is run once and kept."""
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as place:
        os.environ["SFUMATO_HOME"] = f"{place}/home"
        source = sfumato.open_source("digits", owner_key=sfumato.owner_key())
        for epsilon in EPSILONS:
            rows = found.setdefault(str(epsilon), {})
            for seed in range(seeds):
                if str(seed) not in rows:
                    how = {"epsilon": float(epsilon), "delta": 1e-5, "seed": seed}
                    run = sfumato.train(None, source, **how, directory=f"{place}/{epsilon}-{seed}")
                    rows[str(seed)] = run.accuracy
                    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return found


def collected() -> Accuracies:
    """All that was measured, of digits and of the whole data sets."""
    digits = json.loads(RESULT.read_text())
    found: Accuracies = {"digits": {float(epsilon): list(rows.values()) for epsilon, rows in digits.items()}}
    for name, rows in json.loads(WHOLE.read_text()).items():
        data, _, epsilon = name.partition(", epsilon ")
        found.setdefault(data, {})[float(epsilon)] = [row["accuracy"] for row in rows.values()]
    return found


def draw(accuracies: Accuracies) -> str:
    """An SVG file: a line over the means of each data set, and a dot for each run."""
    from matplotlib.ticker import NullLocator

    with plot("accuracy", 6.2, 3.4) as figure:
        axes = figure.add_subplot()
        for (name, images), colour in zip(SETS.items(), SERIES, strict=False):
            points = sorted(accuracies[name].items())
            means = [100 * statistics.mean(runs) for _, runs in points]
            axes.plot([epsilon for epsilon, _ in points], means, color=colour, linewidth=1.6)
            for epsilon, runs in points:
                axes.plot(
                    [epsilon] * len(runs), [100 * run for run in runs], "o", color=colour, markersize=3, alpha=0.6
                )
            words = f"{name}, {images:,} images"
            above = 6 if name == "MNIST" else -14
            annotate(axes, words, (points[0][0], means[0]), (4, above), color=colour)
        axes.set_xscale("log")
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(60, 101)
        axes.set_xlabel("epsilon (less is more private)", color=MUTED)
        axes.set_ylabel("test accuracy, %", color=MUTED)
        style_axes(axes)
        return svg(figure)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", type=int, default=5)
    measure(options.parse_args().seeds)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(collected()), "utf-8")
    for data, by_epsilon in collected().items():
        means = {epsilon: statistics.mean(runs) for epsilon, runs in sorted(by_epsilon.items())}
        print(f"{data:<10}" + "  ".join(f"{epsilon:g}: {mean:.1%}" for epsilon, mean in means.items()))
