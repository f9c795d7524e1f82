"""Losses that cannot be computed for one example alone, refused before any private example is used.

A clipped sum uses only each example's own loss. Whatever a loss computes across the examples of a batch has no effect:
class weights that a mean divides out again, and comparisons of one example with others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sfumato._checks import SfumatoError
from sfumato.gradients.checks.external_models import LogitsLoss
from sfumato.gradients.examples import Tree, call_model, tree_map, tree_tensors

_WEIGHTED = (nn.CrossEntropyLoss, nn.NLLLoss)
_WEIGHTED_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)
_SCALES = (0.0, 1.0, 10.0)
"""Scales of the noise added to a model's outputs, which may be equal before training; parameters get a tenth of it."""

_NEARLY = 1e-3
"""Tolerance around 2 for the ratio of the loss of two copies to the loss of one."""


def refuse_divided_weights(loss: Any) -> None:
    """Refuses class weights by which a mean divides: for one example they cancel."""
    weighted = isinstance(loss, _WEIGHTED) and loss.weight is not None and loss.reduction == "mean"
    if isinstance(loss, partial) and loss.func in _WEIGHTED_FUNCTIONS:
        weighted = _is_weighted_mean(loss.keywords)
    if weighted:
        _refuse_divided()


def _is_weighted_mean(arguments: Mapping[str, Any]) -> bool:
    return arguments.get("weight") is not None and arguments.get("reduction", "mean") == "mean"


def _refuse_divided() -> NoReturn:
    raise SfumatoError(
        "the loss has class weights that its mean divides out again: for one example they have no effect",
        "give lambda outputs, targets: torch.nn.functional.cross_entropy(outputs, targets, weight=weight, "
        "reduction='none').mean(), or train with `class_prevalence`",
    )


class _Weights(TorchFunctionMode):
    """Refuses such weights wherever a loss uses them with targets of a single class, which divides them out."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _WEIGHTED_FUNCTIONS:
            arguments: dict[str, Any] = {
                **dict(zip(("input", "target", "weight"), args, strict=False)),
                **(kwargs or {}),
            }
            classes = arguments["target"]
            if _is_weighted_mean(arguments) and not classes.is_floating_point() and len(classes.unique()) == 1:
                _refuse_divided()
        return func(*args, **(kwargs or {}))


def refuse_beyond(model: nn.Module, loss: Any, inputs: Tree, smallest: int | None, largest: int | None) -> None:
    """Refuses targets outside the classes of the outputs (1, C), if the loss is a cross-entropy of torch.

    Args:
        inputs: synthetic inputs (E, ...), on the model's device.
        smallest, largest: the smallest and largest target; None if targets are not integers.
    """
    kind = loss.func if isinstance(loss, partial) else loss
    if smallest is None or largest is None or not (isinstance(kind, _WEIGHTED) or kind in _WEIGHTED_FUNCTIONS):
        return
    state = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
    outputs: Any = None
    with torch.no_grad(), suppress(Exception):  # which the self-check reports
        outputs = call_model(model, state, tree_map(lambda one: one[:1], inputs))
    outputs = getattr(outputs, "logits", outputs)
    if isinstance(outputs, Tensor) and outputs.dim() == 2 and not 0 <= smallest <= largest < outputs.shape[1]:
        raise SfumatoError(
            f"the targets lie between {smallest} and {largest}, but the model has {outputs.shape[1]} outputs, for "
            f"targets from 0 to {outputs.shape[1] - 1}",
            "make its last layer return one number per class, or number the classes from 0",
        )


def refuse_constant(
    model: nn.Module, loss: Callable[[Any, Tree], Tensor], inputs: Tree, targets: Tree, views: int
) -> None:
    """Refuses a loss that is constant on one example, such as one that compares the examples of a batch.

    Args:
        inputs: synthetic inputs, (E, ...) if views is 1, (E, K, ...) otherwise.
        targets: (E, ...).
    """
    state = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    generator, tried = torch.Generator().manual_seed(0), False
    for row in range(len(tree_tensors(inputs)[0])):
        rows = slice(row, row + 1)
        example = tree_map(lambda one, rows=rows: one[rows] if views == 1 else one[rows].squeeze(0), inputs)
        target = tree_map(lambda one, rows=rows: one[rows].expand(views, *one.shape[1:]), targets)
        with torch.no_grad():
            outputs = call_model(model, state, example)
        of_outputs = isinstance(outputs, Tensor) and outputs.is_floating_point()
        for scale in _SCALES:
            if of_outputs:
                leaves = {"outputs": _perturbed(outputs, scale, generator)}
                moved_outputs = leaves["outputs"]
            else:  # an object, which may hold the loss itself
                leaves = {name: _perturbed(state[name], scale / 10, generator) for name in trained}
                moved_outputs = call_model(model, state | leaves, example)
            with _Weights():
                value = loss(moved_outputs, target)
            if not value.requires_grad:
                continue
            tried = True
            for gradient in torch.autograd.grad(value, tuple(leaves.values()), allow_unused=True):
                if gradient is not None and not bool((gradient == 0).all()):  # nan too
                    return
    if tried:
        raise SfumatoError(
            "the loss is constant on one example, so training would follow noise only",
            "give a loss of each example's own outputs and target; a loss that compares the examples of a batch, or is "
            "relative to their mean, has no gradient for a single example",
        )


def refuse_sum(model: nn.Module, loss: Callable[[Any, Tree], Tensor], inputs: Tree, targets: Tree, views: int) -> None:
    """Refuses a loss that is a sum over its first axis, such as one with `reduction="sum"`; it must be the mean.

    Repeating outputs and target along this axis doubles a sum, but leaves a mean unchanged.

    Args:
        inputs, targets: as in `refuse_constant`.
    """
    state = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
    ratios = []
    for row in range(len(tree_tensors(inputs)[0])):
        example = tree_map(lambda one, row=row: one[row : row + 1] if views == 1 else one[row], inputs)
        target = tree_map(lambda one, row=row: one[row : row + 1].expand(views, *one.shape[1:]), targets)
        with torch.no_grad():
            outputs = call_model(model, state, example)
            outputs = outputs.logits if isinstance(loss, LogitsLoss) and not isinstance(outputs, Tensor) else outputs
            if not isinstance(outputs, Tensor) or not outputs.dim():
                return
            try:
                once = float(loss(outputs, target))
                twice = float(loss(torch.cat([outputs, outputs]), tree_map(lambda one: torch.cat([one, one]), target)))
            except SfumatoError:
                raise
            except Exception:  # a loss that requires exactly as many rows as views cannot be checked
                return
        if math.isfinite(once) and once != 0:
            ratios.append(twice / once)
    if ratios and all(abs(ratio - 2) < _NEARLY for ratio in ratios):
        raise SfumatoError(
            f"{_loss_name(loss)} is a sum over its first axis (reduction='sum') and must be the mean: for an example "
            "repeated twice it is twice the loss of one",
            "give it with reduction='mean', such as torch.nn.CrossEntropyLoss(), or divide it by len(outputs)",
        )


def _loss_name(loss: Any) -> str:
    loss = loss.loss if isinstance(loss, LogitsLoss) else loss
    kind = loss.func.__name__ if isinstance(loss, partial) else type(loss).__name__
    return f"loss {kind}" if isinstance(loss, (nn.Module, partial)) else "loss"


def _perturbed(value: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """An autograd leaf with values near the given ones."""
    return (value.detach() + scale * torch.randn(value.shape, generator=generator).to(value)).requires_grad_()
