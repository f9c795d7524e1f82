"""The fast road: all examples' runs of the model at once, by vmap and taps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.gradients.examples import Tree, loss_of_one, tensors
from sfumato.gradients.expanded import make_leaves
from sfumato.gradients.isolation import nothing_kept
from sfumato.gradients.sites import Use
from sfumato.gradients.taps import Tape, Taps


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run over a batch found.

    Attributes:
        losses: (B,).
        uses: per trainable parameter that has a gradient, its per-example gradients in some form.
        missed: names of parameters that were shared but must be expanded; if any, `uses` is incomplete.
    """

    losses: Tensor
    uses: dict[str, Use]
    missed: frozenset[str]


def run(
    model: nn.Module,
    loss: Callable[[Any, Tree], Tensor],
    inputs: Tree,
    targets: Tree,
    *,
    views: int,
    expanded: Collection[str],
    own_copies: bool = False,
) -> Run:
    """Per-example gradients of a batch.

    Args:
        inputs: tensors (B, ...) or (B, K, ...) if views is K > 1.
        targets: tensors (B, ...).
        expanded: names of the parameters to expand.
        own_copies: let the model work on copies of its parameters and buffers.
    """
    first = tensors(inputs)[0]
    leaves = make_leaves(model, first.shape[0], expanded, own_copies=own_copies)
    tape = Tape(first.device)

    def one(own: dict[str, Tensor], example: Tree, target: Tree) -> Tensor:
        with Taps(tape):
            return loss_of_one(model, loss, {**leaves.fixed, **leaves.shared, **own}, example, target, views)

    with nothing_kept(model, loss, {**leaves.fixed, **leaves.shared}.items()), warnings.catch_warnings():
        # Functions without a batching rule run one example at a time inside vmap: slower, and as exact.
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        losses = torch.vmap(one, randomness="different")(leaves.expanded, inputs, targets)
        mains, missed = leaves.gradient_of_mains(losses.sum(), [tape.anchor])
    if missed:
        return Run(losses=losses.detach(), uses={}, missed=frozenset(missed))
    operands = [pair for site in tape.sites for pair in site.uses()]
    return Run(losses=losses.detach(), uses=leaves.by_parameter(operands, mains), missed=frozenset())
