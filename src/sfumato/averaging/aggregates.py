"""One set of weights from those that a run kept: their mean (UPA), or their mean with exponential weights (EMA)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise, repeat
from operator import mul

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, not_negative


def mean(weights: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of k sets of weights: uniform past averaging (UPA, Shejwalkar et al. 2022, arXiv 2210.01864).

    Args:
        weights: k of them, {parameter: tensor of a floating type}, all of the same names, shapes and types. They are
            gone through once and in order, so a generator that reads one file after another holds one at a time.

    Returns:
        Tensors of the parameters' own types, which share no memory with the arguments.

    **Guarantee.** Post-processing of released weights: the epsilon of the run that released them, at no further cost,
    for any unit and adjacency. The bytes are a function of the arguments alone, whatever the machine and the number of
    threads: sums in float64 in the order given, rounded once to the parameters' type.

    Raises:
        SfumatoError: no weights, or such that differ in names, shapes or types.

    >>> mean([{"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}])
    {'w': tensor([2.5000])}
    """
    return _weighted(weights, repeat(1.0))


def exponential(weights: Iterable[Mapping[str, Tensor]], steps: Sequence[int], decay: float) -> dict[str, Tensor]:
    """The mean of kept weights with weights proportional to decay^(last step - step): an EMA over what was kept.

    Where every step was kept this is the moving average theta <- decay * theta + (1 - decay) * theta_t of equation 3,
    begun at the first of them and divided by the sum of its weights, so that nothing is left of a beginning at zero.

    Args:
        weights: as for `mean`.
        steps: the step that each of them stands after, rising.
        decay: for each step, in [0, 1), whatever the distance of kept weights; 0 keeps the last ones.

    Returns:
        As `mean`, with its guarantee.

    Raises:
        SfumatoError: as `mean`; steps that don't rise or are not as many as the weights; a decay outside [0, 1).

    >>> exponential([{"w": torch.tensor([0.0])}, {"w": torch.tensor([1.0])}], [10, 12], decay=0.5)
    {'w': tensor([0.8000])}
    """
    if not_negative("decay", decay, remedy="give a number in [0, 1), such as 0.99") >= 1:
        raise SfumatoError(f"decay must be below 1, got {decay!r}", "give 0.99, or take the mean of the last weights")
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    if any(gap < 1 for gap in gaps):
        raise SfumatoError(f"steps must rise, got {list(steps)!r}", "give the weights in the order of their steps")
    shares = [1.0]
    for gap in reversed(gaps):
        # Multiplied out, for the last bit of a power is the machine's own.
        shares.append(reduce(mul, repeat(float(decay), gap), shares[-1]))
    return _weighted(weights, reversed(shares), count=len(steps))


def _weighted(
    weights: Iterable[Mapping[str, Tensor]], shares: Iterable[float], count: int | None = None
) -> dict[str, Tensor]:
    """sum_i share_i weights_i / sum_i share_i."""
    first: Mapping[str, Tensor] | None = None
    sums: dict[str, Tensor] = {}
    total, found, left = 0.0, 0, iter(shares)
    with torch.no_grad():
        for each in weights:
            share = next(left, None)
            if share is None:
                raise SfumatoError(f"there are more weights than the {count} steps", "give one step for each")
            if first is None:
                first = {name: value.detach() for name, value in each.items()}
                sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in first.items()}
            _check_alike(first, each)
            for name, value in each.items():
                # Two operations: fused into one they round once, and not every processor fuses them.
                sums[name] += value.detach().double() * share
            total, found = total + share, found + 1
    if first is None:
        raise SfumatoError("there are no weights to average", "give at least one set of them")
    if count is not None and found != count:
        raise SfumatoError(f"there are {found} sets of weights and {count} steps", "give one step for each")
    return {name: (value / total).to(first[name].dtype) for name, value in sums.items()}


def _check_alike(first: Mapping[str, Tensor], each: Mapping[str, Tensor]) -> None:
    if first.keys() != each.keys():
        odd = ", ".join(sorted(first.keys() ^ each.keys()))
        raise SfumatoError(f"all weights must have the same names, but differ in {odd}", "keep one model's weights")
    for name, value in each.items():
        wanted = first[name]
        if not value.is_floating_point():
            raise SfumatoError(
                f"the weights {name} are of type {value.dtype}, which has no mean", "average trained parameters alone"
            )
        if value.shape != wanted.shape or value.dtype != wanted.dtype:
            raise SfumatoError(
                f"the weights {name} are {tuple(value.shape)} of {value.dtype} in one set and {tuple(wanted.shape)} "
                f"of {wanted.dtype} in another",
                "keep one model's weights",
            )
