"""The clipped sum of a batch, and the addition of partial sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.methods.vectorised import RunResult


@dataclass(frozen=True, kw_only=True, eq=False)
class ClippedSum:
    """The clipped sum of a batch. `norms` and `losses` are private: no noise protects them, so do not log them.

    Attributes:
        gradients: {name: tensor} with the parameters' shapes, float32 at least: the sum over examples (not the mean).
        norms: (B,) float64, the norm of each example's gradient before clipping. nan or inf marks an example whose
            gradient was not finite, which contributes zero; nan marks padding.
        losses: (B,), each example's mean loss over its views; nan for padding.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    losses: Tensor

    def merge(self, other: ClippedSum) -> ClippedSum:
        """The sum of this batch and another one. Adds to this object's gradients in place."""
        for name, value in self.gradients.items():
            value += other.gradients[name]
        return ClippedSum(
            gradients=self.gradients,
            norms=torch.cat([self.norms, other.norms]),
            losses=torch.cat([self.losses, other.losses]),
        )

    def reorder(self, rows: Tensor) -> ClippedSum:
        """The same sum with norms and losses moved to the places `rows`, (B,) int64, of their examples."""
        order = rows.argsort().to(self.norms.device)
        return ClippedSum(gradients=self.gradients, norms=self.norms[order], losses=self.losses[order])

    def add_missing(self, rows: Tensor, others: ClippedSum) -> ClippedSum:
        """The sum with the missing examples `rows` added. Adds to this object's gradients in place."""
        for name, value in self.gradients.items():
            value += others.gradients[name]
        norms, losses = self.norms.index_copy(0, rows, others.norms), self.losses.index_copy(0, rows, others.losses)
        return replace(self, norms=norms, losses=losses)

    def hide_padding(self, weights: Tensor) -> ClippedSum:
        """The same sum with norms and losses set to nan for padding, the examples whose weights (B,) are zero."""
        norms, losses = (torch.where(weights > 0, values, torch.nan) for values in (self.norms, self.losses))
        return replace(self, norms=norms, losses=losses)


class QueuedSum(ClippedSum):
    """A clipped sum that a device may still be computing, assuming that the fast arithmetic certifies every example.

    Reading an attribute waits for the device. If the assumption was wrong, the missing part is computed then.

    Args:
        total: the sum, computed or queued.
        incomplete: () bool, whether the assumption was wrong.
        complete: computes the complete sum; called at most once.
    """

    def __init__(self, total: ClippedSum, incomplete: Tensor, complete: Callable[[], ClippedSum]):
        self.__dict__.update(_total=total, _incomplete=incomplete, _complete=complete)

    @cached_property
    def result(self) -> ClippedSum:
        """The complete sum; waits for the device."""
        total, complete = self.__dict__.pop("_total"), self.__dict__.pop("_complete")
        return complete() if bool(self.__dict__["_incomplete"]) else total

    @property
    def gradients(self) -> dict[str, Tensor]:  # type: ignore[override]
        return self.result.gradients

    @property
    def norms(self) -> Tensor:  # type: ignore[override]
        return self.result.norms

    @property
    def losses(self) -> Tensor:  # type: ignore[override]
        return self.result.losses

    def hide_padding(self, weights: Tensor) -> ClippedSum:
        total, incomplete, complete = (self.__dict__[name] for name in ("_total", "_incomplete", "_complete"))
        return QueuedSum(total.hide_padding(weights), incomplete, lambda: complete().hide_padding(weights))


def fast_sum(
    run: RunResult,
    trainable: dict[str, Tensor],
    max_norm: float,
    weights: Tensor | None = None,
    *,
    synchronize: bool = True,
) -> tuple[ClippedSum, Tensor, bool | Tensor]:
    """Computes the clipped sum of the examples that the fast arithmetic can certify. Consumes the run's parts.

    Args:
        trainable: the parameters, by name.
        max_norm: the clipping norm ``C``.
        weights: (B,) from 0, for padding, to 1.
        synchronize: whether to wait for the device and find out if there are doubtful examples. Otherwise the sum lacks
            them all the same, and contains nan if one of them is not finite.

    Returns:
        the sum; (B,) bool, the doubtful examples (`clipping.doubtful`); and whether there are any, a () tensor unless
        `synchronize`.
    """
    with _full_precision(run):
        squares = run.squared_norms(synchronize=synchronize)
        factors = clipping.clip_factors(squares, run.losses, max_norm=max_norm, of=trainable.values())
        doubtful = clipping.doubtful(factors, weights)
        some = bool(doubtful.any()) if synchronize else doubtful.any()
        # Converted once for all parts; `clipping.clip_factors` leaves room for this rounding.
        widest = max((clipping.accumulation_dtype(p.dtype) for p in trainable.values()), key=lambda kind: kind.itemsize)
        factors = _weighted(factors, weights).masked_fill(doubtful, 0.0).to(widest)
        return _total(run, trainable, squares, factors, excluding=some is True), doubtful, some


def exact_sum(
    run: RunResult, trainable: dict[str, Tensor], max_norm: float, weights: Tensor | None = None
) -> ClippedSum:
    """Computes the clipped sum of an exact run (`contributions`), for norms and factors of any size.

    The arguments are those of `fast_sum`.
    """
    with _full_precision(run):
        squares = run.squared_norms()
        factors = clipping.clip_factors(squares, run.losses, max_norm=max_norm, of=trainable.values())
        return _total(run, trainable, squares, _weighted(factors, weights), excluding=True)


@contextmanager
def _full_precision(run: RunResult) -> Iterator[None]:
    """Disables autograd and autocast."""
    with torch.no_grad(), torch.autocast(run.losses.device.type, enabled=False):
        yield


def _weighted(factors: Tensor, weights: Tensor | None) -> Tensor:
    return factors if weights is None else factors * weights


def _total(
    run: RunResult, trainable: dict[str, Tensor], squares: Tensor, factors: Tensor, *, excluding: bool
) -> ClippedSum:
    sums: dict[str, Tensor] = {}
    while run.parts:  # one at a time, to free each part's memory as soon as it is summed
        sums |= run.parts.pop().weighted_sums(factors, excluding=excluding)
    gradients = {
        name: sums[name].detach().to(clipping.accumulation_dtype(parameter.dtype))
        if name in sums
        else clipping.zeros(parameter)
        for name, parameter in trainable.items()
    }
    return ClippedSum(gradients=gradients, norms=squares.sqrt(), losses=run.losses)


def sum_of_one(
    gradients: dict[str, Tensor], loss: Tensor, total: dict[str, Tensor], max_norm: float, weight: Tensor | None = None
) -> ClippedSum:
    """Clips the gradient of one example and adds it to `total` in place.

    Args:
        gradients: the example's gradient, by parameter name; missing parameters have gradient zero.
        loss: (1,).
        total: the sum of the preceding examples, by name of every trainable parameter.
        max_norm: the clipping norm ``C``.
        weight: (1,) from 0, for padding, to 1.
    """
    squares = loss.new_zeros(1).double()
    for gradient in gradients.values():
        squares += clipping.exact_squared_norms(gradient.unsqueeze(0))
    factor = _weighted(clipping.clip_factors(squares, loss, max_norm=max_norm, of=total.values()), weight)
    for name, gradient in gradients.items():
        total[name] += clipping.exact_weighted_sum(gradient.unsqueeze(0), factor).to(total[name].dtype)
    return ClippedSum(gradients=total, norms=squares.sqrt(), losses=loss)
