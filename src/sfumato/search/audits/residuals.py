"""What private steps release less their clipped sums: the noise of each parameter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from sfumato.audit.noise import WINDOW, ParameterNoise

RUNS = 2
"""With a key of its own each."""


class Residuals:
    """Collects the noise of single steps; of large models it keeps the squares of each coordinate, and a few numbers.

    Args:
        like: tensors of the parameters' shapes, by name.
        steps: in each of the two runs.
    """

    def __init__(self, like: Mapping[str, Tensor], steps: int):
        self._sizes = {name: value.numel() for name, value in like.items() if value.numel()}
        self._starts = np.cumsum([0, *self._sizes.values()])[:-1]
        self._squares, self._largest = np.zeros(len(self._sizes)), np.zeros(len(self._sizes))
        self._of_each = np.zeros(sum(self._sizes.values()), np.float32)
        chosen = [np.unique(np.linspace(0, size - 1, WINDOW).round().astype(int)) for size in self._sizes.values()]
        self._places = np.concatenate([start + one for start, one in zip(self._starts, chosen, strict=True)])
        self._ends = np.cumsum([len(one) for one in chosen])
        self._kept = np.empty((RUNS, steps, len(self._places)))

    def add(
        self,
        run: int,
        step: int,
        private: Mapping[str, Tensor],
        total: Mapping[str, Tensor],
        *,
        scale: float,
        unit: float,
    ) -> None:
        """One step of a run.

        Args:
            private: what it has released.
            total: the clipped sum of its batch.
            scale: what the noisy sum was divided by.
            unit: the standard deviation of the plan's noise, in the units of the sum.
        """
        flat = torch.cat([(scale * private[name].double() - total[name].double()).flatten() for name in self._sizes])
        noise = flat.div_(unit).numpy()
        self._kept[run, step] = noise[self._places]
        magnitudes = np.abs(noise, out=noise)
        np.maximum(self._largest, np.maximum.reduceat(magnitudes, self._starts), out=self._largest)
        squares = np.square(magnitudes, out=magnitudes)
        self._squares += np.add.reduceat(squares, self._starts)
        self._of_each += squares

    @property
    def seen(self) -> list[ParameterNoise]:
        """Of each parameter."""
        least, kept = np.minimum.reduceat(self._of_each, self._starts), np.split(self._kept, self._ends[:-1], axis=2)
        return [
            ParameterNoise(
                name=name,
                coordinates=size,
                steps=self._kept.shape[0] * self._kept.shape[1],
                squares=float(self._squares[place]),
                least=float(least[place]),
                largest=float(self._largest[place]),
                kept=kept[place],
            )
            for place, (name, size) in enumerate(self._sizes.items())
        ]
