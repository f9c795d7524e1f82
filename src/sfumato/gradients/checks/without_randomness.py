"""Runs a model without randomness, so that two computations of a gradient can be compared."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


class WithoutRandomness(TorchFunctionMode):
    """While active, dropout keeps everything and random functions return the middle of their range."""

    active = 0

    def __enter__(self):
        WithoutRandomness.active += 1
        return super().__enter__()

    def __exit__(self, *failure):
        WithoutRandomness.active -= 1
        return super().__exit__(*failure)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if name == "bernoulli_":
            return args[0].fill_(1)
        if name == "bernoulli":
            return torch.ones_like(args[0])
        if name in ("uniform_", "normal_", "exponential_", "random_"):
            return args[0].fill_(0.5 if name == "uniform_" else 1)
        if name in ("rand_like", "randn_like"):
            return torch.full_like(args[0], 0.5)
        if name in ("rand", "randn"):
            return torch.full_like(func(*args, **kwargs), 0.5)
        if name in _RECURRENT:  # the dropout probability is the only floating-point argument
            args = tuple(0.0 if isinstance(value, float) else value for value in args)
        if func is F.multi_head_attention_forward:  # it calls functions that this mode does not see
            kwargs["training"] = False
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        if func is F.scaled_dot_product_attention and len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        return func(*args, **kwargs)


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_DROPOUTS = {
    *("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout"),
    *("feature_alpha_dropout", "alpha_dropout_", "feature_dropout_"),
}
