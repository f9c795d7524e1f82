"""Last weights against averages, in theory and in fact: python benchmarks/trust/theorem_3_2.py

Theorem 3.2 of Shejwalkar et al. 2022 (arXiv 2210.01864): for convex Lipschitz losses the bound on the excess empirical
risk of DP-SGD's last weights is log(n) times that of an average over the last ones. Its bounds are those of Shamir and
Zhang 2013 (arXiv 1212.1824). For steps of c / sqrt(t) with projection on a set of diameter D, and E ||g||^2 <= G^2,

    last weights       (D^2 / c + c G^2) (2 + log T) / sqrt(T)                                      (their theorem 2)
    mean of the last k (D^2 sqrt(T) / (2c) + c G^2 (sqrt(T) - sqrt(T - k))) / k

the second from the sum of ||w_t - w*||^2 - ||w_{t+1} - w*||^2 over the last k steps, each divided by twice its step.
Below k is T / 2; c is D / G in the first problem, and 1 in the second.

Two problems. *Median regression* under privacy: the mean of |<x_i, w> - y_i| over n records, ||x_i|| = 1, ||w|| <= 1;
T = n steps of Poisson sampling with expected batch sqrt(n), noise as `PrivacyPlan.calibrate` plans it for epsilon 1 and
delta n^-1.5. Records come in pairs with y = <x, w*> + r and y = <x, w*> - r, so that w* is a minimiser and the least
risk is the mean of r; for half of the pairs r is 0, and the risk has a kink at w*. The *worst case* of Harvey et al.
2019 (arXiv 1812.05217, section 3) without noise: a maximum of T + 1 linear functions over the unit ball of T
dimensions, on which the last weights are no better than log(T) / (32 sqrt(T)).

Writes benchmarks/results/theorem-3-2.json and studies/results/theorem-3-2.svg. About a minute on one core.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import PrivacyPlan
from sfumato.report.plots.drawing import INK, MUTED, style_axes, svg

RECORDS = (256, 1024, 4096, 16384)
STEPS = (16, 64, 256, 1024, 4096, 16384)
RUNS, DIMENSIONS, EPSILON = 20, 10, 1.0
LAST, AVERAGE = "#b5473c", "#3b6ea5"

Array = np.ndarray


def bound_of_last(steps: int, *, rate: float, diameter: float, second_moment: float) -> float:
    """E F(w_T) - F* by theorem 2 of Shamir and Zhang 2013; second_moment is G^2."""
    return (diameter**2 / rate + rate * second_moment) * (2 + math.log(steps)) / math.sqrt(steps)


def bound_of_mean(steps: int, last: int, *, rate: float, diameter: float, second_moment: float) -> float:
    """E F(mean of the last weights) - F*."""
    root = math.sqrt(steps)
    return (diameter**2 * root / (2 * rate) + rate * second_moment * (root - math.sqrt(steps - last))) / last


# -- median regression under privacy ---------------------------------------------------------------------------------


def records(n: int, rng: np.random.Generator) -> tuple[Array, Array, Array, float]:
    """Inputs (n, d) of norm 1, targets (n,), a minimiser of the empirical risk, and the least risk."""
    pairs = rng.standard_normal((n // 2, DIMENSIONS))
    pairs /= np.linalg.norm(pairs, axis=1, keepdims=True)
    best = rng.standard_normal(DIMENSIONS)
    best *= 0.5 / np.linalg.norm(best)
    residuals = rng.uniform(0, 0.5, n // 2) * (np.arange(n // 2) % 2)
    inputs = np.concatenate([pairs, pairs])
    return inputs, inputs @ best + np.concatenate([residuals, -residuals]), best, float(residuals.mean())


def regression(n: int) -> dict[str, Any]:
    """Means and standard errors over runs, each on data of its own, and the bounds."""
    steps, batch = n, round(math.sqrt(n))
    plan = PrivacyPlan.calibrate(examples=n, batch_size=batch, steps=steps, epsilon=EPSILON, delta=n**-1.5)
    sigma, probability = plan.noise_multiplier, batch / n
    second_moment = 1 + 1 / batch + DIMENSIONS * (sigma / batch) ** 2
    diameter, half = 2.0, steps // 2
    rate = diameter / math.sqrt(second_moment)
    found: dict[str, list[float]] = {"last": [], "mean of the last half": []}
    for run in range(RUNS):
        rng = np.random.default_rng([n, run])
        inputs, targets, best, least = records(n, rng)
        assert abs(np.abs(inputs @ best - targets).mean() - least) < 1e-12
        weights, total = np.zeros(DIMENSIONS), np.zeros(DIMENSIONS)
        for step in range(1, steps + 1):
            drawn = rng.random(n) < probability
            signs = np.sign(inputs[drawn] @ weights - targets[drawn])
            gradient = (signs @ inputs[drawn] + sigma * rng.standard_normal(DIMENSIONS)) / batch
            weights = weights - rate / math.sqrt(step) * gradient
            weights /= max(1.0, float(np.linalg.norm(weights)))
            total += weights * (step > steps - half)
        for name, these in (("last", weights), ("mean of the last half", total / half)):
            found[name].append(float(np.abs(inputs @ these - targets).mean()) - least)
    constants = {"rate": rate, "diameter": diameter, "second_moment": second_moment}
    return {
        "n": n,
        "steps": steps,
        "batch_size": batch,
        "noise_multiplier": sigma,
        **row("last", found["last"], bound_of_last(steps, **constants)),
        **row("mean", found["mean of the last half"], bound_of_mean(steps, half, **constants)),
        "ratio": float(np.mean(found["last"]) / np.mean(found["mean of the last half"])),
        "ratio_of_bounds": bound_of_last(steps, **constants) / bound_of_mean(steps, half, **constants),
    }


def row(name: str, values: list[float], bound: float) -> dict[str, float]:
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    return {f"{name}_excess": float(np.mean(values)), f"{name}_error": error, f"{name}_bound": bound}


# -- the worst case --------------------------------------------------------------------------------------------------


def worst_case(steps: int) -> dict[str, Any]:
    """F(x) = max_i <H_i, x>, H_i = (a_1, ..., a_{i-1}, -b_i, 0, ...), where step t follows the subgradient H_t.

    a_j = 1 / (8 (T - j + 1)), b_i = sqrt(i) / (2 sqrt(T)) for i <= T, b_{T+1} = 0, and steps of 1 / sqrt(t) from 0. The
    least risk is F(0) = 0: shares p_i > 0 with b_j p_j = a_j sum_{i>j} p_i mix the H_i to nothing, and F is no
    less than any mixture.
    """
    place = np.arange(1, steps + 1)
    a, b = 1 / (8 * (steps - place + 1)), np.sqrt(place) / (2 * math.sqrt(steps))
    half = max(1, steps // 2)

    def values(x: Array) -> Array:
        before = np.concatenate([[0.0], np.cumsum(a * x)])
        return before - np.concatenate([b * x, [0.0]])

    x, total = np.zeros(steps), np.zeros(steps)
    for step in range(1, steps + 1):
        all_values = values(x)
        assert all_values[step - 1] >= all_values.max() - 1e-12  # H_t is a subgradient here
        subgradient = np.where(place < step, a, 0.0)
        subgradient[step - 1] = -b[step - 1]
        x = x - subgradient / math.sqrt(step)
        x /= max(1.0, float(np.linalg.norm(x)))
        total += x * (step > steps - half)
    last, mean = float(values(x).max()), float(values(total / half).max())
    constants = {"rate": 1.0, "diameter": 2.0, "second_moment": 1.0}
    return {
        "steps": steps,
        **row("last", [last], bound_of_last(steps, **constants)),
        **row("mean", [mean], bound_of_mean(steps, half, **constants)),
        "last_at_least": math.log(steps) / (32 * math.sqrt(steps)),
        "ratio": last / mean,
    }


# -- the plot --------------------------------------------------------------------------------------------------------


def draw(found: dict[str, Any]) -> str:
    """Two panels, one for each problem: bounds dashed, measurements with two standard errors."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    with matplotlib.rc_context():
        # A matplotlibrc of one's own must not change the image.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": 9, "font.family": "DejaVu Sans", "svg.fonttype": "none"})
        figure = Figure(figsize=(9, 3.6), facecolor="white", layout="constrained")
        panels = figure.subplots(1, 2)
        titles = {"regression": "median regression, epsilon 1", "worst_case": "the worst case, without noise"}
        for panel, (name, title) in zip(panels, titles.items(), strict=True):
            rows = found[name]
            steps = [each["steps"] for each in rows]
            for kind, label, colour in (("last", "last weights", LAST), ("mean", "mean of the last half", AVERAGE)):
                excess = [each[f"{kind}_excess"] for each in rows]
                errors = [2 * each[f"{kind}_error"] for each in rows]
                panel.plot(
                    steps, [each[f"{kind}_bound"] for each in rows], "--", color=colour, lw=1, label=f"{label}, bound"
                )
                panel.errorbar(steps, excess, errors, color=colour, marker="o", markersize=4, lw=1.6, label=label)
            panel.set_xscale("log")
            panel.set_yscale("log")
            panel.set_xticks(steps, [f"{each:,}" for each in steps])
            panel.xaxis.set_minor_locator(NullLocator())
            panel.set_title(title, fontsize=10, color=INK)
            panel.set_xlabel("steps T (= records n)" if name == "regression" else "steps T", color=MUTED)
            style_axes(panel)
        panels[0].set_ylabel("excess empirical risk", color=INK)
        panels[0].legend(frameon=False, fontsize=8)
        text = re.sub(r"<metadata>.*?</metadata>|<!DOCTYPE.*?>\s*", "", svg(figure, "theorem-3-2"), flags=re.DOTALL)
        return "\n".join(each.rstrip() for each in text.splitlines()) + "\n"


def main() -> None:
    found: dict[str, Any] = {
        "runs": RUNS,
        "dimensions": DIMENSIONS,
        "epsilon": EPSILON,
        "regression": [],
        "worst_case": [],
    }
    for name, sizes, measure in (("regression", RECORDS, regression), ("worst_case", STEPS, worst_case)):
        for size in sizes:
            found[name].append(each := measure(size))
            print(name, *(f"{key} {value:.4g}" for key, value in each.items()), flush=True)
    RESULTS.joinpath("theorem-3-2.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (RESULTS.parents[1] / "studies" / "results" / "theorem-3-2.svg").write_text(draw(found), "utf-8")


if __name__ == "__main__":
    main()
