"""The clipped sum of a batch, and how those of its parts add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

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

    def completed(self, rows: Tensor, others: ClippedSum) -> ClippedSum:
        """With the sum of examples at these places that are not in it yet; this one's gradients are added to."""
        for name, value in self.gradients.items():
            value += others.gradients[name]
        norms, losses = self.norms.index_copy(0, rows, others.norms), self.losses.index_copy(0, rows, others.losses)
        return replace(self, norms=norms, losses=losses)

    def of_weights(self, weights: Tensor) -> ClippedSum:
        """The same where nothing is said of padding: the examples whose weights (B,) are zero."""
        norms, losses = (torch.where(weights > 0, values, torch.nan) for values in (self.norms, self.losses))
        return replace(self, norms=norms, losses=losses)


class QueuedSum(ClippedSum):
    """A clipped sum that a device still computes, on the assumption that the fast arithmetic will do for all examples.

    Whoever asks for one of its values waits for the device; where the assumption was wrong, the rest is done then.

    Args:
        total: what came out, or will.
        lacking: () bool, whether the assumption was wrong.
        later: the sum without it; called at most once.
    """

    def __init__(self, total: ClippedSum, lacking: Tensor, later: Callable[[], ClippedSum]):
        self.__dict__.update(_total=total, _lacking=lacking, _later=later)

    @cached_property
    def settled(self) -> ClippedSum:
        """The sum, once the device is done."""
        total, later = self.__dict__.pop("_total"), self.__dict__.pop("_later")
        return later() if bool(self.__dict__["_lacking"]) else total

    @property
    def gradients(self) -> dict[str, Tensor]:  # type: ignore[override]
        return self.settled.gradients

    @property
    def norms(self) -> Tensor:  # type: ignore[override]
        return self.settled.norms

    @property
    def losses(self) -> Tensor:  # type: ignore[override]
        return self.settled.losses

    def of_weights(self, weights: Tensor) -> ClippedSum:
        total, lacking, later = (self.__dict__[name] for name in ("_total", "_lacking", "_later"))
        return QueuedSum(total.of_weights(weights), lacking, lambda: later().of_weights(weights))


def first_sum(
    found: Run, trainable: dict[str, Tensor], max_norm: float, weights: Tensor | None = None, *, asking: bool = True
) -> tuple[ClippedSum, Tensor, bool | Tensor]:
    """The clipped sum of those examples of a run that the fast arithmetic can vouch for; its parts are taken from it.

    Args:
        trainable: the parameters, by name.
        max_norm: the bound ``C``.
        weights: (B,) from 0, for padding, to 1.
        asking: whether to look if there are others. To look is to wait for a device; where nobody looks, the sum lacks
            them all the same, but is no number where one of them isn't finite.

    Returns:
        the sum; (B,) bool, the others (`clipping.doubtful`); and whether there are any, which is () if nobody looked.
    """
    with _in_full(found):
        squares = found.squared_norms(asking=asking)
        factors = clipping.clip_factors(squares, found.losses, max_norm=max_norm, of=trainable.values())
        others = clipping.doubtful(factors, weights)
        some = bool(others.any()) if asking else others.any()
        # Once, as all parts would: rounding them is paid for (`clipping.clip_factors`).
        widest = max((clipping.accumulation_dtype(p.dtype) for p in trainable.values()), key=lambda kind: kind.itemsize)
        factors = _times(factors, weights).masked_fill(others, 0.0).to(widest)
        return _total(found, trainable, squares, factors, excluding=some is True), others, some


def exact_sum(found: Run, trainable: dict[str, Tensor], max_norm: float, weights: Tensor | None = None) -> ClippedSum:
    """The clipped sum of an exact run (`contributions`): norms and factors of any size; arguments as of `first_sum`."""
    with _in_full(found):
        squares = found.squared_norms()
        factors = clipping.clip_factors(squares, found.losses, max_norm=max_norm, of=trainable.values())
        return _total(found, trainable, squares, _times(factors, weights), excluding=True)


@contextmanager
def _in_full(found: Run) -> Iterator[None]:
    """No graph, and no half precision."""
    with torch.no_grad(), torch.autocast(found.losses.device.type, enabled=False):
        yield


def _times(factors: Tensor, weights: Tensor | None) -> Tensor:
    return factors if weights is None else factors * weights


def _total(
    found: Run, trainable: dict[str, Tensor], squares: Tensor, factors: Tensor, *, excluding: bool
) -> ClippedSum:
    sums: dict[str, Tensor] = {}
    while found.parts:  # one at a time, so that what a part holds is freed with it
        sums |= found.parts.pop().weighted_sums(factors, excluding=excluding)
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
        squares += clipping.exact_squared_norms(gradient.unsqueeze(0))
    factor = _times(clipping.clip_factors(squares, loss, max_norm=max_norm, of=total.values()), weight)
    for name, gradient in found.items():
        total[name] += clipping.exact_weighted_sum(gradient.unsqueeze(0), factor).to(total[name].dtype)
    return ClippedSum(gradients=total, norms=squares.sqrt(), losses=loss)
