"""The noise of a plan's mechanism: one file for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import overload

from torch import Tensor

from sfumato._checks import SfumatoError, positive
from sfumato.privacy.mechanism import Gaussian, Mechanism
from sfumato.randomness.keys import DiceKey
from sfumato.randomness.noise import gaussian

Added = Callable[[Mapping[str, Tensor], int, DiceKey, float], dict[str, Tensor]]
INDEPENDENT: dict[type[Mechanism], Added] = {Gaussian: gaussian.add}
"""Mechanisms whose steps have noise of their own: (sum, step, key, standard deviation) to the noisy sum."""


@dataclass(frozen=True, kw_only=True)
class NoiseState:
    """What noise remembers from step to step.

    Args:
        step: the step that it is for.
        tensors: what a mechanism carries over; nothing where steps are independent.
    """

    step: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


class Noise:
    """The noise of a plan's mechanism.

    Args:
        mechanism: the plan's mechanism.
        sensitivity: S, by how much one unit can move the sum in L2 norm: `ClippedGradient.sensitivity(adjacency)`.
        key: the run key.

    **Guarantee.** `add` returns the sum plus N(0, (noise_multiplier * S)^2) in every coordinate, independent across
    steps, parameters and coordinates, drawn in float64 from a 256-bit key and rounded once, to float32, together with
    the sum. A replayed step has the same noise; two steps never share any (De 2022, equation 2).
    """

    def __init__(self, mechanism: Mechanism, *, sensitivity: float, key: DiceKey):
        self.mechanism = mechanism
        self.sensitivity = positive("sensitivity", sensitivity)
        self._key = key
        self._add = INDEPENDENT[type(mechanism)]

    @property
    def standard_deviation(self) -> float:
        """noise_multiplier * sensitivity, in the units of the sum."""
        return self.mechanism.noise_multiplier * self.sensitivity

    def begin(self) -> NoiseState:
        """The state before the first step."""
        return NoiseState(step=0)

    @overload
    def add(self, total: Mapping[str, Tensor], step: int) -> dict[str, Tensor]: ...
    @overload
    def add(
        self, total: Mapping[str, Tensor], step: int, state: NoiseState
    ) -> tuple[dict[str, Tensor], NoiseState]: ...
    def add(self, total, step, state=None):
        """The noisy sum: {name: float32 tensor} of the same shapes, on the same devices.

        Args:
            total: the clipped sum.
            step: 0 for the first.
            state: of `begin` or of the step before, whose successor is then returned as well; any other step than its
                own is refused. A loop of one's own may leave it out where steps have independent noise.
        """
        if state is None:
            return self._add(total, step, self._key, self.standard_deviation)
        if state.step != step:
            raise SfumatoError(
                f"the noise's state is that of step {state.step}, and step {step} is asked for",
                "give the state that the step before has returned, or that of the checkpoint",
            )
        return self._add(total, step, self._key, self.standard_deviation), NoiseState(step=step + 1)
