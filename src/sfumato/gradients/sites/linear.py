"""Linear maps: ``y = x W^T + b`` at T positions of each example."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.sites import Instantiated, Use

# Activations above this are normalised before the product, so that no factor becomes a denormal number.
_LARGEST_PLAIN_NORM = 1e15


class OuterProduct:
    """Gradients ``G_b = g_b a_b^T`` of a weight (d, p) used at one position: never formed.

    ``|G_b|^2 = |g_b|^2 |a_b|^2`` exactly, and ``sum_b f_b G_b = g^T diag(f) a``, one ordinary matrix product.

    Args:
        activations: (B, p).
        output_gradients: (B, d).
    """

    def __init__(self, activations: Tensor, output_gradients: Tensor):
        self._activations = activations
        self._output_gradients = output_gradients

    def squared_norms(self) -> Tensor:
        return clipping.squared_norms(self._activations) * clipping.squared_norms(self._output_gradients)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        activations = clipping.without_excluded(self._activations, factors)
        output_gradients = clipping.without_excluded(self._output_gradients, factors)
        norms = clipping.squared_norms(activations).sqrt()
        if bool((norms > _LARGEST_PLAIN_NORM).any()):
            norms = norms.clamp_min(torch.finfo(torch.float64).tiny)
            activations = (activations.double() / norms[:, None]).to(activations.dtype)
            factors = factors * norms
        scaled = (output_gradients.double() * factors[:, None]).to(output_gradients.dtype)
        return scaled.t() @ activations

    def instantiate(self) -> Tensor:
        return self._output_gradients[:, :, None] * self._activations[:, None, :]

    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self._activations, self._output_gradients))


class LinearSite:
    """One call of ``F.linear`` on a batch of examples.

    Args:
        weight: (d, p), as the forward used it: a parameter or a function of parameters.
        bias: (d,) or None.
        examples: B.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, examples: int):
        self._weight, self._bias, self._examples = weight, bias, examples
        self._uses: list[tuple[Tensor, Use]] = []

    def record(self, inputs: Tensor, output_gradients: Tensor) -> None:
        dtype = clipping.accumulation_dtype(output_gradients.dtype)
        activations = inputs.detach().reshape(self._examples, -1, inputs.shape[-1]).to(dtype)
        gradients = output_gradients.detach().reshape(self._examples, -1, output_gradients.shape[-1]).to(dtype)
        if self._weight.requires_grad:
            if activations.shape[1] == 1:
                use: Use = OuterProduct(activations[:, 0], gradients[:, 0])
            else:
                use = Instantiated(torch.bmm(gradients.transpose(1, 2), activations))
            self._uses.append((self._weight, use))
        if self._bias is not None and self._bias.requires_grad:
            self._uses.append((self._bias, Instantiated(gradients.sum(dim=1))))

    def uses(self) -> list[tuple[Tensor, Use]]:
        return self._uses
