"""The clipped sum of a batch, and how those of its parts add up."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.methods.vectorised import Run


@dataclass(frozen=True, kw_only=True, eq=False)
class ClippedSum:
    """The clipped sum of a batch. `norms` and `losses` are private: no noise protects them, so never log them.

    Attributes:
        gradients: by parameter name, of the parameter's shape, float32 at least: the sum over examples (not the mean).
        norms: (B,) float64, the norm of each example's gradient before clipping; nan or inf where it was not finite,
            and that example contributed zero; nan for padding.
        losses: (B,), each example's mean loss over its views; nan for padding.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    losses: Tensor

    def followed_by(self, other: ClippedSum) -> ClippedSum:
        """That of this batch and another one; this one's gradients are added to in place."""
        for name, value in self.gradients.items():
            value += other.gradients[name]
        return ClippedSum(
            gradients=self.gradients,
            norms=torch.cat([self.norms, other.norms]),
            losses=torch.cat([self.losses, other.losses]),
        )

    def in_order(self, rows: Tensor) -> ClippedSum:
        """The same of a batch whose examples stood at these places, (B,) int64."""
        order = rows.argsort().to(self.norms.device)
        return ClippedSum(gradients=self.gradients, norms=self.norms[order], losses=self.losses[order])

    def of_weights(self, weights: Tensor) -> ClippedSum:
        """The same where nothing is said of padding: the examples whose weights (B,) are zero."""
        norms, losses = (torch.where(weights > 0, values, torch.nan) for values in (self.norms, self.losses))
        return replace(self, norms=norms, losses=losses)


def clipped_sum(found: Run, trainable: dict[str, Tensor], max_norm: float, weights: Tensor | None = None) -> ClippedSum:
    """The clipped sum of the examples of a run, whose parts are taken from it; never in half precision, whatever the
    model ran in.

    Args:
        trainable: the parameters, by name.
        max_norm: the bound ``C``.
        weights: (B,) from 0, for padding, to 1.
    """
    sums: dict[str, Tensor] = {}
    with torch.no_grad(), torch.autocast(found.losses.device.type, enabled=False):
        squares = found.squared_norms()
        own = trainable.values()
        factors = clipping.clip_factors(squares, found.losses, max_norm=max_norm, of=own, weights=weights)
        while found.parts:  # one at a time, so that what a part holds is freed with it
            sums |= found.parts.pop().weighted_sums(factors)
        gradients = {
            name: sums[name].detach().to(clipping.accumulation_dtype(parameter.dtype))
            if name in sums
            else clipping.zeros(parameter)
            for name, parameter in trainable.items()
        }
    return ClippedSum(gradients=gradients, norms=squares.sqrt(), losses=found.losses)


def sum_of_one(
    found: dict[str, Tensor], loss: Tensor, total: dict[str, Tensor], max_norm: float, weight: Tensor | None = None
) -> ClippedSum:
    """The clipped gradient of one example, which is added to a sum in place.

    Args:
        found: its gradient, by parameter name; those that are left out are zero.
        loss: (1,).
        total: the sum of the examples before it, by the name of every trainable parameter.
        max_norm: the bound ``C``.
        weight: (1,) from 0, for padding, to 1.
    """
    squares = loss.new_zeros(1).double()
    for gradient in found.values():
        squares += clipping.squared_norms(gradient.unsqueeze(0))
    factor = clipping.clip_factors(squares, loss, max_norm=max_norm, of=total.values(), weights=weight)
    for name, gradient in found.items():
        total[name] += clipping.weighted_sum(gradient.unsqueeze(0), factor).to(total[name].dtype)
    return ClippedSum(gradients=total, norms=squares.sqrt(), losses=loss)
