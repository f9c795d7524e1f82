"""Layer norm and root-mean-square norm: one weight and one bias per element of a normalised row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.sites import Site
from sfumato.gradients.use import Instantiated

# From this many numbers per example on, a kernel call for each example is faster than tiles of several examples.
_OWN_CALL = 1 << 15
# Numbers in such a tile, which fits in the processor's cache without too many calls.
_TILE = 1 << 18


class RowNormSite(Site):
    """One call of a norm over rows of n numbers.

    Args:
        weight, bias: of n numbers, or None.
        shape: the last axes of the inputs, which form a row.
        epsilon: added to the variance, or to the mean square.
        centred: whether the row's mean is subtracted, as in a layer norm.
    """

    kind = "norm"

    def __init__(
        self, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...], epsilon: float, *, centred: bool
    ):
        super().__init__(weight=weight, bias=bias)
        self._width, self._epsilon, self._centred = math.prod(shape), epsilon, centred

    def _rows(self, values: Tensor) -> Tensor:
        """(rows, n), in float32 at least."""
        return values.to(clipping.accumulation_dtype(values.dtype)).reshape(-1, self._width).contiguous()

    def _row(self, role: str, like: Tensor) -> Tensor | None:
        operand = self.constant(role, like)
        return None if operand is None else operand.reshape(-1).contiguous()

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = self._rows(inputs)
        weight, bias = self._row("weight", x), self._row("bias", x)
        if self._centred:
            outputs, mean, scale = torch.native_layer_norm(x, [self._width], weight, bias, self._epsilon)
        else:
            squares = torch.linalg.vector_norm(x, dim=1, keepdim=True).square_()
            scale = squares.div_(self._width).add_(self._epsilon).rsqrt_()
            outputs, mean = x * scale, torch.zeros_like(scale)
            outputs = outputs if weight is None else outputs.mul_(weight)
        return outputs.reshape(inputs.shape).to(inputs.dtype), (inputs, mean, scale)

    def backward(self, saved: tuple[Tensor, ...], output_gradients: Tensor, wanted: bool) -> Tensor | None:
        inputs, mean, scale = saved
        x, g = self._rows(inputs), self._rows(output_gradients)
        for role, values in zip(("weight", "bias"), self._operand_gradients(x, g, mean, scale), strict=True):
            if self.needs_gradient(role):
                self.add(role, Instantiated(values.reshape(self.examples, *self.operands[role].shape)))
        if not wanted:
            return None
        weight = self._row("weight", x)
        of_inputs = torch.ops.aten.native_layer_norm_backward(
            g, x, [self._width], mean, scale, weight, None, [True, False, False]
        )[0]
        if not self._centred:  # the kernel subtracts the mean of g * weight, times the scale; add it back
            sums = g.sum(dim=1, keepdim=True) if weight is None else (g @ weight).unsqueeze(1)
            of_inputs.addcmul_(sums, scale, value=1 / self._width)
        return of_inputs.reshape(output_gradients.shape).to(output_gradients.dtype)

    def _operand_gradients(self, x: Tensor, g: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """(B, n) each: the sums over rows of ``g (x - mean) scale``, and of g."""
        x, g, mean, scale = (t.reshape(self.examples, -1, t.shape[-1]) for t in (x, g, mean, scale))
        if not self.needs_gradient("weight"):
            return g[:, 0, :0], g.sum(dim=1)
        if x[0].numel() >= _OWN_CALL and x.device.type == "cpu":
            like, mask = x.new_empty(self._width), [False, True, self.needs_gradient("bias")]
            gradients = [
                torch.ops.aten.native_layer_norm_backward(*one, like, like, mask)[1:]
                for one in zip(g, x, [[self._width]] * len(x), mean, scale, strict=True)
            ]
            weights, biases = zip(*gradients, strict=True)
            return torch.stack(weights), torch.stack(biases) if mask[2] else weights[0]
        of_weight = x.new_empty(self.examples, self._width)
        step = max(1, _TILE // x[0].numel()) if x.device.type == "cpu" else self.examples
        workspace = torch.empty_like(x[:step])
        pieces = zip(*(t.split(step) for t in (x, g, mean, scale, of_weight)), strict=True)
        for one_x, one_g, one_mean, one_scale, sums in pieces:
            tile = torch.sub(one_x, one_mean, out=workspace[: len(sums)])
            torch.sum(tile.mul_(one_scale).mul_(one_g), dim=1, out=sums)
        return of_weight, g.sum(dim=1) if self.needs_gradient("bias") else of_weight

    def describe(self) -> str:
        return f"rows of {self._width}"


def _call(mode, inputs: Tensor, shape, weight, bias, epsilon: float, *, centred: bool):
    shape = tuple(shape)
    if inputs.numel() == 0 or not shape or tuple(inputs.shape[-len(shape) :]) != shape:
        return NotImplemented
    return mode.call(RowNormSite(weight, bias, shape, epsilon, centred=centred), inputs, len(shape))


def tap_layer_norm(mode, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """The handler of ``F.layer_norm``."""
    return _call(mode, input, normalized_shape, weight, bias, eps, centred=True)


def tap_rms_norm(mode, input, normalized_shape, weight=None, eps=None):
    """The handler of ``F.rms_norm``."""
    if eps is None:
        if input.dtype not in (torch.float32, torch.float64):
            return NotImplemented  # the library's default has differed between versions
        eps = torch.finfo(input.dtype).eps
    return _call(mode, input, normalized_shape, weight, None, eps, centred=False)
