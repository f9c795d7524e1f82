"""The noise of a plan's mechanism: one file for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, positive
from sfumato.gradients import GridSum
from sfumato.privacy.mechanism import BandedToeplitz, BufferedToeplitz, Gaussian, Mechanism, Tree
from sfumato.randomness.keys import RunKey
from sfumato.randomness.noise import blocks
from sfumato.randomness.noise.blocks import DrawnAhead, GaussianNoise, OnTheCPU, StepNoise
from sfumato.randomness.noise.toeplitz import BandedToeplitzNoise, BufferedToeplitzNoise
from sfumato.randomness.noise.tree import TreeNoise

NOISES: dict[type[Mechanism], Callable[[Any], StepNoise]] = {
    Gaussian: GaussianNoise,
    Tree: TreeNoise,
    BandedToeplitz: BandedToeplitzNoise,
    BufferedToeplitz: BufferedToeplitzNoise,
}


@dataclass(frozen=True, kw_only=True)
class NoiseState:
    """What noise remembers from step to step: {parameter: float64 (buffers, *its shape)}, in standard deviations.

    It is made of noise alone and says nothing of the data. It is a secret all the same, like the key: whoever has it
    knows part of the noise of later steps, and can take off part of that of earlier ones.

    It is kept in float64 because theorems know nothing of its rounding, by which the noise of later steps is off its
    center: over 25 million coordinates by 1e-4 standard deviations in all in float32, by 3e-13 in float64.

    Args:
        step: the step that it is for.
        tensors: on the CPU; nothing before the first step, and nothing ever where steps are independent.
    """

    step: int
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Coming(Protocol):
    """Noise that is drawn, or being drawn."""

    def added_to(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum plus the noise, {name: float32 tensor}."""
        ...


@dataclass(frozen=True)
class ComingNoise:
    """A step's noise, for one sum.

    Args:
        coming: what draws it, or is drawing.
        following: the noise's next state.
    """

    coming: Coming
    following: NoiseState

    def added_to(self, total: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], NoiseState]:
        """The noisy sum, {name: float32 tensor}, and the noise's next state."""
        return self.coming.added_to(total), self.following


class Noise:
    """The noise of a plan's mechanism.

    Args:
        mechanism: the plan's mechanism.
        max_norm: the clipping norm of the sum's vectors. By how many of it one unit moves the sum is no part of the
            noise: the plan's accountant divides by that.
        key: the run key.

    **Guarantee.** `add` returns the sum of step t plus noise_multiplier * max_norm * (C^-1 z)_t in every coordinate, C
    the mechanism's matrix over the steps (the identity for `Gaussian`; for `Tree` the prefix sums' noise, N_t -
    N_{t-1}), z ~ N(0, 1) independent across steps, parameters and coordinates, drawn in float64 from a 256-bit key.
    What is remembered from step to step is noise alone, never the sum, in float64: its rounding is as if z had been
    drawn a few parts in 2^53 differently, and does not grow over the steps. Noise and sum are rounded once, to float32,
    together. A replayed step has the same noise; two steps never share any z.
    """

    def __init__(self, mechanism: Mechanism, *, max_norm: float, key: RunKey):
        self.mechanism = mechanism
        self.max_norm = positive("max_norm", max_norm)
        self._key = key
        self._rule = NOISES[type(mechanism)](mechanism)

    @property
    def standard_deviation(self) -> float:
        """noise_multiplier * max_norm, in the units of the sum."""
        return self.mechanism.noise_multiplier * self.max_norm

    def buffers(self, steps: int) -> int:
        """How many float64 numbers for each coordinate are remembered after so many steps: the state's memory.

        >>> from sfumato.privacy.mechanism import Tree
        >>> Noise(Tree(noise_multiplier=2.0), max_norm=1.0, key=RunKey.from_seed(0)).buffers(1000)
        10
        """
        return self.mechanism.buffers(steps)

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
                own is refused. It is used up, since its memory goes on to its successor. A loop of one's own may leave
                it out where steps have independent noise.
        """
        noisy, following = self.ahead(total, step, state).added_to(total)
        return noisy if state is None else (noisy, following)

    def _own(self, step: int) -> NoiseState:
        """The state of a step that needs none."""
        if self.mechanism.buffers(step + 1):
            raise SfumatoError(
                f"the noise of {type(self.mechanism).__name__} remembers earlier steps, and no state is given",
                "begin with `noise.begin()`, and give each step the state that the step before has returned",
            )
        return NoiseState(step=step)

    def taken(self, total: GridSum) -> dict[str, Tensor]:
        """A sum as this noise is added to it."""
        return total.value()

    def _checked(self, step: int, state: NoiseState | None) -> NoiseState:
        """The state of the step."""
        state = self._own(step) if state is None else state
        if state.step != step:
            raise SfumatoError(
                f"the noise's state is that of step {state.step}, and step {step} is asked for",
                "give the state that the step before has returned, or that of the checkpoint",
            )
        return state

    def ahead(
        self,
        like: Mapping[str, Tensor],
        step: int,
        state: NoiseState | None = None,
        *,
        share: tuple[int, int] = (0, 1),
    ) -> ComingNoise:
        """A step's noise before its sum is there: on a device it is drawn on the CPU while the device computes.

        Args:
            like: tensors of the sum's shapes, on its devices.
            step, state: as of `add`; the state is used up here.
            share: (i, n) where n workers share the noise, of which this is the i-th: it is that of every n-th block
                from the i-th on. The other blocks get none, and are not to be released.
        """
        state = self._checked(step, state)
        kept, shapes = self._kept(like, state), {name: value.shape for name, value in like.items()}
        drawing = partial(blocks.draw, self._rule, shapes, kept, step, self._key, self.standard_deviation, share)
        devices = {value.device for value in like.values()}
        coming = OnTheCPU(drawing) if devices <= {torch.device("cpu")} else DrawnAhead(drawing, shapes, *devices)
        return ComingNoise(
            coming, NoiseState(step=step + 1, tensors={n: value for n, value in kept.items() if len(value)})
        )

    def _kept(self, total: Mapping[str, Tensor], state: NoiseState) -> dict[str, Tensor]:
        """The state's memory, taken out of it, with room for what this step adds."""
        had, needed = self.mechanism.buffers(state.step), self.mechanism.buffers(state.step + 1)
        expected = {name: (torch.float64, had, *value.shape) for name, value in total.items() if had}
        if {name: (value.dtype, *value.shape) for name, value in state.tensors.items()} != expected:
            raise SfumatoError(
                f"the noise's state does not hold what {type(self.mechanism).__name__} remembers of the steps before "
                f"{state.step}: it is used up, or of another model or mechanism",
                "give the state that the step before has returned, or that of the checkpoint",
            )
        before = {name: state.tensors[name] for name in expected}  # in this order: workers share blocks out by it
        state.tensors.clear()
        if 0 < had == needed:
            return before
        room = {name: torch.zeros(needed - had, *value.shape, dtype=torch.float64) for name, value in total.items()}
        return {name: torch.cat([before[name], room[name]]) for name in room} if had else room
