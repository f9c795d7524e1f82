"""Embeddings: rows of a table by index.

An example's gradient has as many nonzero rows as the example has distinct indices. Only these are held, so memory and
time do not depend on the table's size until the sum is formed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.gradients import clipping
from sfumato.gradients.sites import Site
from sfumato.gradients.use import RowMap, RowStatistics, rounding


def _add_up(values: Tensor, places: Tensor, count: int) -> Tensor:
    """(count, D): sums of the rows of values (M, D) that have the same place (M,); deterministic."""
    if values.device.type == "cpu":
        return values.new_zeros(count, values.shape[1]).index_add_(0, places, values)
    return torch.ops.aten.embedding_dense_backward(values, places, count, -1, False)


class RowsUse:
    """Per-example gradients of a table (V, D) that are zero except in some rows.

    Args:
        indices: (B, T) the rows, each at most once per example; only rows of zeros may repeat an index.
        values: (B, T, D).
        shape: (V, D).
    """

    def __init__(self, indices: Tensor, values: Tensor, shape: tuple[int, ...]):
        self._indices, self._values, self._shape = indices, values, shape

    @classmethod
    def from_indices(cls, indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> RowsUse:
        """Creates the use from indices that may repeat: rows with the same index are added before any norm is taken."""
        examples, positions = indices.shape
        ordered, order = indices.sort(dim=1)
        ranks = torch.zeros_like(indices)
        ranks[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(dim=1)
        places = torch.empty_like(ranks).scatter_(1, order, ranks)
        places += positions * torch.arange(examples, device=indices.device).unsqueeze(1)
        sums = _add_up(values.reshape(examples * positions, -1), places.reshape(-1), examples * positions)
        distinct = torch.zeros_like(indices).scatter_(1, ranks, ordered)
        return cls(distinct, sums.reshape(values.shape), shape)

    @classmethod
    def join(cls, uses: list[RowsUse]) -> RowsUse:
        """Joins several uses of one table."""
        indices = torch.cat([use._indices for use in uses], dim=1)
        return cls.from_indices(indices, torch.cat([use._values for use in uses], dim=1), uses[0]._shape)

    def squared_norms(self) -> Tensor:
        return clipping.squared_norms(self._values)

    def weighted_sum(self, factors: Tensor, *, excluding: bool = True) -> Tensor:
        values = clipping.without_excluded(self._values, factors) if excluding else self._values
        scaled = values * factors.to(values.dtype)[:, None, None]
        return _add_up(scaled.flatten(0, 1), self._indices.reshape(-1), self._shape[0])

    def instantiate(self, rows: Tensor | None = None) -> Tensor:
        indices, values = (t if rows is None else t[rows] for t in (self._indices, self._values))
        places = indices + self._shape[0] * torch.arange(len(indices), device=indices.device).unsqueeze(1)
        whole = _add_up(values.flatten(0, 1), places.reshape(-1), len(indices) * self._shape[0])
        return whole.reshape(-1, *self._shape)

    def row_statistics(self, rows: RowMap) -> RowStatistics:
        values = self._values.double()
        squares = clipping.squared_lengths(values)
        scaled, pulled = ((squares * by[self._indices].square()).sum(dim=1) for by in (rows.scales, rows.sizes))

        def by_row(numbers: Tensor) -> Tensor:
            whole = numbers.new_zeros(len(numbers), self._shape[0])
            return whole.scatter_add_(1, self._indices, numbers)

        return RowStatistics(
            squares=scaled,
            dots=by_row((values * rows.values.reshape(self._shape)[self._indices]).sum(dim=2)),
            sums=by_row(values.sum(dim=2)),
            rounding=rounding(pulled.sqrt(), self._values, self._indices.shape[1]),
            dots_rounding=squares.new_zeros(len(squares), self._shape[0]),
        )

    def bytes(self) -> int:
        return sum(t.nbytes for t in (self._indices, self._values))


class EmbeddingSite(Site):
    """One call of ``F.embedding`` on a batch of examples.

    Args:
        weight: (V, D).
        padding: an index that gets no gradient, or None.
    """

    kind = "embedding"

    def __init__(self, weight: Tensor, padding: int | None):
        super().__init__(weight=weight)
        self._padding = None if padding is None else padding % len(weight)

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return F.embedding(inputs, self.operands["weight"].detach()), (inputs,)

    def backward(self, saved: tuple[Tensor, ...], output_gradients: Tensor, wanted: bool) -> Tensor | None:
        shape = tuple(self.operands["weight"].shape)
        indices = saved[0].reshape(self.examples, -1).long()
        gradients = output_gradients.to(clipping.accumulation_dtype(output_gradients.dtype))
        gradients = gradients.reshape(*indices.shape, math.prod(shape[1:]))
        if self._padding is not None:
            gradients = gradients.masked_fill((indices == self._padding).unsqueeze(-1), 0)
        self.add("weight", RowsUse.from_indices(indices, gradients, shape))
        return None


def tap(mode, input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    """The handler of ``F.embedding``; `sparse` does not change the gradient."""
    refuse_coupling(weight, max_norm, scale_grad_by_freq)
    if input.numel() == 0 or weight.dim() != 2:
        return NotImplemented
    if input.dim() > 0:
        return mode.call(EmbeddingSite(weight, padding_idx), input)
    outputs = mode.call(EmbeddingSite(weight, padding_idx), input.unsqueeze(0))
    return outputs if outputs is NotImplemented else outputs.squeeze(0)


def refuse_coupling(weight: Tensor, max_norm: float | None, scale_grad_by_freq: bool) -> None:
    """Refuses options through which an example's indices affect other examples' gradients."""
    if max_norm is not None:
        raise SfumatoError(
            f"an embedding has max_norm={max_norm}, which rewrites its weights at the private indices that it reads",
            "call it without max_norm",
        )
    if scale_grad_by_freq and weight.requires_grad:
        raise SfumatoError(
            "an embedding has scale_grad_by_freq=True, which divides gradients by the number of times that an index "
            "occurs in the whole batch, so every example would affect the gradients of all others",
            "build it with scale_grad_by_freq=False",
        )
