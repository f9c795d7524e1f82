"""Convolutions, ordinary and transposed, in one to three dimensions, with any stride, padding, dilation and groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato import _devices
from sfumato.gradients import clipping
from sfumato.gradients.sites import Site, shifted
from sfumato.gradients.sites.forms import MOST_GRAM_PRODUCTS
from sfumato.gradients.sites.geometry import Geometry
from sfumato.gradients.use import Instantiated, slices


@dataclass(frozen=True, kw_only=True)
class ConvKernel:
    """Per-example weight gradients of a convolution that is not transposed (`use.Kernel`).

    Attributes:
        geometry: the convolution's geometry.
        shape: the weight's shape, (out, in / groups, ...).
        views: K.
        device: whether to prefer the methods for devices.
    """

    geometry: Geometry
    shape: tuple[int, ...]
    views: int
    device: bool = False
    joins: ClassVar[bool] = False

    def gradient_elements(self) -> int:
        return math.prod(self.shape)

    def fan_in(self) -> int:
        return math.prod(self.shape[1:])

    def methods(self) -> tuple[str, ...]:
        order = ("grouped", "loop") if self.gradient_elements() <= 150_000 else ("loop", "grouped")
        if len(self.shape) == 4:
            few = self.geometry.groups == 1 and self.shape[1] <= 3
            order = ("unfold", *order) if few or self.gradient_elements() > 150_000 else (*order, "unfold")
        return ("shifted", *order) if self.device else (*order, "shifted")

    def instantiate(self, x: Tensor, g: Tensor, method: str) -> Tensor:
        """Computes gradients (b, out, in / groups, ...), summed over views and positions.

        Args:
            x: (b*K, in, ...).
            g: (b*K, out, ...).
            method: "grouped", one convolution with a group for each example; "loop", one kernel call per example;
                "unfold", patches (two dimensions only); "shifted", a product for each offset of the kernel; or "any".
                All give the same result up to rounding.
        """
        examples = x.shape[0] // self.views
        method = self.methods()[0] if method == "any" else method
        if method == "shifted":
            return shifted.instantiate(x, g, self.geometry, self.shape, self.views)
        x, g = (t.to(clipping.accumulation_dtype(t.dtype)) for t in (x, g))
        if method == "unfold":
            return self._unfolded(x, g, examples)
        if method == "grouped" and examples > 1:
            return self._grouped(x, g, examples)
        like = x.new_empty(1).expand(self.shape)
        pairs = zip(x.split(self.views), g.split(self.views), strict=True)
        gradients = [self.geometry.backward(gradient, inputs, like, of_weight=True) for inputs, gradient in pairs]
        return torch.stack(gradients) if examples > 1 else gradients[0].unsqueeze(0)

    def _grouped(self, x: Tensor, g: Tensor, examples: int) -> Tensor:
        def side_by_side(tensor: Tensor) -> Tensor:
            split = tensor.reshape(examples, self.views, *tensor.shape[1:]).transpose(0, 1)
            return split.reshape(self.views, examples * tensor.shape[1], *tensor.shape[2:])

        many = replace(self.geometry, groups=self.geometry.groups * examples)
        like = x.new_empty(1).expand(examples * self.shape[0], *self.shape[1:])
        gradients = many.backward(side_by_side(g), side_by_side(x), like, of_weight=True)
        return gradients.reshape(examples, *self.shape)

    def _unfolded(self, x: Tensor, g: Tensor, examples: int) -> Tensor:
        groups, width, positions = self.geometry.groups, math.prod(self.shape[1:]), math.prod(g.shape[2:])
        result = x.new_empty(examples, groups, self.shape[0] // groups, width)
        for images in slices(examples, self.views * groups * width * positions, self.views, on=x.device):
            rows = self._patches(x[images]).reshape(-1, self.views, groups, width, positions)
            gradients = g[images].reshape(-1, self.views, groups, self.shape[0] // groups, positions)
            part = result[images.start // self.views : images.stop // self.views]
            if self.views == 1:
                torch.matmul(gradients[:, 0], rows[:, 0].transpose(-1, -2), out=part)
            else:
                part.copy_(torch.einsum("bkgit,bkgot->bgoi", rows, gradients))
        return result.reshape(examples, *self.shape)

    def _patches(self, x: Tensor) -> Tensor:
        """Patches (N, in * kernel, T)."""
        geometry = self.geometry
        if self.shape[2:] == (1, 1) and not any(geometry.padding):
            return x[:, :, :: geometry.stride[0], :: geometry.stride[1]].flatten(2)
        # Copying a strided view gives the same numbers in a third to two thirds of the time of F.unfold.
        windows = shifted.windows(x, geometry, self.shape)
        return windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.geometry.apply(x, weight, None)

    def total(self, x: Tensor, g: Tensor) -> Tensor:
        return self.geometry.backward(g, x, x.new_empty(1).expand(self.shape), of_weight=True)

    def spread(self) -> float:
        # Each input pixel is in at most one patch per offset of the kernel; the rest is Cauchy-Schwarz.
        return math.prod(self.shape[2:]) ** 0.5

    def positions(self, g: Tensor) -> int:
        return self.views * math.prod(g.shape[2:])

    def has_gram(self) -> bool:
        return len(self.shape) == 4 and self.geometry.groups == 1

    def gram_surely_pays(self, x: Tensor, g: Tensor) -> bool:
        return False  # the Gram matrices of a convolution take several kinds of products

    def gram_pays(self, x: Tensor, g: Tensor) -> bool:
        if not self.has_gram():
            return False
        positions = self.positions(g)
        products = min(self._gram_products(x, g)) + positions**2 * self.shape[0]
        return products <= MOST_GRAM_PRODUCTS * positions * self.gradient_elements()

    def _gram_products(self, x: Tensor, g: Tensor) -> tuple[int, int]:
        """The number of products for the Gram matrix of the patches: via that of the pixels, and directly."""
        positions, pixels = self.positions(g), self.positions(x)
        offsets = math.prod(self.shape[2:])
        return pixels**2 * self.shape[1] + positions**2 * offsets, positions**2 * self.shape[1] * offsets

    def gram_elements(self, x: Tensor, g: Tensor) -> int:
        positions, of_pixels, of_patches = self.positions(g), *self._gram_products(x, g)
        if of_pixels <= of_patches:
            padded = (side + 2 * pad for side, pad in zip(x.shape[2:], self.geometry.padding, strict=True))
            held = (self.views * math.prod(padded)) ** 2 + self.views * x[0].numel()
        else:
            held = positions * self.fan_in()
        return 2 * (held + positions**2 + self.views * g[0].numel())

    def squares_by_gram(self, x: Tensor, g: Tensor) -> Tensor:
        of_pixels, of_patches = self._gram_products(x, g)
        if of_pixels <= of_patches:
            patches = self._gram_of_pixels(x, g)
        else:
            patches = _gram(self._patches(x.double()), self.views)
        gradients = _gram(g.double(), self.views)
        return (patches.reshape(len(gradients), -1) * gradients.reshape(len(gradients), -1)).sum(dim=1)

    def _gram_of_pixels(self, x: Tensor, g: Tensor) -> Tensor:
        """The Gram matrix of the patches: the sum, over offsets of the kernel, of pieces of the pixels' Gram matrix."""
        (rows, columns), (down, right) = self.geometry.padding, self.geometry.stride
        height, width = g.shape[2:]
        border = (columns, columns, rows, rows)
        gram = _gram(x.double(), self.views).unflatten(2, (self.views, *x.shape[2:]))
        gram = gram.unflatten(1, (self.views, *x.shape[2:]))
        # Padding pixels are zeros, and so are their inner products.
        gram = F.pad(gram, (*border, 0, 0, *border))
        patches: Tensor | None = None
        for i in range(self.shape[2]):
            for j in range(self.shape[3]):
                top, left = i * self.geometry.dilation[0], j * self.geometry.dilation[1]
                one = slice(top, top + down * (height - 1) + 1, down)
                two = slice(left, left + right * (width - 1) + 1, right)
                piece = gram[:, :, one, two, :, one, two]
                patches = piece.clone() if patches is None else patches.add_(piece)
        assert patches is not None
        return patches

    def row_squares(self, g: Tensor) -> Tensor:
        return clipping.squared_lengths(g.flatten(2)).unflatten(0, (-1, self.views)).sum(dim=1)

    def scaled(self, g: Tensor, scales: Tensor) -> Tensor:
        return g * scales.to(g.dtype).reshape(1, -1, *[1] * (g.dim() - 2))

    def output_dots(self, y: Tensor, g: Tensor, bias: Tensor | None) -> Tensor:
        positions = g[0, 0].numel()
        dots = torch.bmm(y.reshape(-1, 1, positions), g.reshape(-1, positions, 1)).reshape(g.shape[:2]).double()
        if bias is not None:
            dots -= bias.double() * g.flatten(2).sum(dim=2).double()
        return dots.unflatten(0, (-1, self.views)).sum(dim=1)

    def input_sums(self, x: Tensor, g: Tensor) -> Tensor:
        groups, channels = self.geometry.groups, self.shape[1]
        planes = x.reshape(x.shape[0], groups, channels, *x.shape[2:]).sum(dim=2)
        ones = x.new_ones(groups, 1, *self.shape[2:])
        boxes = replace(self.geometry, groups=groups).apply(planes, ones, None).reshape(x.shape[0], groups, -1, 1)
        sums = torch.matmul(g.reshape(g.shape[0], groups, self.shape[0] // groups, -1), boxes)
        return sums.reshape(-1, self.views, self.shape[0]).double().sum(dim=1)


def _gram(values: Tensor, views: int) -> Tensor:
    """Inner products over channels of all pairs of an example's positions: (b*K, C, ...) to (b, K*T, K*T)."""
    rows = values.flatten(2).unflatten(0, (-1, views)).transpose(1, 2).flatten(2)
    return torch.bmm(rows.transpose(1, 2), rows)


class ConvSite(Site):
    """One call of a convolution on a batch of examples.

    Args:
        weight: (out, in / groups, ...), or (in, out / groups, ...) if transposed.
        bias: (out,) or None.
        geometry: stride, padding, dilation and groups.
    """

    kind = "conv"
    half = True

    def __init__(self, weight: Tensor, bias: Tensor | None, geometry: Geometry):
        super().__init__(weight=weight, bias=bias)
        self._geometry = geometry
        self._outputs: Tensor | None = None

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = self.constant("weight", inputs), self.constant("bias", inputs)
        outputs = self._geometry.apply(inputs, weight, bias)  # type: ignore[arg-type]
        if (
            self.needs_gradient("weight")
            and self.roles["weight"].may_have_form
            and not self._geometry.transposed
            and outputs.dtype == self.operands["weight"].dtype  # half precision is too coarse for the dot products
            and self.tuner.known_method(f"{self.kind} {self.describe()}", self._kernel(self._geometry), outputs)
            == "gram"
        ):
            self._outputs = outputs.detach()
            self._version = outputs._version
        return outputs, (inputs,)

    def backward(self, saved: tuple[Tensor, ...], output_gradients: Tensor, wanted: bool) -> Tensor | None:
        inputs = saved[0]
        if self.needs_gradient("weight"):
            x, g, geometry = inputs, output_gradients, self._geometry
            if geometry.transposed:  # the same sums with inputs and output gradients exchanged
                x, g = g, self._extended(x, g)
                geometry = replace(geometry, transposed=False, output_padding=())
            kernel = self._kernel(geometry)
            outputs, self._outputs = self._outputs, None
            if outputs is not None and outputs._version != self._version:
                outputs = None  # an activation was applied in place
            self.add_weight(kernel, x, g, outputs)
        if self.needs_gradient("bias"):
            sums = output_gradients.flatten(2).sum(dim=2, dtype=clipping.accumulation_dtype(output_gradients.dtype))
            self.add("bias", Instantiated(self.sum_views(sums)))
        if not wanted:
            return None
        weight = self.constant("weight", output_gradients)
        return self._geometry.backward(output_gradients, inputs, weight, of_weight=False)  # type: ignore[arg-type]

    def _kernel(self, geometry: Geometry) -> ConvKernel:
        weight = self.operands["weight"]
        device = _devices.has_device_forms(weight.device)
        return ConvKernel(geometry=geometry, shape=tuple(weight.shape), views=self.views, device=device)

    def _extended(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """The inputs of a transposed convolution, with zeros appended where output padding makes room for more."""
        geometry, kernel = self._geometry, self.operands["weight"].shape[2:]
        far: list[int] = []
        for axis, (step, pad, gap, width) in enumerate(
            zip(geometry.stride, geometry.padding, geometry.dilation, kernel, strict=True), start=2
        ):
            places = (outputs.shape[axis] + 2 * pad - gap * (width - 1) - 1) // step + 1
            far = [0, places - inputs.shape[axis], *far]
        return F.pad(inputs, far) if any(far) else inputs

    def describe(self) -> str:
        geometry = self._geometry
        words = [" x ".join(map(str, self.operands["weight"].shape))]
        for name, usual in (("stride", 1), ("dilation", 1), ("padding", 0)):
            if any(number != usual for number in getattr(geometry, name)):
                words.append(f"{name} {'x'.join(map(str, getattr(geometry, name)))}")
        if geometry.groups != 1:
            words.append(f"{geometry.groups} groups")
        return ("transposed " if geometry.transposed else "") + " ".join(words)


def tap(mode, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """The handler of ``F.conv1d``, ``F.conv2d`` and ``F.conv3d``."""
    return _call(mode, input, weight, bias, groups, stride=stride, padding=padding, dilation=dilation)


def tap_transposed(mode, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """The handler of ``F.conv_transpose1d``, ``F.conv_transpose2d`` and ``F.conv_transpose3d``."""
    moves = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
    return _call(mode, input, weight, bias, groups, **moves)


def _call(mode, inputs: Tensor, weight: Tensor, bias: Tensor | None, groups: int, **moves):
    dimensions = weight.dim() - 2
    if weight.numel() == 0 or inputs.shape[-dimensions:].numel() == 0:
        return NotImplemented
    if isinstance(moves["padding"], str):
        dilation = _per_dimension(moves["dilation"], dimensions)
        inputs, moves["padding"] = _numeric_padding(moves["padding"], inputs, weight, dilation)
    numbers = {name: _per_dimension(value, dimensions) for name, value in moves.items()}
    geometry = Geometry(groups=groups, transposed="output_padding" in moves, **numbers)
    return mode.call(ConvSite(weight, bias, geometry), inputs, dimensions + 1)


def _per_dimension(value, dimensions: int) -> tuple[int, ...]:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * dimensions if len(numbers) == 1 else numbers


def _numeric_padding(padding: str, inputs: Tensor, weight: Tensor, dilation: tuple[int, ...]):
    """Converts "valid" or "same" to numbers. An odd total is padded on the far side first, as torch does."""
    if padding == "valid":
        return inputs, 0
    totals = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    if any(total % 2 for total in totals):
        far = [amount for total in reversed(totals) for amount in (0, total % 2)]
        inputs = F.pad(inputs, far)
    return inputs, tuple(total // 2 for total in totals)
