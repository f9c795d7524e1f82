"""Composite functions: a torch function mode sees only the outer call, so the handler runs their body under the mode.

Functions of ``torch.nn.functional`` first check for an active mode, and pass the whole call to it. Without this check
they are ordinary Python functions, and the taps see every call in their body.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import torch.nn.functional as F


def _never(*args) -> bool:
    return False


def _handler(function: Callable) -> Callable:
    """Returns a handler that runs a function's body with the mode active."""
    assert isinstance(function, FunctionType)
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    namespace = {**function.__globals__, **dict.fromkeys(checks, _never)}
    body = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__

    def tap(mode, *args, **kwargs):
        with mode:
            return body(*args, **kwargs)

    return tap


# Attention modules with their projections, a loss that contains a last layer, and one that calls a given function.
_COMPOSITES = [
    getattr(F, name)
    for name in ("multi_head_attention_forward", "linear_cross_entropy", "triplet_margin_with_distance_loss")
    if hasattr(F, name)
]
HANDLERS: dict[Callable, Callable] = {function: _handler(function) for function in _COMPOSITES}
