"""How much another run's noise would move a figure, from one run's checkpoints (arXiv 2210.01864, section 5)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from torch import Tensor

from sfumato._checks import SfumatoError, fraction, positive_integer
from sfumato.averaging.denoising import Array, curvatures_of, responses_to

EVERY = 3
"""Of the curvatures that `changes_of_loss` looks at, every third one, from the steepest: two in a decade."""


class Interval(NamedTuple):
    """What a figure of another run is expected to be.

    Args:
        low, high: the ends of the prediction interval.
        mean: of the k values.
        deviation: s, their sample standard deviation (divided by k - 1): an estimate of one draw's.
    """

    low: Tensor
    high: Tensor
    mean: Tensor
    deviation: Tensor


def interval(
    values: Tensor, confidence: float = 0.95, *, shares: Sequence[float] = (1.0,), widening: float = 1.0
) -> Interval:
    """Where a statistic of another run of the same training would lie: mean +- t_{k-1} s sqrt(1/k + sum_i w_i^2).

    Shejwalkar et al. take the last checkpoints of one run for the last ones of k independent runs. Then a further draw
    differs from the mean of the k by s sqrt(1 + 1/k). An average of further checkpoints with weights w, which sum to 1,
    has the variance s^2 sum_i w_i^2 in the place of s^2: the paper's rescaled sample variance. For a uniform average of
    m that is s^2 / m.

    Args:
        values: (k, ...), a statistic of each of k checkpoints, k >= 2, such as the probability of a class (k, N,
            classes).
        confidence: with which an interval holds the further value, in (0, 1). It is that of each interval by itself.
        shares: w, the weights of the average that the interval is for; (1.0,) for one checkpoint's statistic.
        widening: a factor of the half width, for noise whose variance differs from step to step: see `widening_of`.

    Returns:
        Tensors of shape (...) in float64. The ends are not cut to a statistic's range.

    The width is exact for independent normal draws. Checkpoints of one run depend on each other: neighbours are alike,
    so s is too small and the interval a lower bound for what noise does. It speaks of what differs between checkpoints
    (the noise, and the draw of batches), not of the data or of where training began.

    Raises:
        SfumatoError: fewer than two values; a confidence outside (0, 1); shares that don't sum to 1; a widening below
            1.

    >>> found = interval(Tensor([0.60, 0.64, 0.62]))
    >>> [round(float(value), 3) for value in found]  # t_2 = 4.303
    [0.521, 0.719, 0.62, 0.02]
    """
    from scipy import stats

    fraction("confidence", confidence, remedy="give a number such as 0.95")
    k = len(values)
    if k < 2:
        raise SfumatoError(f"an interval needs the values of two checkpoints at least, got {k}", "keep more weights")
    if not shares or not all(math.isfinite(share) for share in shares) or abs(math.fsum(shares) - 1) > 1e-9:
        raise SfumatoError(f"shares must sum to 1, got {list(shares)[:8]!r}", "give the weights of an average")
    if not 1 <= widening < math.inf:
        raise SfumatoError(f"widening must be at least 1, got {widening!r}", "give what `widening_of` finds")
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
    """By how much more the last weights vary between runs than those of the kept steps do, where noise is correlated.

    The paper's estimator takes the marginal distribution at each kept step for that of the last one. With noise that is
    correlated over steps it is not: after 1,024 steps of a tree the prefix sum has the noise of a single node, after
    1,023 that of ten. But the covariance of the noise is public. On a quadratic loss of curvature h along a direction,
    with the recursion of `changes_of_loss`, the error after step t has the variance V_t(h), and this is

        max(1, max over h of sqrt(V_T(h) / mean over the kept steps of V_t(h)))

    by which an interval holds along every direction whose kept weights are nearly uncorrelated.

    Args:
        variances: of linear combinations (n, total) of the noise of all steps, up to a factor: a mechanism's.
        steps: after which the weights were kept that the interval is made of, rising.
        rates: the learning rate of each of the T steps that were taken.
        total: how many steps the mechanism's noise is planned for, T at least.
        momentum: m, in [0, 1), as `torch.optim.SGD` has it.

    Returns:
        A factor of the interval's half width, at least 1.

    **Guarantee.** A function of public settings alone.

    >>> round(widening_of(lambda rows: (rows**2).sum(1), [60, 70, 80, 90, 100], rates=[1.0] * 100, total=100), 2)
    1.12
    """
    speeds, places = np.asarray(rates, np.float64), np.array([*steps, len(rates)])
    most = 1.0
    for curvature in (0.0, *curvatures_of(speeds, momentum)[::-EVERY]):
        _, rows = responses_to(curvature, places, speeds, momentum)
        *kept, last = variances(np.pad(rows, ((0, 0), (0, total - len(speeds)))))
        most = max(most, last / statistics.fmean(kept))
    return math.sqrt(most)


def spaced(kept: Sequence[int], steps: int, *, burn_in: int | None = None, spacing: int = 1) -> tuple[int, ...]:
    """Which kept steps stand for independent draws: from the last one backwards, at least `spacing` apart.

    The bias of the sample variance falls with the burn-in, after which a checkpoint is distributed as the last one is,
    and with the spacing, over which it forgets where it was (arXiv 2210.01864, section 5). The rule is fixed before
    anything is looked at: all weights that were kept in the second half.

    Args:
        kept: the steps after which weights were kept, rising.
        steps: of the whole run, of which none of `kept` lies beyond.
        burn_in: steps at the beginning that are passed over; None for half of the run.
        spacing: the fewest steps between two of them.

    Returns:
        At least two steps, rising; k is how many there are.

    Raises:
        SfumatoError: values out of range; steps that don't rise; fewer than two that are left.

    >>> spaced([200, 400, 600, 800, 1000], 1000)
    (600, 800, 1000)
    >>> spaced(range(10, 101, 10), 100, burn_in=20, spacing=25)
    (40, 70, 100)
    """
    positive_integer("steps", steps)
    positive_integer("spacing", spacing)
    after = steps // 2 if burn_in is None else burn_in
    if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after < steps:
        raise SfumatoError(f"burn_in must be a number of steps below {steps}, got {burn_in!r}", "give half of the run")
    if any(later <= earlier for earlier, later in pairwise(kept)) or any(not 0 <= step <= steps for step in kept):
        raise SfumatoError(f"kept steps must rise from 0 to {steps} at most, got {list(kept)!r}", "give them in order")
    found: list[int] = []
    for step in reversed(kept):
        if step > after and (not found or found[-1] - step >= spacing):
            found.append(step)
    if len(found) < 2:
        raise SfumatoError(
            f"of the weights kept after steps {list(kept)!r} an interval can use {len(found)}, those after step "
            f"{after} and {spacing} steps apart",
            "keep more weights, or choose a shorter burn-in or spacing",
        )
    return tuple(reversed(found))
