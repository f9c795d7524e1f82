"""The noise of a plan's mechanism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, positive
from sfumato.gradients import GridSum
from sfumato.privacy.mechanism import BandedToeplitz, Gaussian, Mechanism, Tree
from sfumato.randomness.keys import RunKey
from sfumato.randomness.noise import blocks
from sfumato.randomness.noise.blocks import (
    BandedToeplitzNoise,
    CPUNoise,
    GaussianNoise,
    PrefetchedNoise,
    StepNoise,
    TreeNoise,
)

NOISES: dict[type[Mechanism], Callable[[Any], StepNoise]] = {
    Gaussian: GaussianNoise,
    Tree: TreeNoise,
    BandedToeplitz: BandedToeplitzNoise,
}


@dataclass(frozen=True, kw_only=True)
class NoiseState:
    """What the noise remembers from step to step: {parameter: float64 (buffers, *its shape)}, in standard deviations.

    It consists of noise alone and reveals nothing about the data. It is secret all the same, like the key: whoever has
    it knows part of the noise of later steps and can subtract part of the noise of earlier ones.

    It is kept in float64 because the theorems do not account for its rounding, which shifts the noise of later steps:
    over 25 million coordinates by 1e-4 standard deviations in all in float32, by 3e-13 in float64.

    Args:
        step: the step that the state is for.
        tensors: on the CPU. Empty before the first step, and always empty if steps are independent.
    """

    step: int
    tensors: dict[str, Tensor] = field(default_factory=dict)


class PendingNoise(Protocol):
    """Noise that has been drawn or is being drawn."""

    def add_to(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum plus the noise, {name: float32 tensor}."""
        ...


@dataclass(frozen=True)
class PreparedNoise:
    """The noise of one step, for one sum.

    Args:
        pending: draws the noise, or is drawing it.
        next_state: the next state of the noise.
    """

    pending: PendingNoise
    next_state: NoiseState

    def add_to(self, total: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], NoiseState]:
        """The noisy sum, {name: float32 tensor}, and the next state of the noise."""
        return self.pending.add_to(total), self.next_state


class Noise:
    """The noise of a plan's mechanism.

    Args:
        mechanism: the plan's mechanism.
        max_norm: the clipping norm of the sum's vectors. By how many clipping norms one unit moves the sum does not
            affect the noise; the plan's accountant divides by it.
        key: the run key.

    **Guarantee.** `add` returns the sum of step t plus noise_multiplier * max_norm * (C^-1 z)_t in every coordinate,
    with C the mechanism's matrix over the steps (the identity for `Gaussian`; for `Tree` the noise is that of prefix
    sums, N_t - N_{t-1}), z ~ N(0, 1) independent across steps, parameters and coordinates, drawn in float64 from a
    256-bit key. Only noise is remembered from step to step, never the sum, and in float64: the rounding is as if z had
    been drawn a few parts in 2^53 differently, and does not grow over the steps. Noise and sum are rounded once,
    together, to float32. A replayed step has the same noise; two steps never share any z.
    """

    def __init__(self, mechanism: Mechanism, *, max_norm: float, key: RunKey):
        self.mechanism = mechanism
        self.max_norm = positive(max_norm=max_norm)
        self._key = key
        self._rule = NOISES[type(mechanism)](mechanism)

    @property
    def standard_deviation(self) -> float:
        """noise_multiplier * max_norm, in the units of the sum."""
        return self.mechanism.noise_multiplier * self.max_norm

    def buffers(self, steps: int) -> int:
        """The float64 numbers per coordinate that are remembered after this many steps: the memory of the state.

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
            state: from `begin` or from the previous step; a state of any other step is refused. Its successor is then
                returned as well. The state is used up, because its memory passes to the successor. Your own loop may
                leave it out if steps have independent noise.
        """
        noisy, next_state = self.prepare(total, step, state).add_to(total)
        return noisy if state is None else (noisy, next_state)

    def prepare_sum(self, total: GridSum) -> dict[str, Tensor]:
        """The sum in the form to which this noise is added."""
        return total.value()

    def _checked(self, step: int, state: NoiseState | None) -> NoiseState:
        """The state of the step; without one, that of a step that needs no memory."""
        if state is None:
            if self.mechanism.buffers(step + 1):
                raise SfumatoError(
                    f"the noise of {type(self.mechanism).__name__} remembers earlier steps, but no state is given",
                    "begin with `noise.begin()`, and give each step the state that the previous step returned",
                )
            return NoiseState(step=step)
        if state.step != step:
            raise SfumatoError(
                f"the noise's state is that of step {state.step}, but step {step} was requested",
                "give the state that the previous step returned, or that of the checkpoint",
            )
        return state

    def prepare(
        self, like: Mapping[str, Tensor], step: int, state: NoiseState | None = None, *, share: tuple[int, int] = (0, 1)
    ) -> PreparedNoise:
        """The noise of a step before its sum is available. For a device it is drawn on the CPU while the device works.

        Args:
            like: tensors of the sum's shapes, on its devices.
            step, state: as in `add`; the state is used up.
            share: (i, n) if n workers share the noise and this is worker i: it draws every n-th block from the i-th
                on. The other blocks get no noise and must not be released.
        """
        state = self._checked(step, state)
        memory, shapes = self._take_memory(like, state), {name: value.shape for name, value in like.items()}
        drawing = partial(blocks.draw, self._rule, shapes, memory, step, self._key, self.standard_deviation, share)
        devices = {value.device for value in like.values()}
        pending = CPUNoise(drawing) if devices <= {torch.device("cpu")} else PrefetchedNoise(drawing, shapes, *devices)
        return PreparedNoise(
            pending, NoiseState(step=step + 1, tensors={n: value for n, value in memory.items() if len(value)})
        )

    def _take_memory(self, total: Mapping[str, Tensor], state: NoiseState) -> dict[str, Tensor]:
        """The state's memory, taken out of it, extended by the buffers that this step adds."""
        present, needed = self.mechanism.buffers(state.step), self.mechanism.buffers(state.step + 1)
        expected = {name: (torch.float64, present, *value.shape) for name, value in total.items() if present}
        if {name: (value.dtype, *value.shape) for name, value in state.tensors.items()} != expected:
            raise SfumatoError(
                f"the noise's state does not hold what {type(self.mechanism).__name__} remembers of the steps before "
                f"{state.step}: it is used up, or of another model or mechanism",
                "give the state that the previous step returned, or that of the checkpoint",
            )
        before = {name: state.tensors[name] for name in expected}  # workers divide the blocks in this order
        state.tensors.clear()
        if 0 < present == needed:
            return before
        room = {name: torch.zeros(needed - present, *value.shape, dtype=torch.float64) for name, value in total.items()}
        return {name: torch.cat([before[name], room[name]]) for name in room} if present else room
