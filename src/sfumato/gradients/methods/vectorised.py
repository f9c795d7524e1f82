"""The fast path: runs the model on all examples at once, by vmap and taps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients.checks.isolation import unchanged_state
from sfumato.gradients.checks.without_randomness import WithoutRandomness
from sfumato.gradients.conditions import Conditions
from sfumato.gradients.examples import Tree, loss_of_one, tree_map, tree_tensors
from sfumato.gradients.methods.contributions import Contribution, contributions, squared_norms
from sfumato.gradients.methods.derived import Forms, Operands
from sfumato.gradients.methods.leaves import make_leaves
from sfumato.gradients.sites import Site
from sfumato.gradients.sites.dropout import ExampleDraws
from sfumato.gradients.taps import Tape, Taps
from sfumato.gradients.tuner import Tuner


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The function whose gradient is taken: the mean over views of a model's loss, for one example.

    Attributes:
        model, loss: as in `ClippedGradient`.
        views: K.
        tuner: chooses how each site's gradient norms are computed; shared by all runs.
        forms: how tensors follow from parameters; shared by all runs.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    views: int
    tuner: Tuner = field(default_factory=Tuner)
    forms: Forms = field(default_factory=Forms)


@dataclass(frozen=True, kw_only=True)
class RunPath:
    """How to run a model on inputs of one kind.

    Attributes:
        fast: whether all examples run at once, or one after the other.
        expanded: names of the parameters that get a copy per example.
        used: names of the trainable parameters that have a gradient.
        draws: whether the model draws random numbers that are keyed by example.
        conditional: whether the model branches on its example (`conditions`).
        writes: whether model or loss write to their inputs or targets.
        synthetic: inputs and targets of one example, (1, ...), on which the path was found out.
    """

    fast: bool
    expanded: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()
    draws: bool = False
    conditional: bool = False
    writes: bool = False
    synthetic: tuple[Tree, Tree] = field(default=((), ()), repr=False, compare=False)

    def extended_by(self, run: RunResult) -> RunPath:
        """The path with the parameters and random numbers that a run used."""
        return replace(self, used=self.used | run.used, draws=self.draws or run.draws)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one run over a batch.

    Attributes:
        losses: (B,).
        parts: the gradients of trainable parameters, in some form; each parameter with a gradient is in one part.
        missed: names of shared parameters that must be expanded; if there are any, `parts` is empty.
        sites: the tapped calls, in the order of the forward pass.
        draws: whether the examples' keys were needed.
        conditional: whether the model branched on its example.
        writes: whether inputs or targets were written to.
    """

    losses: Tensor
    parts: list[Contribution]
    missed: frozenset[str]
    sites: list[Site]
    draws: bool
    conditional: bool
    writes: bool

    @property
    def used(self) -> frozenset[str]:
        """Names of the parameters that have a gradient."""
        return frozenset(name for part in self.parts for name in part.names)

    def squared_norms(self, *, synchronize: bool = True) -> Tensor:
        """(B,) float64: squared norms over all parameters together, never too small (`forms.certified`)."""
        if not self.parts:
            return torch.zeros(self.losses.shape, dtype=torch.float64, device=self.losses.device)
        return squared_norms(self.parts, synchronize=synchronize)


def run(
    objective: Objective,
    inputs: Tree,
    targets: Tree,
    *,
    path: RunPath,
    keys: Tensor | None = None,
    weights: Tensor | None = None,
    own_copies: bool = False,
    exact: bool = False,
    synchronize: bool = True,
) -> RunResult:
    """Computes per-example gradients of a batch.

    Args:
        inputs: tensors (B, ...), or (B, K, ...) if views is K > 1.
        targets: tensors (B, ...).
        path: what is known of the model; `expanded`, `conditional` and `writes` are used.
        keys: (B, 4) int64, for dropout; by default drawn from torch's global generator, if needed.
        weights: (B,), 0 for padding, whose gradient is not taken.
        own_copies: run the model on copies of its parameters, its buffers, the inputs and the targets.
        exact: as in `contributions`.
        synchronize: as in `Operands`.

    Raises:
        DependsOnExample: the model branches on its example, and the path does not say so.
        Disagreement: the examples take different branches.
    """
    model, loss = objective.model, objective.loss
    own_copies = own_copies or path.conditional
    if own_copies or path.writes:
        inputs, targets = (tree_map(torch.clone, tree) for tree in (inputs, targets))
    read = [*tree_tensors(inputs), *tree_tensors(targets)]
    versions = [tensor._version for tensor in read]
    device, examples = read[0].device, read[0].shape[0]
    leaves = make_leaves(model, examples, path.expanded, own_copies=own_copies)
    operands = Operands(leaves.shared, leaves.originals, objective.forms, model=model, synchronize=synchronize)
    draws = None if WithoutRandomness.active else ExampleDraws(examples, keys)
    conditions = Conditions(allowed=path.conditional, device=device)
    tape = Tape(device, operands, objective.tuner, draws, conditions)

    def loss_of(expanded: dict[str, Tensor], example: Tree, target: Tree) -> Tensor:
        with Taps(tape):
            by_name = {**leaves.fixed, **leaves.shared, **expanded}
            return loss_of_one(model, loss, by_name, example, target, objective.views)

    substitutes = {**leaves.fixed, **leaves.shared}.items()
    with unchanged_state(model, loss, substitutes, strict=path.conditional), conditions, warnings.catch_warnings():
        # vmap runs functions without a batching rule one example at a time: slower, but just as exact.
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        losses = torch.vmap(loss_of, randomness="different")(leaves.expanded, inputs, targets)
        counted = losses if weights is None else torch.where(weights > 0, losses, 0)
        expanded, missed = leaves.backward(counted.sum(), [tape.anchor])
    writes = versions != [tensor._version for tensor in read]
    if writes and not (own_copies or path.writes):
        raise SfumatoError(
            "the forward pass wrote to the inputs or targets of the call, which it did not do on synthetic examples",
            "let it write to a clone of them",
        )
    parts: list[Contribution] = []
    if not missed:
        uses = [pair for site in tape.sites for pair in site.take_uses()]
        parts = contributions(uses, expanded, operands, exact=exact)
    return RunResult(
        losses=losses.detach(),
        parts=parts,
        missed=frozenset(missed),
        sites=tape.sites,
        draws=draws is not None and draws.count > 0,
        conditional=conditions.met,
        writes=writes,
    )
