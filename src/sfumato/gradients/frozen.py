"""Batch and instance norm with stored statistics, computed as a fixed affine map of each pixel.

``F.batch_norm`` with stored statistics does not mix examples, but its backward on CPU was found to be wrong for a batch
of one with a strided output gradient (input gradient off by 142%), and for inputs (N, C) with strided weights or
statistics (it reads numbers beyond them). Therefore every way of running a model here activates this mode.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def affine(
    inputs: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * weight + bias`` per channel, for inputs (N, C, ...)."""
    shape = (1, -1) + (1,) * (inputs.dim() - 2)
    scale = torch.rsqrt(variance + epsilon)
    if weight is not None:
        scale = scale * weight
    outputs = (inputs - mean.view(shape)) * scale.view(shape)
    if bias is not None:
        outputs = outputs + bias.view(shape)
    return outputs.to(inputs.dtype)


def _frozen_batch_norm(
    input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    if training or running_mean is None or running_var is None:
        return None
    return affine(input, running_mean, running_var, weight, bias, eps)


def _frozen_instance_norm(
    input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5
):
    if use_input_stats or running_mean is None or running_var is None:
        return None
    return affine(input, running_mean, running_var, weight, bias, eps)


_FROZEN = {F.batch_norm: _frozen_batch_norm, F.instance_norm: _frozen_instance_norm}


class FrozenNorms(TorchFunctionMode):
    """While active, normalisation with stored statistics is computed by `affine`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _FROZEN:
            outputs = _FROZEN[func](*args, **kwargs)
            if outputs is not None:
                return outputs
        return func(*args, **kwargs)
