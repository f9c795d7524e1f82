"""What an average of the weights over the course of training is: f_agg(theta_t, ..., theta_0), kept up step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class Average(Protocol):
    """A function of the weights after each step so far; its state lies in the checkpoint.

    **Guarantee**: `update` and `released` look at released weights alone, so whatever is made of them is
    post-processing: it has the epsilon of the run whatever the unit and adjacency, at no further cost.
    """

    @property
    def copies(self) -> int:
        """How many copies of the parameters it takes in memory: those of the state, and what is made of them."""
        ...

    def begin(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state before the first step, of theta_0, by parameter name; shares no memory with it."""
        ...

    def update(self, average: Mapping[str, Tensor], parameters: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """The state after one more step.

        Args:
            average: the state before it; it stays as it is.
            parameters: theta_{t+1}, the parameters after step t, by name.
            step: t, from 0.
        """
        ...

    def released(self, average: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """f_agg(theta_t, ..., theta_0) of a state: by the parameters' names, of their shapes and dtypes."""
        ...
