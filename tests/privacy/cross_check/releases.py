"""The releases of a plan, from its plain data alone: one Gaussian release, or many of a mixture of Gaussians.

Nothing here uses the theorems of the first accountant: how far one unit moves a sum is computed separately, step by
step and node by node.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_NUMBERS = 100_000_000
"""The most additions that are made to compute a tree's sensitivity."""


@dataclass(frozen=True)
class OneRelease:
    """A Gaussian release of sensitivity mu and standard deviation 1."""

    mu: float


@dataclass(frozen=True)
class Steps:
    """`count` releases of noise `sigma`. In each, the unit has k vectors of norm 1 with probability `weights[k]`."""

    sigma: float
    weights: tuple[float, ...]
    count: int


def releases(plan: Mapping[str, Any]) -> OneRelease | Steps | None:
    """The releases of a plan, given as `PrivacyPlan.to_dict()`; None for plans that are not covered here.

    **Guarantee.** For add-or-remove and zero-out: a unit's vectors are present or absent, and nothing else changes.
    Under sampling, a step is dominated by the mixture's pair (Zhu, Dong and Wang 2022). If a rule fixes
    each unit's steps in advance, all steps are one Gaussian release, and its sensitivity is the unit's effect on all of
    them.
    """
    sampling, mechanism, steps = plan["sampling"], plan["mechanism"], plan["steps"]
    noise = plan["noise_multiplier"]
    if plan.get("count_noise") is not None:  # one more coordinate: 1 / z^2 + 1 / (2 sigma_b)^2
        noise = (noise**-2 + (2 * plan["count_noise"]) ** -2) ** -0.5
    if plan.get("clients"):
        noise /= 2  # one user turns a client's vector into a different one
    if sampling == "Poisson" and mechanism == "Gaussian":
        return Steps(noise, _binomial(1, plan["batch_size"] / plan["examples"]), steps)
    if sampling == "CyclicPoisson" and mechanism in ("Gaussian", "BandedToeplitz"):
        column, groups = plan.get("coefficients", [1.0]), plan["groups"]
        if len(column) > groups:
            return None
        probability = groups * plan["batch_size"] / plan["examples"]
        return Steps(
            noise / math.sqrt(sum(c * c for c in column)), _binomial(1, probability), math.ceil(steps / groups)
        )
    if sampling == "FullBatch" or sampling == "FixedOrder":
        gap = 1 if sampling == "FullBatch" else math.ceil(plan["examples"] / plan["batch_size"])
        squared = _squared_sensitivity(plan, steps, gap)
        return None if squared is None else OneRelease(math.sqrt(squared) / noise)
    return None


def _binomial(count: int, chance: float) -> tuple[float, ...]:
    """The probabilities of 0, 1, ..., count heads."""
    if chance >= 1:
        return (*[0.0] * count, 1.0)
    logs = (
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(chance) + (count - k) * math.log1p(-chance)
        for k in range(count + 1)
    )  # fmt: skip
    return tuple(math.exp(one) for one in logs)


def _squared_sensitivity(plan: Mapping[str, Any], steps: int, gap: int) -> float | None:
    """The largest squared distance by which a unit that takes part in every `gap`-th step moves the quantity that
    receives the noise."""
    mechanism = plan["mechanism"]
    if mechanism == "Gaussian":
        return math.ceil(steps / gap)
    if mechanism == "Tree":
        if steps * min(gap, steps) > MOST_NUMBERS:
            return None
        return max(_tree_sensitivity(plan, steps, gap, first) for first in range(min(gap, steps)))
    column = _column(plan, steps)
    return None if column is None else _toeplitz_sensitivity(column, gap)


def _tree_sensitivity(plan: Mapping[str, Any], steps: int, gap: int, first: int) -> int:
    """The sum over all complete nodes of the squared number of the unit's steps below them."""
    import numpy as np

    taken = np.zeros(steps, dtype=np.int64)
    taken[first::gap] = 1
    length, total = plan["steps_per_tree"] or steps, 0
    for start in range(0, steps, length):
        level = taken[start : start + length]
        if plan["completed"] and start + length < steps:
            level = np.append(level, np.zeros((1 << (len(level) - 1).bit_length()) - len(level), dtype=np.int64))
        while len(level):
            total += int(level @ level)
            level = level[: len(level) // 2 * 2].reshape(-1, 2).sum(axis=1)
    return total


def _column(plan: Mapping[str, Any], steps: int) -> Any:
    """The first column of C; None if it increases or is negative, which is not covered here."""
    import numpy as np

    if plan["mechanism"] != "BandedToeplitz":
        return None
    column = np.zeros(steps)
    coefficients = np.asarray(plan["coefficients"][:steps], dtype=float)
    column[: len(coefficients)] = coefficients
    return column if (column >= 0).all() and (np.diff(column) <= 0).all() else None


def _toeplitz_sensitivity(column: Any, gap: int) -> float:
    """The squared norm of C u for a unit that takes part in steps 0, gap, 2 gap, ...: the worst case."""
    import numpy as np

    moved = np.zeros(len(column))
    for start in range(0, len(column), gap):
        moved[start:] += column[: len(column) - start]
    return float((moved**2).sum())
