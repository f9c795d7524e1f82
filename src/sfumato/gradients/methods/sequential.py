"""The slow path, equally exact, for models that vmap cannot run: one example after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.gradients.checks.isolation import unchanged_state
from sfumato.gradients.examples import Tree, loss_of_one, tree_map, tree_tensors
from sfumato.gradients.frozen import FrozenNorms
from sfumato.gradients.methods.leaves import Leaves, make_leaves, zero_gradients
from sfumato.gradients.methods.vectorised import Objective
from sfumato.gradients.sums import ClippedSum, sum_of_one


def clipped_sum(
    objective: Objective,
    inputs: Tree,
    targets: Tree,
    *,
    max_norm: float,
    weights: Tensor | None = None,
    used: set[str] | None = None,
) -> ClippedSum:
    """Computes the sum over examples of the clipped gradient, adding one example at a time.

    Each example runs on its own copies of parameters and buffers, so nothing written to them reaches the next example.
    Its inputs and target are copied too, so nothing written to them reaches the caller.

    Args:
        weights: (B,) from 0, for padding, to 1.
        used: if given, the names of the parameters that have a gradient are added to it.
    """
    model, loss = objective.model, objective.loss
    total = zero_gradients(model)
    norms, losses = [], []
    for index in range(tree_tensors(inputs)[0].shape[0]):
        leaves = make_leaves(model, 1, (), own_copies=True)
        by_name = {**leaves.fixed, **leaves.shared}
        with unchanged_state(model, loss, by_name.items(), strict=True), FrozenNorms():
            example, target = (
                tree_map(lambda tensor, row=index: tensor[row].clone(), tree) for tree in (inputs, targets)
            )
            value = loss_of_one(model, loss, by_name, example, target, objective.views)
            weight = None if weights is None else weights[index : index + 1]
            counted = value if weight is None else torch.where(weight[0] > 0, value, 0)
            gradients = _gradients(counted, leaves)
        one = sum_of_one(gradients, value.detach().reshape(1), total, max_norm, weight)
        norms.append(one.norms)
        losses.append(one.losses)
        if used is not None:
            used.update(gradients)
    return ClippedSum(gradients=total, norms=torch.cat(norms), losses=torch.cat(losses))


def _gradients(value: Tensor, leaves: Leaves) -> dict[str, Tensor]:
    if not value.requires_grad:
        return {}
    gradients = torch.autograd.grad(value, [*leaves.shared.values(), *leaves.originals.values()], allow_unused=True)
    leaves.refuse_bypassed(gradients[len(leaves.shared) :])
    dense = [g.to_dense() if g is not None and g.is_sparse else g for g in gradients]
    return {name: g for name, g in zip(leaves.shared, dense, strict=False) if g is not None}
