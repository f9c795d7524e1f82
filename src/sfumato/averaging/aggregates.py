"""The weights that a run keeps, and averages of them: uniform (UPA) or exponentially weighted (EMA)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise, repeat
from operator import mul

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, below_one, positive_integer


def mean(weights: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of k sets of weights: uniform past averaging (UPA, Shejwalkar et al. 2022, arXiv 2210.01864).

    Args:
        weights: k mappings {parameter: floating-point tensor} with the same names, shapes and types. They are read
            once and in order, so a generator that loads one file at a time keeps one set in memory.

    Returns:
        Tensors of the parameters' types. They share no memory with the arguments.

    **Guarantee.** Post-processing of released weights: the result has the epsilon of the run that released them, at no
    further cost, for any unit and adjacency. The result is bitwise the same on every machine and for every number of
    threads: sums are taken in float64 in the given order and rounded once to the parameters' type.

    Raises:
        SfumatoError: there are no weights, or they differ in names, shapes or types.

    >>> mean([{"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}])
    {'w': tensor([2.5000])}
    """
    return _weighted(weights, repeat(1.0))


def exponential(weights: Iterable[Mapping[str, Tensor]], steps: Sequence[int], decay: float) -> dict[str, Tensor]:
    """The average of kept weights with coefficients proportional to decay^(last step - step).

    If every step was kept, this is the moving average theta <- decay * theta + (1 - decay) * theta_t of equation 3,
    started at the first kept weights and divided by the sum of its coefficients (no bias towards zero).

    Args:
        weights: as for `mean`.
        steps: the step after which each set of weights was kept, ascending.
        decay: decay per training step, in [0, 1); 0 selects the last weights.

    Returns:
        The average, with the types and the guarantee of `mean`.

    Raises:
        SfumatoError: as for `mean`; steps that are not ascending or not one per set of weights; a decay outside
            [0, 1).

    >>> exponential([{"w": torch.tensor([0.0])}, {"w": torch.tensor([1.0])}], [10, 12], decay=0.5)
    {'w': tensor([0.8000])}
    """
    below_one("decay", decay, remedy="give a number in [0, 1), such as 0.99")
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    if any(gap < 1 for gap in gaps):
        raise SfumatoError(f"steps must ascend, got {list(steps)!r}", "pass the weights in the order of their steps")
    shares = [1.0]
    for gap in reversed(gaps):
        # Repeated multiplication, because the last bit of `pow` depends on the machine.
        shares.append(reduce(mul, repeat(float(decay), gap), shares[-1]))
    return _weighted(weights, reversed(shares), count=len(steps))


def _weighted(
    weights: Iterable[Mapping[str, Tensor]], shares: Iterable[float], count: int | None = None
) -> dict[str, Tensor]:
    """sum_i share_i weights_i / sum_i share_i."""
    first: Mapping[str, Tensor] | None = None
    sums: dict[str, Tensor] = {}
    total, number, remaining = 0.0, 0, iter(shares)
    with torch.no_grad():
        for each in weights:
            share = next(remaining, None)
            if share is None:
                raise SfumatoError(f"there are more sets of weights than the {count} steps", "pass one step for each")
            if first is None:
                first = {name: value.detach() for name, value in each.items()}
                sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in first.items()}
            _check_alike(first, each)
            for name, value in each.items():
                # No fused multiply-add: it rounds differently, and not every processor has it.
                sums[name] += value.detach().double() * share
            total, number = total + share, number + 1
    if first is None:
        raise SfumatoError("there are no weights to average", "pass at least one set")
    if count is not None and number != count:
        raise SfumatoError(f"there are {number} sets of weights and {count} steps", "pass one step for each")
    return {name: (value / total).to(first[name].dtype) for name, value in sums.items()}


def _check_alike(first: Mapping[str, Tensor], each: Mapping[str, Tensor]) -> None:
    if first.keys() != each.keys():
        odd = ", ".join(sorted(first.keys() ^ each.keys()))
        raise SfumatoError(
            f"all sets of weights must have the same names, but differ in {odd}", "pass the weights of one model"
        )
    for name, value in each.items():
        expected = first[name]
        if not value.is_floating_point():
            raise SfumatoError(
                f"the weights {name} are of type {value.dtype}, which has no mean", "average trained parameters only"
            )
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise SfumatoError(
                f"the weights {name} are {tuple(value.shape)} of {value.dtype} in one set and {tuple(expected.shape)} "
                f"of {expected.dtype} in another",
                "pass the weights of one model",
            )


MOST = 20
ROOM = 64 << 20
"""Default limit on the total size of the kept weights, in bytes."""
FEWEST = 4
"""By default a run keeps at least this many weights or none. Fewer do not show their variance."""


def kept_count_by_rule(size: int) -> int:
    """The default number of kept weights of `size` bytes each: at most 20 and at most 64 MiB, or 0 if fewer than 4 fit.

    >>> kept_count_by_rule(245_000), kept_count_by_rule(11 << 20), kept_count_by_rule(17 << 20)
    (20, 5, 0)
    """
    fitting = min(MOST, ROOM // positive_integer("size", size))
    return fitting if fitting >= FEWEST else 0


def kept_steps(steps: int, count: int) -> tuple[int, ...]:
    """The steps after which weights are kept: half of them the very last steps, half spaced before these.

    The spaced steps lie evenly in the second half of the run. The first half is left for convergence.

    Args:
        steps: T, the number of steps of the run.
        count: number of weights to keep; every step's weights if the run has fewer steps.

    Returns:
        Numbers of completed steps, from 1 to T, ascending. The last is T, unless no weights are kept.

    >>> kept_steps(1000, 8)
    (500, 624, 748, 872, 997, 998, 999, 1000)
    >>> kept_steps(3, 8), kept_steps(1000, 0)
    ((1, 2, 3), ())
    """
    positive_integer("steps", steps)
    count = min(count, steps)
    if count == 0:
        return ()
    last = range(steps - (count + 1) // 2 + 1, steps + 1)
    begin = min(max(1, steps // 2), last.start - count // 2)
    spaced = np.linspace(begin, last.start, count // 2, endpoint=False).astype(int)
    return (*spaced.tolist(), *last)
