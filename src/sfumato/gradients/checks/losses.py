"""Losses that one example cannot carry, named before any private example is touched.

A clipped sum is made of each example's own loss. Whatever a loss does among the examples of a batch is gone: class
weights that a mean divides out again, and comparisons of one example with others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError
from sfumato.gradients.examples import Tree, call, each, tensors

_WEIGHTED = (nn.CrossEntropyLoss, nn.NLLLoss)
_WEIGHTED_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)
_SCALES = (0.0, 1.0, 10.0)
"""Of what is added to a model's outputs, which may be all alike before training."""


def refuse_divided_weights(loss: Any) -> None:
    """Refuse weights of classes by which a mean divides again: of one example it is what it is without them."""
    weighted = isinstance(loss, _WEIGHTED) and loss.weight is not None and loss.reduction == "mean"
    if isinstance(loss, partial) and loss.func in _WEIGHTED_FUNCTIONS:
        given = loss.keywords
        weighted = given.get("weight") is not None and given.get("reduction", "mean") == "mean"
    if weighted:
        raise SfumatoError(
            "loss has class weights that its mean divides out again: of one example it is the same without them",
            "give lambda outputs, targets: torch.nn.functional.cross_entropy(outputs, targets, weight=weight, "
            "reduction='none').mean(), or train with `class_prevalence`",
        )


def refuse_constant(
    model: nn.Module, loss: Callable[[Any, Tree], Tensor], inputs: Tree, targets: Tree, views: int
) -> None:
    """Refuse a loss that is constant on one example, such as one that compares the examples of a batch.

    Args:
        inputs: made-up ones, (E, ...) if views is 1, (E, K, ...) otherwise.
        targets: (E, ...).
    """
    state = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
    generator, tried = torch.Generator().manual_seed(0), False
    for row in range(len(tensors(inputs)[0])):
        rows = slice(row, row + 1)
        example = each(lambda one, rows=rows: one[rows] if views == 1 else one[rows].squeeze(0), inputs)
        own = each(lambda one, rows=rows: one[rows].expand(views, *one.shape[1:]), targets)
        with torch.no_grad():
            outputs = call(model, state, example)
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
            return
        for scale in _SCALES:
            moved = torch.randn(outputs.shape, generator=generator).to(outputs) * scale
            leaf = (outputs.detach() + moved).requires_grad_()
            value = loss(leaf, own)
            if not value.requires_grad:
                continue
            (found,) = torch.autograd.grad(value, leaf, allow_unused=True)
            tried = True
            if found is not None and not bool((found == 0).all()):  # nan too
                return
    if tried:
        raise SfumatoError(
            "the loss is constant on one example, so that training would follow noise alone",
            "give a loss of each example's own outputs and target: one that compares the examples of a batch, or is "
            "taken relative to their mean, has no gradient of one example",
        )
