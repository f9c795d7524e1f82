"""Variation of a statistic between runs, estimated from the checkpoints of one run (arXiv 2210.01864, section 5)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from torch import Tensor

from sfumato._checks import SfumatoError, fraction, positive_integer, within
from sfumato.averaging.denoising import Array, curvatures_of, responses_to

EVERY = 3
"""Every third curvature of the grid of `changes_of_loss` is used, from the steepest: two per decade."""


class Interval(NamedTuple):
    """Prediction interval for a statistic of another run.

    Args:
        low, high: the ends of the interval.
        mean: mean of the k values.
        deviation: s, their sample standard deviation (divided by k - 1), an estimate for a single draw.
    """

    low: Tensor
    high: Tensor
    mean: Tensor
    deviation: Tensor


def interval(
    values: Tensor, confidence: float = 0.95, *, shares: Sequence[float] = (1.0,), widening: float = 1.0
) -> Interval:
    """Prediction interval for a statistic of another run: mean +- t_{k-1} s sqrt(1/k + sum_i w_i^2).

    Shejwalkar et al. treat the last checkpoints of one run as the final checkpoints of k independent runs. A new draw
    then differs from the mean of the k by a standard deviation of s sqrt(1 + 1/k). For an average of new checkpoints
    with weights w that sum to 1, s^2 becomes s^2 sum_i w_i^2: the paper's rescaled sample variance. For a uniform
    average of m checkpoints this is s^2 / m.

    The width is exact for independent normal draws. Neighbouring checkpoints of one run are correlated, so s is too
    small and the interval is a lower bound on the effect of noise. It covers the variation between checkpoints (noise
    and batch sampling), not the variation due to the data or the initialisation.

    Args:
        values: (k, ...), a statistic of each of k checkpoints, k >= 2, such as class probabilities (k, N, classes).
        confidence: the probability, in (0, 1), that an interval contains the new value, for each interval separately.
        shares: w, the weights of the average that the interval is for; (1.0,) for one checkpoint's statistic.
        widening: factor on the half width, for noise whose variance changes from step to step: see `widening_of`.

    Returns:
        Tensors of shape (...) in float64. The ends are not clipped to the range of the statistic.

    Raises:
        SfumatoError: fewer than two values; a confidence outside (0, 1); shares that don't sum to 1; a widening below
            1.

    >>> prediction = interval(Tensor([0.60, 0.64, 0.62]))
    >>> [round(float(value), 3) for value in prediction]  # t_2 = 4.303
    [0.521, 0.719, 0.62, 0.02]
    """
    from scipy import stats

    fraction(confidence=confidence, remedy="give a number such as 0.95")
    k = len(values)
    within(2, None, checkpoints=k, remedy="keep more weights")
    if not abs(math.fsum(shares) - 1) <= 1e-9:
        raise SfumatoError(f"shares must sum to 1, got {list(shares)[:8]!r}", "pass the weights of an average")
    within(1, None, widening=widening, remedy="pass the result of `widening_of`")
    values = values.detach().double()
    mean, deviation = values.mean(0), values.std(0)
    quantile = float(stats.t.ppf((1 + confidence) / 2, k - 1))
    half = widening * quantile * deviation * math.sqrt(1 / k + math.fsum(share**2 for share in shares))
    return Interval(mean - half, mean + half, mean, deviation)


def widening_of(
    variances: Callable[[Array], Array],
    steps: Sequence[int],
    *,
    rates: Sequence[float],
    total: int,
    momentum: float = 0.0,
) -> float:
    """Ratio of the final weights' standard deviation to that of the kept weights, for noise correlated over steps.

    The paper's estimator assumes that the kept weights have the marginal distribution of the final weights. With
    correlated noise this fails: after 1,024 steps of a tree the prefix sum has the noise of one node, after 1,023 steps
    that of ten. The covariance of the noise is public, though. On a quadratic loss with curvature h along a direction,
    with the recursion of `changes_of_loss`, the error after step t has variance V_t(h). The result is

        max(1, max over h of sqrt(V_T(h) / mean over the kept steps of V_t(h)))

    With this factor an interval holds along every direction whose kept weights are nearly uncorrelated.

    Args:
        variances: a mechanism's function from linear combinations (n, total) of the noise of all steps to their
            variances, up to a factor.
        steps: the steps after which the weights of the interval were kept, ascending.
        rates: the learning rate of each of the T completed steps.
        total: number of steps that the mechanism's noise is planned for, at least T.
        momentum: m, in [0, 1), as in `torch.optim.SGD`.

    Returns:
        A factor on the interval's half width, at least 1.

    **Guarantee.** A function of public settings only.

    >>> round(widening_of(lambda rows: (rows**2).sum(1), [60, 70, 80, 90, 100], rates=[1.0] * 100, total=100), 2)
    1.12
    """
    lr, ends = np.asarray(rates, np.float64), np.array([*steps, len(rates)])
    ratio = 1.0
    for curvature in (0.0, *curvatures_of(lr, momentum)[::-EVERY]):
        _, rows = responses_to(curvature, ends, lr, momentum)
        *kept, last = variances(np.pad(rows, ((0, 0), (0, total - len(lr)))))
        ratio = max(ratio, last / statistics.fmean(kept))
    return math.sqrt(ratio)


def select_spaced(kept: Sequence[int], steps: int, *, burn_in: int | None = None, spacing: int = 1) -> tuple[int, ...]:
    """Selects the kept steps that represent independent draws: backward from the last, at least `spacing` apart.

    The bias of the sample variance decreases with the burn-in, after which a checkpoint has the distribution of the
    last one, and with the spacing, over which checkpoints decorrelate (arXiv 2210.01864, section 5). The default rule
    is fixed in advance: all weights kept in the second half of the run.

    Args:
        kept: the steps after which weights were kept, ascending, at most `steps`.
        steps: number of steps of the run.
        burn_in: number of initial steps to skip; None for half of the run.
        spacing: minimum number of steps between two selected steps.

    Returns:
        At least two steps, ascending.

    Raises:
        SfumatoError: values out of range; steps that are not ascending; fewer than two steps remain.

    >>> select_spaced([200, 400, 600, 800, 1000], 1000)
    (600, 800, 1000)
    >>> select_spaced(range(10, 101, 10), 100, burn_in=20, spacing=25)
    (40, 70, 100)
    """
    positive_integer(steps=steps, spacing=spacing)
    after = steps // 2 if burn_in is None else burn_in
    within(0, steps - 1, burn_in=after, remedy="try half of the run")
    if any(later <= earlier for earlier, later in pairwise(kept)) or any(not 0 <= step <= steps for step in kept):
        raise SfumatoError(
            f"kept steps must ascend from 0 to at most {steps}, got {list(kept)!r}", "pass them in order"
        )
    selected: list[int] = []
    for step in reversed(kept):
        if step > after and (not selected or selected[-1] - step >= spacing):
            selected.append(step)
    if len(selected) < 2:
        raise SfumatoError(
            f"weights were kept after steps {list(kept)!r}, and an interval can use {len(selected)} of them: those "
            f"after step {after} and {spacing} steps apart",
            "keep more weights, or choose a shorter burn-in or spacing",
        )
    return tuple(reversed(selected))
