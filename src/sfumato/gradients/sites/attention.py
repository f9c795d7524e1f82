"""Scaled dot-product attention: it has no parameters, but no batching rule on the CPU either."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.gradients.methods.batch_axis import apply_batched, is_batched
from sfumato.gradients.sites import dropout


def _explicit(query, key, value, mask, drop, scale):
    """Attention for masks that are learned or depend on the data, and for dropout. A query without keys gets zeros."""
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        return drop(scores.masked_fill(empty, 0).softmax(dim=-1).masked_fill(empty, 0)) @ value
    return drop(scores.softmax(dim=-1)) @ value


def tap(mode, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The handler of ``F.scaled_dot_product_attention``."""
    if enable_gqa or query.dim() < 3:
        return NotImplemented
    if not any(is_batched(tensor) for tensor in (query, key, value)):
        return NotImplemented
    heads = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (tensor.expand(*heads, *tensor.shape[-2:]) for tensor in (query, key, value))
    if attn_mask is None and dropout_p == 0:
        # Without a mask, examples, views and heads fold into one axis.
        def folded(*tensors: Tensor) -> Tensor:
            q, k, v = (tensor.flatten(0, 1) for tensor in tensors)
            outputs = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
            return outputs.unflatten(0, tensors[0].shape[:2])

        return apply_batched(folded, query, key, value)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()

    def drop(weights: Tensor) -> Tensor:
        dropped = dropout.tap(mode, weights, dropout_p)
        return F.dropout(weights, dropout_p) if dropped is NotImplemented else dropped

    return _explicit(query, key, value, attn_mask, drop, scale)
