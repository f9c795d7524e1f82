"""The fast path: all examples' runs of the model at once, by vmap and taps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients.checks.isolation import nothing_kept
from sfumato.gradients.checks.randomless import WithoutRandomness
from sfumato.gradients.conditions import Conditions
from sfumato.gradients.examples import Tree, each, loss_of_one, tensors
from sfumato.gradients.methods.contributions import Contribution, contributions, squared_norms
from sfumato.gradients.methods.derived import Forms, Operands
from sfumato.gradients.methods.expanded import make_leaves
from sfumato.gradients.sites import Site
from sfumato.gradients.sites.dropout import ExampleDraws
from sfumato.gradients.taps import Tape, Taps
from sfumato.gradients.tuner import Tuner


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What gradients are taken of: the mean over views of a loss of a model, for one example; and what is found out
    about it once and holds for all runs.

    Attributes:
        model, loss: as `ClippedGradient` takes them.
        views: K.
        tuner: how each site's gradient norms are computed.
        forms: how tensors follow from parameters.
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
        fast: all examples at once, or else one after the other.
        expanded: names of the parameters that get a copy per example.
        used: names of the trainable parameters that have a gradient.
        draws: whether the model draws random numbers that are keyed by example.
        conditional: whether the model asks about its example (`conditions`).
        writes: whether model or loss write to the inputs or targets that they are given.
        synthetic: one example's inputs and targets, (1, ...), on which all this was found out.
    """

    fast: bool
    expanded: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()
    draws: bool = False
    conditional: bool = False
    writes: bool = False
    synthetic: tuple[Tree, Tree] = field(default=((), ()), repr=False, compare=False)

    def having(self, found: Run) -> RunPath:
        """With what a run showed to be used and drawn."""
        return replace(self, used=self.used | found.used, draws=self.draws or found.draws)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run over a batch found.

    Attributes:
        losses: (B,).
        parts: what each trainable parameter that has a gradient got, in some form; every parameter is in one part.
        missed: names of parameters that were shared but must be expanded; if any, `parts` is empty.
        sites: the tapped calls, in the order of the forward pass.
        draws: whether the examples' keys were needed.
        conditional: whether the model asked about its example.
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
        """(B,) float64: of the gradients of all parameters together, never too small: see `certified`."""
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
) -> Run:
    """Per-example gradients of a batch.

    Args:
        inputs: tensors (B, ...) or (B, K, ...) if views is K > 1.
        targets: tensors (B, ...).
        path: what is known of the model; of it `expanded`, `conditional` and `writes` count.
        keys: (B, 4) int64, for dropout; by default drawn from torch's global generator, if any are needed.
        weights: (B,), 0 for padding, of which no gradient is taken.
        own_copies: let the model work on copies of its parameters and buffers, and of inputs and targets.
        exact: as `contributions` takes it.
        synchronize: as `Operands` takes it.

    Raises:
        DependsOnExample: the model asks about its example, and the path does not say so.
        Disagreement: it does, and the examples differ.
    """
    model, loss = objective.model, objective.loss
    own_copies = own_copies or path.conditional
    if own_copies or path.writes:
        inputs, targets = (each(torch.clone, tree) for tree in (inputs, targets))
    given = [*tensors(inputs), *tensors(targets)]
    versions = [tensor._version for tensor in given]
    device, examples = given[0].device, given[0].shape[0]
    leaves = make_leaves(model, examples, path.expanded, own_copies=own_copies)
    operands = Operands(leaves.shared, leaves.originals, objective.forms, synchronize=synchronize)
    draws = None if WithoutRandomness.active else ExampleDraws(examples, keys)
    conditions = Conditions(answered=path.conditional, device=device)
    tape = Tape(device, operands, objective.tuner, draws, conditions)

    def one(own: dict[str, Tensor], example: Tree, target: Tree) -> Tensor:
        with Taps(tape):
            return loss_of_one(model, loss, {**leaves.fixed, **leaves.shared, **own}, example, target, objective.views)

    own = {**leaves.fixed, **leaves.shared}.items()
    with nothing_kept(model, loss, own, strict=path.conditional), conditions, warnings.catch_warnings():
        # Functions without a batching rule run one example at a time inside vmap: slower, and as exact.
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        losses = torch.vmap(one, randomness="different")(leaves.expanded, inputs, targets)
        counted = losses if weights is None else torch.where(weights > 0, losses, 0)
        mains, missed = leaves.gradient_of_mains(counted.sum(), [tape.anchor])
    writes = versions != [tensor._version for tensor in given]
    if writes and not (own_copies or path.writes):
        raise SfumatoError(
            "the forward pass has written to the inputs or targets of the call, and did not do so on made-up examples",
            "let it work on a clone of them",
        )
    parts: list[Contribution] = []
    if not missed:
        found = [pair for site in tape.sites for pair in site.hand_over()]
        parts = contributions(found, mains, operands, exact=exact)
    return Run(
        losses=losses.detach(),
        parts=parts,
        missed=frozenset(missed),
        sites=tape.sites,
        draws=draws is not None and draws.count > 0,
        conditional=conditions.met,
        writes=writes,
    )
