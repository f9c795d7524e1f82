"""The inputs of one run of the model: one example, its K views, and its target once per view.

Inputs and targets are tensors, or tuples, lists or dicts of tensors. The first axis of every tensor is the example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sfumato._checks import SfumatoError
from sfumato.gradients.walk import named_tensors

# A tensor, or a tuple, list or dict of tensors.
Tree = Any


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Applies the function to every tensor of a structure, with the corresponding tensors of the others."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {key: tree_map(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return tuple(tree_map(function, *values) for values in zip(tree, *others, strict=True))
    raise SfumatoError(
        f"inputs and targets must be tensors, or tuples or dicts of tensors, got {type(tree).__name__}",
        "convert it with torch.as_tensor",
    )


def in_precision(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts real numbers to this type, complex ones to the corresponding complex type, and leaves others alone."""
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def tree_tensors(tree: Tree) -> list[Tensor]:
    """All tensors of a structure, in order."""
    found: list[Tensor] = []
    tree_map(found.append, tree)
    return found


def batch_size(inputs: Tree, targets: Tree, views: int) -> int:
    """Returns the number B of examples after checking that all tensors agree on it, and inputs on K.

    Args:
        inputs: tensors (B, ...) if views is 1, (B, K, ...) otherwise.
        targets: tensors (B, ...).
        views: K.
    """
    first = tree_tensors(inputs)
    if not first:
        raise SfumatoError("inputs hold no tensor", "give at least one tensor with one row per example")
    if first[0].dim() == 0:
        raise SfumatoError("inputs must have an axis of examples, got a tensor without axes", "give a batch (B, ...)")
    size = first[0].shape[0]
    for name, tree in (("inputs", inputs), ("targets", targets)):
        for tensor in tree_tensors(tree):
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
    """Returns weights (B,) in float64 after checking that they lie between 0 (padding) and 1."""
    remedy = "give each example a weight from 0 to 1, and padding the weight 0"
    if not isinstance(weights, Tensor) or weights.shape != (examples,):
        got = f"shape {tuple(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
        raise SfumatoError(f"weights must be a tensor of shape ({examples},), got {got}", remedy)
    if weights.dtype == torch.bool:
        return weights.double()
    if not weights.is_floating_point():
        raise SfumatoError(f"weights must be booleans or real numbers, got {weights.dtype}", remedy)
    if not bool(((weights >= 0) & (weights <= 1)).all()):
        raise SfumatoError("weights must lie between 0 and 1, got numbers outside this range", remedy)
    return weights.double()


def signature(tree: Tree) -> tuple:
    """A hashable description of a structure: shapes, types and devices, without values and number of examples."""
    if isinstance(tree, dict):
        return tuple((key, signature(value)) for key, value in tree.items())
    if isinstance(tree, (tuple, list)):
        return tuple(signature(value) for value in tree)
    return (tuple(tree.shape[1:]), tree.dtype, str(tree.device))


def call_model(model: nn.Module, by_name: dict[str, Tensor], inputs: Tree) -> Any:
    """Runs the model with other tensors in place of its parameters and buffers; the model is left unchanged.

    Args:
        by_name: the tensors, by first name of each parameter or buffer; the model's own are used for missing names.
        inputs: a tensor, a tuple (positional arguments) or a dict (keyword arguments).
    """
    # Substitutes every name of a tied parameter explicitly: torch's own handling of ties leaves the substitute in a
    # module that is reachable under two names.
    places = named_tensors(model)
    by_tensor = {id(tensor): by_name[name] for name, tensor in places if name in by_name}
    substitutes = {name: by_tensor[id(tensor)] for name, tensor in places if id(tensor) in by_tensor}
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
    """Returns the loss of one example: the mean over its K views, with the given parameters and buffers.

    Args:
        inputs: one example's inputs, without the axis of examples: (...) if views is 1, (K, ...) otherwise.
        targets: one example's targets, (...).

    Returns:
        () scalar.
    """
    if views == 1:
        inputs = tree_map(lambda tensor: tensor.unsqueeze(0), inputs)
    targets = tree_map(lambda tensor: torch.stack([tensor] * views) if views > 1 else tensor.unsqueeze(0), targets)
    value = loss(call_model(model, tensors_by_name, inputs), targets)
    if not isinstance(value, Tensor) or value.dim() != 0 or not value.is_floating_point():
        shape = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise SfumatoError(
            f"loss must return one floating-point number, the mean over views, got {shape}",
            "use a loss with reduction='mean'",
        )
    return value
