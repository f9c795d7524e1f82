"""Per-example weight gradients of convolutions on a device: batched products of shifted views, without unfolding.

With stride 1, ``G[o, i, k] = sum_t g[o, t] x[i, t + k]``: for each offset k of the kernel, one product of g with the
inputs shifted by k. Laid out with channels last and surrounded by zeros, all images of an example form one long
sequence of pixels, and a shift by k is a view that starts k pixels later. Where a row of g ends, zeros multiply
whatever follows. A stride s splits the inputs into s phases, each of which is shifted by whole pixels.
"""

from __future__ import annotations

import math
from itertools import product as all_of

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.products import batched_product, convolution_precision
from sfumato.gradients.sites.geometry import Geometry

# With at most this many input channels, patches are written out: a product for each offset would be too thin.
_FEW = 4


def instantiate(x: Tensor, g: Tensor, geometry: Geometry, shape: tuple[int, ...], views: int) -> Tensor:
    """Computes gradients (b, out, in / groups, ...) in float32 at least, summed over views and positions.

    The input channels are last in memory.

    Args:
        x, g: inputs (b*K, in, ...) and output gradients (b*K, out, ...), of one type.
        geometry: of a convolution that is not transposed.
        shape: the weight's shape.
        views: K.
    """
    groups = geometry.groups
    if groups > 1 and shape[:2] == (groups, 1):
        return _depthwise(x, g, geometry, shape, views)
    if groups == 1 and shape[1] <= _FEW:
        return _product_of_patches(x, g, geometry, shape, views)
    with convolution_precision(x.device):
        return _product_by_offset(x, g, geometry, shape, views)


def _product_by_offset(x: Tensor, g: Tensor, geometry: Geometry, shape: tuple[int, ...], views: int) -> Tensor:
    """Computes a product for each offset of the kernel."""
    grid = PixelGrid(g, geometry, shape)
    outputs = grid.lay_out_gradients(g, views)
    gradients = outputs.new_empty(
        len(outputs), outputs.shape[2], math.prod(shape[2:]), shape[1], dtype=clipping.accumulation_dtype(g.dtype)
    )
    for phase, places in grid.phases.items():
        inputs = grid.lay_out_inputs(x, phase, views)
        for place, offset in places:
            shifted_inputs = inputs[:, offset : offset + outputs.shape[1]]
            batched_product(outputs.transpose(1, 2), shifted_inputs, out=gradients[:, :, place])
    return gradients.reshape(-1, shape[0], *shape[2:], shape[1]).movedim(-1, 2)


