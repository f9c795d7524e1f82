"""Training over aggregates: gradients that are taken at an average of the weights so far (Shejwalkar et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato._checks import not_negative
from sfumato.averaging.average import Average


@dataclass(frozen=True, kw_only=True)
class TrainingOver:
    """From step tau on the gradient of step t is taken at a_t = f_agg(theta_t, ..., theta_0) (algorithm 1):

        theta_{t+1} = theta_t - eta g_t(a_t);    with a restart    theta_{t+1} = a_t - eta g_t(a_t)

    With a restart and an exponential moving average of constant decay d, a_{t+1} = d a_t + (1 - d) theta_{t+1}
    = a_t - (1 - d) eta g_t(a_t). So what is released is plain SGD from a_tau, at a learning rate of (1 - d) eta:
    another scale of the rate, and nothing else. The same holds of every optimizer whose step from where it stands is
    eta times a function of the gradients so far and of that place (momentum, Adam, AdamW, LAMB, weight decay), and
    under any schedule; in the warm-up form (1 - d) is that of the step, a schedule of its own. It is with the mean of
    the last k weights that a restart is something else.

    **Guarantee**: a_t is a function of the weights that earlier steps have released. Step t asks of the private data
    what it asks anyway, a clipped sum at a place that earlier releases decide; only the place is another one. That is
    covered where a theorem speaks of queries that are chosen in view of all earlier releases, as every row of
    `sfumato.privacy.theorems` does (and must: theta_t itself is such a choice). So unit, adjacency and epsilon are
    those of the run without aggregates.

    Args:
        average: f_agg.
        start: tau, the first step whose gradient is taken at the aggregate.
        restart: whether the step starts there too.
    """

    average: Average
    start: int = 0
    restart: bool = False

    def __post_init__(self):
        not_negative("aggregate_from", self.start, remedy="give the number of a step, from 0")

    @property
    def copies(self) -> int:
        """How many copies of the parameters it takes in memory: theta_t is put aside, unless the step starts anew."""
        return self.average.copies + (0 if self.restart else 1)

    @contextmanager
    def held(self, parameters: Mapping[str, Tensor], average: Mapping[str, Tensor], step: int) -> Iterator[None]:
        """Parameters that hold a_t inside, and theta_t again after it; or a_t still, where the step starts there.

        Args:
            parameters: theta_t, the parameters that are trained, by name; changed in place.
            average: the state of `average` after them.
            step: t.
        """
        if step < self.start:
            yield
            return
        own = {} if self.restart else {name: value.detach().clone() for name, value in parameters.items()}
        _put(parameters, self.average.released(average))
        try:
            yield
        finally:
            _put(parameters, own)


def _put(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)
