"""Training over aggregates: gradients are taken at an average of the weights so far (Shejwalkar et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato._checks import not_negative
from sfumato.averaging.average import Average


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

    def __post_init__(self):
        not_negative("aggregate_from", self.start, remedy="give a step number, from 0")

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
