"""Mean of the last k weights: what uniform tail averaging trains on (Shejwalkar et al. 2022, arXiv 2210.01864)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato._checks import positive_integer


@dataclass(frozen=True)
class LastMean:
    """Mean of theta_t, ..., theta_{t-k+1}; of all there are, theta_0 among them, while these are fewer than k.

    The state is a ring of k copies: theta_t lies in slot t mod k, as "SLOT.NAME". Their sum is taken anew each time,
    slot by slot and in float64: a running sum from which the oldest copy is subtracted would keep the rounding of all
    that it has ever held. Copies in files would all be read in every step, so they stay in memory, and in checkpoints.

    **Guarantee**: the mean is a function of released parameters alone, hence post-processing, as of any `Average`.

    Args:
        count: k, how many weights the mean is of.

    Raises:
        SfumatoError: k is no whole number above 0.

    >>> mean = LastMean(2)
    >>> state = mean.begin({"w": torch.tensor([0.0])})
    >>> for step in range(3):
    ...     state = mean.update(state, {"w": torch.tensor([step + 1.0])}, step)
    >>> mean.released(state)
    {'w': tensor([2.5000])}
    """

    count: int = 5

    def __post_init__(self):
        positive_integer(
            "aggregate_last", self.count, remedy="give how many of the last weights are averaged, such as 5"
        )

    @property
    def copies(self) -> int:
        """k, and their mean."""
        return self.count + 1

    def begin(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """theta_0 in slot 0."""
        return {f"0.{name}": value.detach().clone() for name, value in parameters.items()}

    def update(self, average: Mapping[str, Tensor], parameters: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """The ring with theta_{t+1} in place of theta_{t+1-k}; the other copies are handed on, not copied again."""
        slot = (step + 1) % self.count
        return {**average, **{f"{slot}.{name}": value.detach().clone() for name, value in parameters.items()}}

    def released(self, average: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mean over the slots that are filled, by parameter name."""
        slots = 1 + max(int(key.partition(".")[0]) for key in average)
        names = [key.removeprefix("0.") for key in average if key.startswith("0.")]
        return {name: _mean([average[f"{slot}.{name}"] for slot in range(slots)]) for name in names}


def _mean(copies: list[Tensor]) -> Tensor:
    total = torch.zeros_like(copies[0], dtype=torch.float64)
    for value in copies:
        total += value
    return (total / len(copies)).to(copies[0].dtype)
