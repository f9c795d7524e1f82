"""Linear maps: ``y = x W^T + b`` at T positions of each example."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.products import batched_product, product
from sfumato.gradients.sites import Site
from sfumato.gradients.sites.forms import MOST_GRAM_PRODUCTS
from sfumato.gradients.use import Instantiated, RowMap, RowStatistics, rounding, unit_roundoff

# Larger activations would need a factor so small that it could be subnormal.
_LARGEST_PLAIN_NORM = 1e15


class OuterProduct:
    """Gradients ``G_b = g_b a_b^T`` of a weight (d, p) used at one position, which are never formed.

    ``|G_b|^2 = |g_b|^2 |a_b|^2`` exactly, and ``sum_b f_b G_b = g^T diag(f) a`` is one ordinary matrix product.

    Args:
        activations: (B, p).
        output_gradients: (B, d).

    Attributes:
        bias: the gradients of the bias beside the weight, whose norms both need.
    """

    def __init__(self, activations: Tensor, output_gradients: Tensor):
        self._activations = activations
        self._output_gradients = output_gradients
        self.bias = Instantiated(output_gradients)

    @cached_property
    def _activation_squares(self) -> Tensor:
        return clipping.squared_norms(self._activations)

    def squared_norms(self) -> Tensor:
        squares = self._activation_squares * self.bias.squared_norms()
        squares *= (1 + 3 * unit_roundoff(self._output_gradients)) ** 2
        return squares.masked_fill_(self._activation_squares > _LARGEST_PLAIN_NORM**2, torch.inf)

    def weighted_sum(self, factors: Tensor, *, excluding: bool = True) -> Tensor:
        activations, gradients = self._activations, self._output_gradients
        if excluding:
            activations, gradients = (clipping.without_excluded(t, factors) for t in (activations, gradients))
        return (gradients * factors.to(gradients.dtype)[:, None]).t() @ activations

    def instantiate(self, rows: Tensor | None = None) -> Tensor:
        a, g = self._activations, self._output_gradients
        a, g = (a, g) if rows is None else (a[rows], g[rows])
        return g[:, :, None] * a[:, None, :]

    def row_statistics(self, rows: RowMap) -> RowStatistics:
        a, g = self._activations.double(), self._output_gradients.double()
        squares = clipping.squared_norms(a)
        return RowStatistics(
            squares=squares * (g * rows.scales).square().sum(dim=1),
            dots=g * (a @ rows.values.double().t()),
            sums=g * a.sum(dim=1, keepdim=True),
            rounding=rounding((squares * clipping.squared_norms(g * rows.sizes)).sqrt(), self._output_gradients, 0),
            dots_rounding=torch.zeros_like(g),
        )

    def bytes(self) -> int:
        return sum(t.nbytes for t in (self._activations, self._output_gradients))


@dataclass(frozen=True)
class LinearKernel:
    """Per-example gradients of a weight (d, p) used at T positions, ``G_b = sum_t g_bt a_bt^T`` (`use.Kernel`).

    Inputs are (b, T, p) and output gradients (b, T, d); views are treated as further positions.
    """

    outputs: int
    inputs: int
    views: int = 1
    joins: ClassVar[bool] = True

    def gradient_elements(self) -> int:
        return self.outputs * self.inputs

    def fan_in(self) -> int:
        return self.inputs

    def methods(self) -> tuple[str, ...]:
        return ("product",)

    def instantiate(self, x: Tensor, g: Tensor, method: str) -> Tensor:
        return batched_product(g.transpose(1, 2), x)

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    def total(self, x: Tensor, g: Tensor) -> Tensor:
        return product(g.reshape(-1, self.outputs).t(), x.reshape(-1, self.inputs))

    def spread(self) -> float:
        return 1.0

    def positions(self, g: Tensor) -> int:
        return g.shape[1]

    def has_gram(self) -> bool:
        return True

    def gram_pays(self, x: Tensor, g: Tensor) -> bool:
        return x.shape[1] * (self.outputs + self.inputs) <= MOST_GRAM_PRODUCTS * self.gradient_elements()

    def gram_surely_pays(self, x: Tensor, g: Tensor) -> bool:
        return 2 * x.shape[1] * (self.outputs + self.inputs) <= self.gradient_elements()

    def gram_elements(self, x: Tensor, g: Tensor) -> int:
        return 2 * (2 * x.shape[1] ** 2 + x[0].numel() + g[0].numel())

    def squares_by_gram(self, x: Tensor, g: Tensor) -> Tensor:
        x, g = x.double(), g.double()
        return (torch.bmm(x, x.transpose(1, 2)) * torch.bmm(g, g.transpose(1, 2))).sum(dim=(1, 2))

    def row_squares(self, g: Tensor) -> Tensor:
        return clipping.squared_lengths(g.transpose(1, 2))

    def scaled(self, g: Tensor, scales: Tensor) -> Tensor:
        return g * scales.to(g.dtype)

    def output_dots(self, y: Tensor, g: Tensor, bias: Tensor | None) -> Tensor:
        dots = torch.einsum("bto,bto->bo", y, g).double()
        return dots if bias is None else dots - bias.double() * g.sum(dim=1).double()

    def input_sums(self, x: Tensor, g: Tensor) -> Tensor:
        return torch.bmm(g.transpose(1, 2), x.sum(dim=2, keepdim=True))[:, :, 0].double()


class LinearSite(Site):
    """One call of ``F.linear`` on a batch of examples.

    Args:
        weight: (d, p), as used in the forward: a parameter or a function of parameters.
        bias: (d,) or None.
    """

    kind = "linear"
    half = True

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__(weight=weight, bias=bias)

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = self.constant("weight", inputs), self.constant("bias", inputs)
        return F.linear(inputs, weight, bias), (inputs,)  # type: ignore[arg-type]

    def backward(self, saved: tuple[Tensor, ...], output_gradients: Tensor, wanted: bool) -> Tensor | None:
        dtype = clipping.accumulation_dtype(output_gradients.dtype)
        gradients = output_gradients.reshape(self.examples, -1, output_gradients.shape[-1])
        single = gradients.shape[1] == 1  # nothing to add up, so nothing to copy
        bias = None
        if self.needs_gradient("weight"):
            outputs, width = self.operands["weight"].shape
            activations = saved[0].reshape(self.examples, -1, width)
            if single and self.roles["weight"].uses == 1:
                self.method = "outer product"
                weight = OuterProduct(activations[:, 0].to(dtype), gradients[:, 0].to(dtype))
                self.add("weight", weight)
                bias = weight.bias
            else:
                self.add_weight(LinearKernel(outputs, width), activations, gradients)
        if self.needs_gradient("bias"):
            if bias is None:
                bias = Instantiated(gradients[:, 0].to(dtype) if single else gradients.sum(dim=1, dtype=dtype))
            self.add("bias", bias)
        return output_gradients @ self.constant("weight", output_gradients) if wanted else None  # type: ignore[operator]


def tap(mode, input, weight, bias=None):
    """The handler of ``F.linear``."""
    if weight.dim() != 2:
        return NotImplemented
    return mode.call(LinearSite(weight, bias), input, 1)


def tap_product(mode, input, other):
    """The handler of ``torch.matmul`` and equivalent functions: inputs (..., p) times a matrix (p, d)."""
    if not isinstance(other, Tensor) or other.dim() != 2 or input.dim() < 2:
        return NotImplemented
    return mode.call(LinearSite(other.t(), None), input)


def tap_added_product(mode, input, mat1, mat2, *, beta=1, alpha=1):
    """The handler of ``torch.addmm``: a bias, inputs (T, p) and a matrix (p, d)."""
    if beta != 1 or alpha != 1 or input.dim() != 1:
        return NotImplemented
    return mode.call(LinearSite(mat2.t(), input), mat1)
