"""Exponential moving average of the parameters: with the warm-up of De et al. 2022, or of constant decay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, not_negative, one_of

FORMS = ("warm-up", "constant")


@dataclass(frozen=True)
class EMA:
    """Exponential moving average whose decay at step t is min(decay, (1 + t) / (10 + t)), or constant.

    The warm-up (De et al. 2022, arXiv 2204.13650, appendix C.3) makes the average span roughly the last ninth of a
    short run, whatever its length, so that one decay serves runs of fifty steps and of fifty thousand. The constant
    form is that of Shejwalkar et al. 2022 (arXiv 2210.01864, equation 3), whose beta is 1 - decay.

    **Guarantee**: the average is a function of released parameters alone, hence post-processing: it has the epsilon of
    the run whatever the unit and adjacency, at no further cost (De et al. 2022, section 3.1, "Parameter averaging").

    Args:
        decay: the largest decay, in [0, 1). De et al. use 0.9999 on CIFAR and 0.99999 on ImageNet. 0 keeps the last
            parameters.
        form: "warm-up" or "constant".

    Raises:
        SfumatoError: the decay lies outside [0, 1), or another form.

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
        one_of("ema_form", self.form, FORMS)
        if not_negative("EMA decay", self.decay, remedy="give a number in [0, 1), such as 0.9999") >= 1:
            raise SfumatoError(
                f"EMA decay must be below 1, got {self.decay!r}", "give 0.9999, or 0 to keep the last parameters"
            )

    @property
    def copies(self) -> int:
        """One."""
        return 1

    def begin(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The initial parameters."""
        return {name: value.detach().clone() for name, value in parameters.items()}

    def decay_at(self, step: int) -> float:
        """The decay in the update of step t = 0, 1, ..., without unit: min(decay, (1 + t) / (10 + t)), or constant."""
        if step < 0:
            raise SfumatoError(f"step must not be negative, got {step!r}", "count steps from 0")
        if self.form == "constant":
            return self.decay
        return min(self.decay, (1 + step) / (10 + step))

    def update(self, average: Mapping[str, Tensor], parameters: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """The average after one step: decay_at(step) * average + (1 - decay_at(step)) * parameters.

        Args:
            average: the average so far, by parameter name, any shapes; at the start, the initial parameters.
            parameters: the parameters after this step, the same names and shapes.
            step: the step that led to `parameters`, from 0.

        Returns:
            Detached tensors that share no memory with the arguments.

        Raises:
            SfumatoError: the names differ.
        """
        if average.keys() != parameters.keys():
            odd = ", ".join(sorted(average.keys() ^ parameters.keys()))
            raise SfumatoError(
                f"average and parameters must have the same names, but differ in {odd}", "pass one model"
            )
        weight = 1.0 - self.decay_at(step)
        with torch.no_grad():
            return {name: average[name].detach().lerp(parameters[name].detach(), weight) for name in average}

    def released(self, average: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The average itself."""
        return dict(average)
