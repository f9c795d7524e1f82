"""Sums of clipped gradients on an integer grid: the same bits for any order of parts and any number of workers.

A grid step is C 2^-38 for the clipping norm C. Rounding a part to the grid moves it by at most half a step in each
coordinate, and by at most sqrt(d) C 2^-39 in norm for d parameters. When an example joins or leaves a part, both values
of that part are rounded, so the amount counts twice. Clip factors are smaller by as much (`clipping.clip_factors`), so
the bound C holds as long as the other parts stay the same. If the examples after it move to other parts, each of those
parts is rounded anew. This is not covered, like the rounding of the sums within the parts, to which it adds little in
float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from sfumato._checks import SfumatoError

STEP = 2.0**-38
"""Grid step in units of C."""
_AT_ONCE = 1 << 22
"""Numbers that are rounded together; in float64 they take 32 MiB."""
MOST_EXAMPLES = 1 << 24
"""Sums of this many examples fit, with room for a batch that is larger than expected."""


def allowance(elements: int) -> float:
    """A bound, in units of C, on how far rounding to the grid moves one example's contribution to a sum.

    Args:
        elements: d, the number of elements of the trained parameters.
    """
    return STEP * elements**0.5


class GridSum:
    """The sum of a step's parts on the grid.

    Args:
        like: {name: tensor} with the shapes and devices of the parts.
        max_norm: the clipping norm C.

    Attributes:
        integers: {name: int64 tensor}, the sum in grid steps.

    >>> total = GridSum({"w": torch.zeros(2)}, max_norm=0.5)
    >>> for part in ([0.1, 0.2], [0.3, 0.4]):
    ...     total.add({"w": torch.tensor(part)})
    >>> [round(value, 6) for value in total.value()["w"].tolist()]
    [0.4, 0.6]
    """

    def __init__(self, like: Mapping[str, Tensor], *, max_norm: float):
        self._step = STEP * max_norm
        self.integers: dict[str, Tensor] = {}
        self._together: list[tuple[list[str], Tensor]] = []
        for names in _groups({name: value.numel() for name, value in like.items()}):
            shapes = [like[name].shape for name in names]
            sizes = [shape.numel() for shape in shapes]
            total = torch.zeros(sum(sizes), dtype=torch.int64, device=like[names[0]].device)
            self._together.append((names, total))
            parts = zip(names, total.split(sizes), shapes, strict=True)
            self.integers |= {name: part.view(shape) for name, part, shape in parts}

    def add(self, part: Mapping[str, Tensor]) -> None:
        """Adds the sum over a part of the step's participants.

        Errors: `SfumatoError` for another shape. Broadcasting would repeat the part and exceed its norm.
        """
        for name, total in self.integers.items():
            if part[name].shape != total.shape:
                raise SfumatoError(
                    f"the sum of {name} has shape {tuple(total.shape)}, but a part has shape {tuple(part[name].shape)}",
                    "give every part the shapes of the sum over no examples (`zeros`)",
                )
        for names, total in self._together:
            values = torch.cat([part[name].flatten() for name in names]).double()
            total += values.div_(self._step).round_().to(torch.int64)

    def value(self) -> dict[str, Tensor]:
        """The sum as {name: float64 tensor}, in the units of the parts."""
        return {name: total.double().mul_(self._step) for name, total in self.integers.items()}


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Groups of names whose tensors are rounded together, a few million numbers at most."""
    names: list[str] = []
    for name, size in sizes.items():
        if names and sum(sizes[one] for one in names) + size > _AT_ONCE:
            yield names
            names = []
        names.append(name)
    if names:
        yield names
