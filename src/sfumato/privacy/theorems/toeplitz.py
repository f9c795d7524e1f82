"""Toeplitz-correlated noise if each unit takes part at regular intervals: one Gaussian release."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from sfumato.privacy.mechanism import BandedToeplitz
from sfumato.privacy.theorems.composed_gaussian import OneGaussianTheorem, gap
from sfumato.privacy.theorems.theorem import Plan


class ToeplitzGaussian(OneGaussianTheorem):
    """C times the sums, with independent noise, is one Gaussian release; multiplying by C^-1 is post-processing."""

    mechanisms = (BandedToeplitz,)
    name = "Gaussian mechanism with Toeplitz-correlated noise"
    citation = (
        "Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024 (arXiv 2405.13763), theorem 2 (sensitivity); Denisov "
        "et al. 2022 (arXiv 2202.08312), theorem 2.1 (adaptivity); Balle and Wang 2018, theorem 8"
    )

    def squared_sensitivity(self, plan: Plan, steps: int) -> float:
        """S^2 of the first `steps` rows and columns of C. These releases depend on no others."""
        mechanism = plan.mechanism
        assert isinstance(mechanism, BandedToeplitz)
        return _cached_sensitivity(replace(mechanism, noise_multiplier=1.0), steps, gap(plan))


@functools.lru_cache(maxsize=64)
def _cached_sensitivity(mechanism: BandedToeplitz, steps: int, gap: int) -> float:
    """Cached, because calibration tries dozens of noise multipliers."""
    return squared_sensitivity(mechanism.column(steps), gap)


def squared_sensitivity(column: Any, gap: int) -> float:
    """S^2 = || sum_i C e_(i gap) ||^2 of a lower triangular Toeplitz C, for units that take part every `gap` steps.

    Args:
        column: c_0, c_1, ..., c_(T-1), the first column of C: an array of shape (steps,).
        gap: the least number of steps between two participations of one unit.

    **Guarantee.** Exact if c is non-increasing and non-negative: then the unit that starts in the first step moves C
    times the sums the most. Otherwise an upper bound: that of the least such sequence above |c|.
    """
    import numpy as np

    above = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    rows = np.zeros(-(-len(above) // gap) * gap)
    rows[: len(above)] = above
    moved = np.cumsum(rows.reshape(-1, gap), axis=0).reshape(-1)[: len(above)]
    return float(moved @ moved)
