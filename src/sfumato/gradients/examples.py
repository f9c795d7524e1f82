"""What one call of the model sees: one example, its K views, and its target once per view.

Inputs and targets are tensors, or tuples, lists or dicts of them, and every tensor's first axis is the example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sfumato._checks import SfumatoError
from sfumato.gradients.walk import named_tensors

# A tensor, or a tuple, list or dict of such.
Tree = Any


def each(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The same structure with the function applied to every tensor, with those of the others that stand there."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {key: each(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return tuple(each(function, *values) for values in zip(tree, *others, strict=True))
    raise SfumatoError(
        f"inputs and targets must be tensors, or tuples or dicts of tensors, got {type(tree).__name__}",
        "convert it with torch.as_tensor",
    )


def in_precision(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Real numbers in this type, complex ones in that of such pairs, any others as they are."""
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def tensors(tree: Tree) -> list[Tensor]:
    """All tensors of a structure, in order."""
    found: list[Tensor] = []
    each(found.append, tree)
    return found


def batch_size(inputs: Tree, targets: Tree, views: int) -> int:
    """The number B of examples, after checking that every tensor agrees on it, and on K.

    Args:
        inputs: tensors (B, ...) if views is 1, (B, K, ...) otherwise.
        targets: tensors (B, ...).
        views: K.
    """
    first = tensors(inputs)
    if not first:
        raise SfumatoError("inputs hold no tensor", "give at least one tensor with one row per example")
    if first[0].dim() == 0:
        raise SfumatoError("inputs must have an axis of examples, got a tensor without axes", "give a batch (B, ...)")
    size = first[0].shape[0]
    for name, tree in (("inputs", inputs), ("targets", targets)):
        for tensor in tensors(tree):
            if tensor.dim() == 0 or tensor.shape[0] != size:
                raise SfumatoError(
                    f"{name} of shape {tuple(tensor.shape)} do not have {size} examples along their first axis",
                    "give inputs and targets with one row per example",
                )
    for tensor in first:
        if views > 1 and (tensor.dim() < 2 or tensor.shape[1] != views):
            raise SfumatoError(
                f"inputs of shape {tuple(tensor.shape)} do not have views={views} along their second axis",
                f"give inputs of shape (B, {views}, ...)",
            )
    return size


def checked_weights(weights: Tensor, examples: int) -> Tensor:
    """Weights (B,) from 0, for padding, to 1, after checking that they are, in float64."""
    remedy = "give 1 for each example, or less of it, and 0 for padding"
    if not isinstance(weights, Tensor) or weights.shape != (examples,):
        got = f"shape {tuple(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
        raise SfumatoError(f"weights must be a tensor of shape ({examples},), got {got}", remedy)
    if weights.dtype == torch.bool:
        return weights.double()
    if not weights.is_floating_point():
        raise SfumatoError(f"weights must be booleans or real numbers, got {weights.dtype}", remedy)
    if not bool(((weights >= 0) & (weights <= 1)).all()):
        raise SfumatoError("weights must lie between 0 and 1, got other numbers among them", remedy)
    return weights.double()


def signature(tree: Tree) -> tuple:
    """What a structure looks like apart from its values and its number of examples; hashable."""
    if isinstance(tree, dict):
        return tuple((key, signature(value)) for key, value in tree.items())
    if isinstance(tree, (tuple, list)):
        return tuple(signature(value) for value in tree)
    return (tuple(tree.shape[1:]), tree.dtype, str(tree.device))


def call(model: nn.Module, by_name: dict[str, Tensor], inputs: Tree) -> Any:
    """The model's outputs with other tensors in place of its parameters and buffers; it comes back as it was.

    Args:
        by_name: by the first name of each parameter or buffer; one that is missing is the model's own.
        inputs: a tensor, or a tuple (positional arguments) or a dict (keyword arguments).
    """
    # Every module once, and every place that a tied parameter has: torch's own way of following ties leaves a module
    # that is reachable by two names with the substitute.
    places = named_tensors(model)
    own = {id(tensor): by_name[name] for name, tensor in places if name in by_name}
    substitutes = {name: own[id(tensor)] for name, tensor in places if id(tensor) in own}
    if isinstance(inputs, dict):
        return functional_call(model, substitutes, (), inputs, tie_weights=False)
    return functional_call(model, substitutes, inputs if isinstance(inputs, tuple) else (inputs,), tie_weights=False)


def loss_of_one(
    model: nn.Module,
    loss: Callable[[Any, Tree], Tensor],
    tensors_by_name: dict[str, Tensor],
    inputs: Tree,
    targets: Tree,
    views: int,
) -> Tensor:
    """The loss of one example: the model on its K views with these parameters and buffers, the mean over views.

    Args:
        inputs: one example's, without the axis of examples: (...) if views is 1, (K, ...) otherwise.
        targets: one example's, (...).

    Returns:
        () scalar.
    """
    if views == 1:
        inputs = each(lambda tensor: tensor.unsqueeze(0), inputs)
    targets = each(lambda tensor: torch.stack([tensor] * views) if views > 1 else tensor.unsqueeze(0), targets)
    value = loss(call(model, tensors_by_name, inputs), targets)
    if not isinstance(value, Tensor) or value.dim() != 0 or not value.is_floating_point():
        shape = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise SfumatoError(
            f"loss must return one floating-point number, the mean over views, got {shape}",
            "use a loss with reduction='mean'",
        )
    return value
