"""The fast road: all examples' runs of the model at once, by vmap and taps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.gradients.contributions import Contribution, contributions
from sfumato.gradients.derived import Forms, Operands
from sfumato.gradients.examples import Tree, loss_of_one, tensors
from sfumato.gradients.expanded import make_leaves
from sfumato.gradients.isolation import nothing_kept
from sfumato.gradients.randomless import WithoutRandomness
from sfumato.gradients.sites import Site
from sfumato.gradients.sites.dropout import Draws
from sfumato.gradients.taps import Tape, Taps
from sfumato.gradients.tuner import Tuner


@dataclass(frozen=True)
class Memory:
    """What is found out about a model once, and holds for all of its runs."""

    tuner: Tuner
    forms: Forms


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run over a batch found.

    Attributes:
        losses: (B,).
        parts: what each trainable parameter that has a gradient got, in some form; every parameter is in one part.
        missed: names of parameters that were shared but must be expanded; if any, `parts` is empty.
        sites: the tapped calls, in the order of the forward pass.
        draws: whether the examples' keys were needed.
    """

    losses: Tensor
    parts: list[Contribution]
    missed: frozenset[str]
    sites: list[Site]
    draws: bool

    @property
    def used(self) -> frozenset[str]:
        """Names of the parameters that have a gradient."""
        return frozenset(name for part in self.parts for name in part.names)

    def squared_norms(self) -> Tensor:
        """(B,) float64: of the gradients of all parameters together, never too small."""
        total = torch.zeros(self.losses.shape, dtype=torch.float64, device=self.losses.device)
        for part in self.parts:
            total += part.squared_norms()
        return total


def run(
    model: nn.Module,
    loss: Callable[[Any, Tree], Tensor],
    inputs: Tree,
    targets: Tree,
    *,
    views: int,
    expanded: Collection[str],
    memory: Memory,
    keys: Tensor | None = None,
    own_copies: bool = False,
) -> Run:
    """Per-example gradients of a batch.

    Args:
        inputs: tensors (B, ...) or (B, K, ...) if views is K > 1.
        targets: tensors (B, ...).
        expanded: names of the parameters to expand.
        memory: what earlier runs found out about the model.
        keys: (B, 4) int64 for dropout; by default drawn from torch's global generator, if any are needed.
        own_copies: let the model work on copies of its parameters and buffers.
    """
    first = tensors(inputs)[0]
    leaves = make_leaves(model, first.shape[0], expanded, own_copies=own_copies)
    operands = Operands(leaves.shared, leaves.originals, memory.forms)
    draws = None if WithoutRandomness.active else Draws(first.shape[0], keys)
    tape = Tape(first.device, operands, memory.tuner, draws)

    def one(own: dict[str, Tensor], example: Tree, target: Tree) -> Tensor:
        with Taps(tape):
            return loss_of_one(model, loss, {**leaves.fixed, **leaves.shared, **own}, example, target, views)

    with nothing_kept(model, loss, {**leaves.fixed, **leaves.shared}.items()), warnings.catch_warnings():
        # Functions without a batching rule run one example at a time inside vmap: slower, and as exact.
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        losses = torch.vmap(one, randomness="different")(leaves.expanded, inputs, targets)
        mains, missed = leaves.gradient_of_mains(losses.sum(), [tape.anchor])
    drew = draws is not None and draws.count > 0
    if missed:
        return Run(losses=losses.detach(), parts=[], missed=frozenset(missed), sites=tape.sites, draws=drew)
    found = [pair for site in tape.sites for pair in site.hand_over()]
    parts = contributions(found, mains, operands)
    return Run(losses=losses.detach(), parts=parts, missed=frozenset(), sites=tape.sites, draws=drew)
