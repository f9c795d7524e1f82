"""Bags of embeddings: sums, means or maxima of rows of a table, rewritten so that the table is used by an embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.gradients.methods.batch_axis import depends_on_example
from sfumato.gradients.sites.embedding import refuse_coupling


def tap(
    taps,
    input,
    weight,
    offsets=None,
    max_norm=None,
    norm_type=2,
    scale_grad_by_freq=False,
    mode="mean",
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """The handler of ``F.embedding_bag``."""
    refuse_coupling(weight, max_norm, scale_grad_by_freq)
    if not any(depends_on_example(t) for t in (input, weight, per_sample_weights)):
        return NotImplemented
    if input.numel() == 0 or mode not in ("sum", "mean", "max") or input.dim() != (2 if offsets is None else 1):
        return NotImplemented
    if per_sample_weights is not None and (mode != "sum" or per_sample_weights.shape != input.shape):
        return NotImplemented
    if offsets is not None and mode == "max":
        return NotImplemented
    padding = None if padding_idx is None else padding_idx % len(weight)
    with taps:
        rows = F.embedding(input, weight, padding)
        present = torch.ones_like(input, dtype=torch.bool) if padding is None else input != padding
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        if mode == "max":
            return _maxima(rows, present)
        if offsets is None:
            totals = rows.masked_fill(~present.unsqueeze(-1), 0).sum(dim=1)
            counts = present.sum(dim=1)
        else:
            members = _members(offsets, len(input), include_last_offset) & present
            totals, counts = members.to(rows.dtype) @ rows, members.sum(dim=1)
        return totals if mode == "sum" else totals / counts.clamp_min(1).unsqueeze(-1)


def _maxima(rows: Tensor, present: Tensor) -> Tensor:
    """Maxima (N, D) of rows (N, T, D); zero for an empty bag."""
    largest = rows.masked_fill(~present.unsqueeze(-1), -torch.inf).max(dim=1).values
    return largest.masked_fill(~present.any(dim=1, keepdim=True), 0)


def _members(offsets: Tensor, length: int, include_last_offset: bool) -> Tensor:
    """(bags, T): which positions are in which bag, given the start of each bag."""
    positions = torch.arange(length, device=offsets.device)
    started = positions >= offsets.unsqueeze(1)
    if include_last_offset:
        return started[:-1] & ~started[1:]
    return started & ~torch.cat([started[1:], torch.zeros_like(started[:1])])
