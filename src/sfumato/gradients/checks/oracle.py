"""The oracle: the definition of the clipped sum, computed one example at a time.

It shares no path with the fast computation: no vmap, no taps, no sites. (Frozen batch norm is computed as an affine
map, because torch's own backward is unreliable.) The self-check and the tests compare the engine with it, and the tests
compare it with finite differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.gradients.examples import Tree, call_model, in_precision, tree_map, tree_tensors
from sfumato.gradients.frozen import FrozenNorms


def clipped_sum(
    model: nn.Module,
    loss: Callable[[Any, Tree], Tensor],
    inputs: Tree,
    targets: Tree,
    *,
    max_norm: float,
    views: int = 1,
    dtype: torch.dtype | None = None,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Computes ``sum_b min(1, C / |G_b|) G_b``, where ``G_b`` is the gradient of example b's mean loss over K views.

    Args:
        inputs: tensors (B, ...), or (B, K, ...) if views is K > 1.
        targets: tensors (B, ...).
        dtype: if given, parameters, buffers and inputs are converted to it first.

    Returns:
        gradients by name, norms (B,), losses (B,): all float64.
    """

    def converted(tensor: Tensor) -> Tensor:
        return tensor.detach() if dtype is None else in_precision(tensor.detach(), dtype)

    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    total = {name: torch.zeros_like(model.get_parameter(name), dtype=torch.float64) for name in trainable}
    norms, losses = [], []
    for index in range(tree_tensors(inputs)[0].shape[0]):
        state = {name: converted(p) for name, p in model.named_parameters()}
        state |= {name: converted(buffer).clone() for name, buffer in model.named_buffers()}
        for name in trainable:
            state[name].requires_grad_()
        example = tree_map(lambda tensor, row=index: converted(tensor[row]).clone(), inputs)
        target = tree_map(lambda tensor, row=index: converted(tensor[row]), targets)
        value = _mean_loss(model, loss, state, example, target, views)
        gradients = _gradients(value, {name: state[name] for name in trainable})
        norm = torch.sqrt(sum((g.square().sum() for g in gradients.values()), torch.zeros(()).double()))
        if bool(torch.isfinite(norm)) and bool(torch.isfinite(value)):
            for name, gradient in gradients.items():
                total[name] += gradient * min(1.0, max_norm / float(norm)) if float(norm) > 0 else 0.0
        norms.append(norm)
        losses.append(value.detach().double())
    return total, torch.stack(norms), torch.stack(losses)


def _mean_loss(model, loss, state, example: Tree, target: Tree, views: int) -> Tensor:
    # Run one example as two copies: torch's frozen batch norm on CPU was found to return wrong gradients for a single
    # row, and for weights with strides, hence also the mode. The mean loss of two copies is the loss of one.
    rows = views if views > 1 else 2
    if views == 1:
        example = tree_map(lambda tensor: torch.stack([tensor, tensor]), example)
    target = tree_map(lambda tensor: torch.stack([tensor] * rows), target)
    with FrozenNorms():
        return loss(call_model(model, state, example), target)


def _gradients(value: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    if not value.requires_grad:
        return {}
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {
        name: (gradient.to_dense() if gradient.is_sparse else gradient).double()
        for name, gradient in zip(leaves, gradients, strict=True)
        if gradient is not None
    }