class PixelGrid:
    """The sequence of pixels in which both the output gradients and the inputs of an image are laid out.

    Attributes:
        sides: its pixels in each direction: those of the outputs, and as many more as the kernel reaches beyond them.
        phases: for each phase of the inputs that is used, the places in the kernel with their offsets in pixels.
    """

    def __init__(self, g: Tensor, geometry: Geometry, shape: tuple[int, ...]):
        self._geometry, self._outputs = geometry, tuple(g.shape[2:])
        directions = list(zip(shape[2:], geometry.dilation, geometry.stride, strict=True))
        self.sides = tuple(
            side + (size - 1) * gap // step for side, (size, gap, step) in zip(self._outputs, directions, strict=True)
        )
        lengths = [math.prod(self.sides[axis + 1 :]) for axis in range(len(self.sides))]
        self._beyond = sum(
            (size - 1) * gap // step * length for (size, gap, step), length in zip(directions, lengths, strict=True)
        )
        self.phases: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for place, numbers in enumerate(all_of(*map(range, shape[2:]))):
            moves = [divmod(n * gap, step) for n, (_, gap, step) in zip(numbers, directions, strict=True)]
            offset = sum(whole * length for (whole, _), length in zip(moves, lengths, strict=True))
            self.phases.setdefault(tuple(phase for _, phase in moves), []).append((place, offset))

    def lay_out_gradients(self, g: Tensor, views: int) -> Tensor:
        """(b*groups, pixels of all views, out / groups), with zeros beyond the outputs."""
        return self._laid_out(g, [(slice(0, side), slice(None)) for side in self._outputs], views, 0)

    def lay_out_inputs(self, x: Tensor, phase: tuple[int, ...], views: int) -> Tensor:
        """(b*groups, pixels of all views and as many as the kernel reaches beyond them, in / groups) of one phase."""
        where = []
        for axis, first in enumerate(phase):
            step, pad = self._geometry.stride[axis], self._geometry.padding[axis]
            start = max(0, -((first - pad) // step))  # the phase's first pixel outside the padding
            end = min(self.sides[axis], (x.shape[2 + axis] - 1 + pad - first) // step + 1)
            there = start * step + first - pad
            count = max(0, end - start)
            last = there + (count - 1) * step + 1 if count else there
            where.append((slice(start, start + count), slice(there, last, step)))
        return self._laid_out(x, where, views, self._beyond)

    def _laid_out(self, values: Tensor, where: list[tuple[slice, slice]], views: int, beyond: int) -> Tensor:
        """The values (b*K, channels, ...) as sequences, with zeros where `where` names no pixel of the grid.

        Args:
            where: for each direction, the pixels of the grid, and those of the values that go there.
            beyond: the number of zeros after the sequence.
        """
        groups, (images, channels) = self._geometry.groups, values.shape[:2]
        examples, width = images // views, channels // groups
        length = views * math.prod(self.sides)
        taken = values[(slice(None), slice(None), *(there for _, there in where))]
        taken = taken.unflatten(0, (examples, views)).unflatten(2, (groups, width))
        taken = taken.movedim(2, 1).movedim(3, -1)  # (b, groups, K, ..., width)
        if tuple(taken.shape[3:-1]) == self.sides and not beyond:
            return taken.reshape(examples * groups, length, width)
        rows = values.new_zeros(examples, groups, length + beyond, width)
        here = (slice(None), slice(None), slice(None), *(grid for grid, _ in where))
        rows[:, :, :length].unflatten(2, (views, *self.sides))[here] = taken
        return rows.flatten(0, 1)


def _depthwise(x: Tensor, g: Tensor, geometry: Geometry, shape: tuple[int, ...], views: int) -> Tensor:
    """Computes the gradients of a depthwise convolution: sums of products, pixel by pixel."""
    dtype = clipping.accumulation_dtype(g.dtype)
    seen = windows(x, geometry, shape)
    places = [(g.to(dtype) * seen[(..., *place)]).flatten(2).sum(2) for place in all_of(*map(range, shape[2:]))]
    gradients = torch.stack(places, dim=-1).unflatten(0, (-1, views)).sum(dim=1)
    return gradients.reshape(-1, *shape)


def _product_of_patches(x: Tensor, g: Tensor, geometry: Geometry, shape: tuple[int, ...], views: int) -> Tensor:
    """Computes the gradients from patches that are written out."""
    seen = windows(x, geometry, shape)  # (b*K, in, positions..., kernel...)
    axes = len(shape) - 2
    rows = seen.movedim(1, 1 + axes).flatten(1 + axes).flatten(1, axes)
    rows = rows.unflatten(0, (-1, views)).flatten(1, 2)
    outputs = g.flatten(2).transpose(1, 2).unflatten(0, (-1, views)).flatten(1, 2)
    return batched_product(outputs.transpose(1, 2), rows).reshape(-1, *shape)


def windows(x: Tensor, geometry: Geometry, shape: tuple[int, ...]) -> Tensor:
    """(N, in, positions..., kernel...), a view of the padded inputs."""
    view = F.pad(x, [edge for edge in reversed(geometry.padding) for _ in range(2)])
    for axis, (size, gap, step) in enumerate(zip(shape[2:], geometry.dilation, geometry.stride, strict=True), start=2):
        view = view.unfold(axis, gap * (size - 1) + 1, step)[..., ::gap]
    return view
