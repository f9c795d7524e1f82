"""Averages of the weights: over training, updated at every step; training over them; and averages of the weights that a
run keeps, uniform (UPA) or exponentially weighted (EMA)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, repeat
from operator import mul
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, below_one, one_of, positive_integer


class Average(Protocol):
    """A function of the weights after each step so far. The checkpoint holds its state.

    **Guarantee**: `update` and `averaged_weights` read released weights only. The average is post-processing: it has
    the epsilon of the run, for any unit and adjacency, at no further cost.
    """

    @property
    def copies(self) -> int:
        """The number of copies of the parameters in memory: the state's, and the released average where it is extra."""
        ...

    def begin(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the state before the first step, from theta_0 by parameter name. It shares no memory with theta_0."""
        ...

    def update(self, average: Mapping[str, Tensor], parameters: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """Returns the state after one more step.

        Args:
            average: the state before the step; not modified.
            parameters: theta_{t+1}, the parameters after step t, by name.
            step: t, from 0.
        """
        ...

    def averaged_weights(self, average: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns f_agg(theta_t, ..., theta_0) for a state, with the parameters' names, shapes and dtypes."""
        ...


FORMS = ("warm-up", "constant")


@dataclass(frozen=True)
class EMA:
    """Exponential moving average whose decay at step t is min(decay, (1 + t) / (10 + t)), or constant.

    With the warm-up (De et al. 2022, arXiv 2204.13650, appendix C.3) the average spans roughly the last ninth of a
    short run, regardless of its length. One decay thus serves runs of fifty steps and of fifty thousand. The constant
    form is the one of Shejwalkar et al. 2022 (arXiv 2210.01864, equation 3), whose beta is 1 - decay.

    **Guarantee**: the average is a function of released parameters only, hence post-processing. It has the epsilon of
    the run, for any unit and adjacency, at no further cost (De et al. 2022, section 3.1, "Parameter averaging").

    Args:
        decay: the largest decay, in [0, 1). De et al. use 0.9999 on CIFAR and 0.99999 on ImageNet. 0 gives the last
            parameters.
        form: "warm-up" or "constant".

    Raises:
        SfumatoError: the decay lies outside [0, 1), or the form is unknown.

    >>> EMA(decay=0.5).decay_at(0)
    0.1
    >>> EMA(decay=0.5).decay_at(100)
    0.5
    >>> EMA(decay=0.5, form="constant").decay_at(0)
    0.5
    """

    decay: float = 0.9999
    form: str = "warm-up"

    def __post_init__(self):
        one_of(FORMS, ema_form=self.form)
        below_one(ema=self.decay, remedy="give a number in [0, 1), such as 0.9999")

    @property
    def copies(self) -> int:
        """One."""
        return 1

    def begin(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of the initial parameters."""
        return {name: value.detach().clone() for name, value in parameters.items()}

    def decay_at(self, step: int) -> float:
        """The decay of the update at step t = 0, 1, ...: min(decay, (1 + t) / (10 + t)), or constant."""
        if self.form == "constant":
            return self.decay
        return min(self.decay, (1 + step) / (10 + step))

    def update(self, average: Mapping[str, Tensor], parameters: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """The average after one step: decay_at(step) * average + (1 - decay_at(step)) * parameters.

        Args:
            average: the average before the step, by parameter name, of any shape.
            parameters: the parameters after the step, with the same names and shapes.
            step: the step that produced `parameters`, from 0.

        Returns:
            Detached tensors that share no memory with the arguments.

        Raises:
            SfumatoError: names, shapes or types differ.
        """
        _check_alike(average, parameters)
        weight = 1.0 - self.decay_at(step)
        with torch.no_grad():
            return {name: average[name].detach().lerp(parameters[name].detach(), weight) for name in average}

    def averaged_weights(self, average: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The average itself."""
        return dict(average)


@dataclass(frozen=True)
class LastMean:
    """Mean of theta_t, ..., theta_{t-k+1}, or of theta_t, ..., theta_0 while there are fewer than k.

    The state is a ring buffer of k copies: theta_t is in slot t mod k, under the key "SLOT.NAME". The sum is computed
    in float64 at each step. A running sum that subtracts the oldest copy would accumulate rounding errors. The copies
    are kept in memory, and in checkpoints, because every step reads all of them.

    **Guarantee**: the mean is a function of released parameters only, hence post-processing, as for any `Average`.

    Args:
        count: k, the number of weights in the mean.

    Raises:
        SfumatoError: k is not a positive integer.

    >>> mean = LastMean(2)
    >>> state = mean.begin({"w": torch.tensor([0.0])})
    >>> for step in range(3):
    ...     state = mean.update(state, {"w": torch.tensor([step + 1.0])}, step)
    >>> mean.averaged_weights(state)
    {'w': tensor([2.5000])}
    """

    count: int = 5

    def __post_init__(self):
        positive_integer(aggregate_last=self.count, remedy="give the number of last weights to average, such as 5")

    @property
    def copies(self) -> int:
        """k, plus one for the mean."""
        return self.count + 1

    def begin(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """theta_0 in slot 0."""
        return {f"0.{name}": value.detach().clone() for name, value in parameters.items()}

    def update(self, average: Mapping[str, Tensor], parameters: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """The ring buffer with theta_{t+1} in place of theta_{t+1-k}. The other tensors are passed on, not copied."""
        slot = (step + 1) % self.count
        return {**average, **{f"{slot}.{name}": value.detach().clone() for name, value in parameters.items()}}

    def averaged_weights(self, average: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mean over the filled slots, by parameter name."""
        slots = 1 + max(int(key.partition(".")[0]) for key in average)
        names = [key.removeprefix("0.") for key in average if key.startswith("0.")]
        return {name: _mean([average[f"{slot}.{name}"] for slot in range(slots)]) for name in names}


def _mean(copies: list[Tensor]) -> Tensor:
    total = torch.zeros_like(copies[0], dtype=torch.float64)
    for value in copies:
        total += value
    return (total / len(copies)).to(copies[0].dtype)


@dataclass(frozen=True, kw_only=True)
class TrainingOverAggregates:
    """From step tau on, the gradient of step t is taken at a_t = f_agg(theta_t, ..., theta_0) (algorithm 1):

        theta_{t+1} = theta_t - eta g_t(a_t);    with a restart    theta_{t+1} = a_t - eta g_t(a_t)

    With a restart and an exponential moving average of constant decay d, a_{t+1} = d a_t + (1 - d) theta_{t+1}
    = a_t - (1 - d) eta g_t(a_t). The released average is plain SGD from a_tau with learning rate (1 - d) eta: only the
    scale of the rate differs. The same holds, under any schedule, for every optimizer whose step is eta times a
    function of the gradients so far and of the current weights (momentum, Adam, AdamW, LAMB, weight decay). In the
    warm-up form 1 - d depends on the step and acts as a schedule. With the mean of the last k weights, a restart is a
    different algorithm.

    **Guarantee**: a_t is a function of the weights released by earlier steps. Step t computes the same clipped sum as
    an ordinary step, at another point that is determined by earlier releases. This is covered by every theorem whose
    queries may depend on all earlier releases, as every row of `sfumato.privacy.theorems` allows (and must allow,
    because theta_t itself depends on them). Unit, adjacency and epsilon are therefore those of the run without
    aggregates.

    Args:
        average: f_agg.
        start: tau, the first step whose gradient is taken at the aggregate.
        restart: whether the step also starts at the aggregate.
    """

    average: Average
    start: int = 0
    restart: bool = False

    @property
    def copies(self) -> int:
        """The number of copies of the parameters in memory: the average's, and theta_t unless the step restarts."""
        return self.average.copies + (0 if self.restart else 1)

    @contextmanager
    def at_average(self, parameters: Mapping[str, Tensor], average: Mapping[str, Tensor], step: int) -> Iterator[None]:
        """Sets the parameters to a_t within the context. On exit theta_t is restored, unless the step restarts at a_t.

        Args:
            parameters: theta_t, the trained parameters by name; changed in place.
            average: the state of `average` that includes theta_t.
            step: t.
        """
        if step < self.start:
            yield
            return
        saved = {} if self.restart else {name: value.detach().clone() for name, value in parameters.items()}
        _copy(parameters, self.average.averaged_weights(average))
        try:
            yield
        finally:
            _copy(parameters, saved)


def _copy(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)


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
    return _weighted((each, 1.0) for each in weights)


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
        SfumatoError: as for `mean`; steps that are not ascending; a decay outside [0, 1).
        ValueError: not one step per set of weights.

    >>> exponential([{"w": torch.tensor([0.0])}, {"w": torch.tensor([1.0])}], [10, 12], decay=0.5)
    {'w': tensor([0.8000])}
    """
    below_one(decay=decay, remedy="give a number in [0, 1), such as 0.99")
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    if any(gap < 1 for gap in gaps):
        raise SfumatoError(f"steps must ascend, got {list(steps)!r}", "pass the weights in the order of their steps")
    shares = [1.0]
    for gap in reversed(gaps):
        # Repeated multiplication, because the last bit of `pow` depends on the machine.
        shares.append(reduce(mul, repeat(float(decay), gap), shares[-1]))
    return _weighted(zip(weights, reversed(shares), strict=True))


def _weighted(weights: Iterable[tuple[Mapping[str, Tensor], float]]) -> dict[str, Tensor]:
    """sum_i share_i weights_i / sum_i share_i."""
    first: Mapping[str, Tensor] | None = None
    sums: dict[str, Tensor] = {}
    total = 0.0
    with torch.no_grad():
        for parameters, share in weights:
            if first is None:
                first = {name: value.detach() for name, value in parameters.items()}
                sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in first.items()}
            _check_alike(first, parameters)
            for name, value in parameters.items():
                # No fused multiply-add: it rounds differently, and not every processor has it.
                sums[name] += value.detach().double() * share
            total += share
    if first is None:
        raise SfumatoError("there are no weights to average", "pass at least one set")
    return {name: (value / total).to(first[name].dtype) for name, value in sums.items()}


def _check_alike(first: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    def kinds(weights: Mapping[str, Tensor]) -> set[tuple[str, str]]:
        return {(name, f"{tuple(value.shape)} of {value.dtype}") for name, value in weights.items()}

    odd = kinds(first) ^ kinds(parameters)
    odd |= kinds({name: value for name, value in parameters.items() if not value.is_floating_point()})
    if odd:
        listed = ", ".join(map(" ".join, sorted(odd)))
        raise SfumatoError(
            f"all sets of weights must be floating-point and alike, but not so is {listed}",
            "pass the trained parameters of one model",
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
    fitting = min(MOST, ROOM // positive_integer(size=size))
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
    positive_integer(steps=steps)
    count = min(count, steps)
    if count == 0:
        return ()
    last = range(steps - (count + 1) // 2 + 1, steps + 1)
    begin = min(max(1, steps // 2), last.start - count // 2)
    spaced = np.linspace(begin, last.start, count // 2, endpoint=False).astype(int)
    return (*spaced.tolist(), *last)
