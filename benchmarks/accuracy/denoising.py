"""The k that `averaging.last_k` picks against the best one by search: python benchmarks/accuracy/denoising.py

Quadratic losses in d directions, SGD with noise of a known scale from a random beginning, over all of: 200 and 2,000
directions; curvatures over three decades, by a power law, and all alike; constant, cosine and linear learning rates;
with and without momentum 0.9; learning rates of 0.1, 0.5 and 1.5 times one minus momentum; begun far from the optimum
(1 in each direction) and near to it (0.05, where the noise of a step's gradient is 0.05); weights kept every 10 steps
in the second half, every 12 in the whole run, and every other one in the last tenth of 600; and, for 2,000 directions,
with noise that is correlated over steps by the square root of prefix sums. One run of each.

The figure is the excess loss of the mean of the last k, over that of the best k by search; beside it those of the last
weights and of the mean of all. Writes benchmarks/results/denoising.json. About three minutes on one core.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.linalg import toeplitz

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato.averaging import last_k, squared_distances
from sfumato.privacy.factorisation import inverse, square_root

RESULT = RESULTS / "denoising.json"
STEPS, DEVIATION = 600, 0.05
PROGRESS = np.arange(STEPS) / STEPS
SHAPES = {"constant": np.ones(STEPS), "cosine": 0.5 * (1 + np.cos(np.pi * PROGRESS)), "linear": 1 - PROGRESS}
FIGURES = ("median", "nine_tenths", "worst")
KEPT = {"second half": range(300, 601, 10), "whole run": range(12, 601, 12), "last tenth": range(540, 601, 2)}
CORRELATED = np.tril(toeplitz(inverse(square_root(STEPS) * 0.99 ** np.arange(STEPS), STEPS)))


def curvatures(kind: str, directions: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "three decades":
        return np.exp(rng.uniform(np.log(1e-3), 0, directions))
    return np.arange(1, directions + 1) ** -0.7 if kind == "power law" else np.full(directions, 0.01)


def measure(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    directions, momentum = case["directions"], case["momentum"]
    h = curvatures(case["curvatures"], directions, rng)
    rates = case["rate"] * (1 - momentum) * SHAPES[case["schedule"]]
    noise, covariance = DEVIATION * rng.standard_normal((STEPS, directions)), np.full(STEPS, DEVIATION**2)
    if case["correlated"]:
        noise, covariance = CORRELATED @ noise, DEVIATION**2 * CORRELATED @ CORRELATED.T
    error, velocity, kept = case["begin"] * rng.standard_normal(directions), np.zeros(directions), []
    steps = KEPT[case["kept"]]
    for step, (rate, one) in enumerate(zip(rates, noise, strict=True), start=1):
        velocity = momentum * velocity + h * error + one
        error = error - rate * velocity
        if step in steps:
            kept.append(error)
    means = np.cumsum(kept[::-1], axis=0) / np.arange(1, len(kept) + 1)[:, None]
    losses = means**2 @ h
    distances = squared_distances([{"w": torch.from_numpy(each)} for each in kept])
    k = last_k(distances, steps, rates=rates, noise=covariance, parameters=directions, momentum=momentum)
    of = {"picked": losses[k - 1], "last": losses[0], "all": losses[-1]}
    return {**case, "k": k, "best_k": int(losses.argmin()) + 1, **{name: at / losses.min() for name, at in of.items()}}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, nine tenths and worst of the ratios, and the share of picked ones within a fifth of the best."""
    found: dict[str, Any] = {"problems": len(rows)}
    for name in ("picked", "last", "all"):
        ratios = np.array([row[name] for row in rows])
        found[name] = {"median": float(np.median(ratios)), "nine_tenths": float(np.quantile(ratios, 0.9))}
        found[name] |= {"worst": float(ratios.max()), "within_a_fifth": float((ratios <= 1.2).mean())}
    return found


def main() -> None:
    axes = {
        "directions": (200, 2000),
        "curvatures": ("three decades", "power law", "alike"),
        "schedule": tuple(SHAPES),
        "momentum": (0.0, 0.9),
        "rate": (0.1, 0.5, 1.5),
        "begin": (1.0, 0.05),
        "kept": tuple(KEPT),
        "correlated": (False, True),
    }
    rng = np.random.default_rng(0)
    cases = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    rows = [measure(case, rng) for case in cases if case["directions"] == 2000 or not case["correlated"]]
    found: dict[str, Any] = {"everything": summary(rows)}
    for axis, values in axes.items():
        for value in values:
            found[f"{axis} {value}"] = summary([row for row in rows if row[axis] == value])
    found["worst"] = sorted(rows, key=lambda row: row["picked"])[:-6:-1]
    print(f"{'median, nine tenths, worst of':<35}{'picked':>24}{'last':>24}{'all':>24}{'within a fifth':>16}")
    for name, part in found.items():
        if name != "worst":
            figures = [part[kind][each] for kind in ("picked", "last", "all") for each in FIGURES]
            within = part["picked"]["within_a_fifth"]
            print(f"{name:<30}{part['problems']:>5}", *(f"{each:7.3f}" for each in figures), f"{within:15.3f}")
    RESULT.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
