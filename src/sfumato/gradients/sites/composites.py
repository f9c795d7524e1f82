"""Functions that hide what they are made of: a mode sees the outer call alone, so their insides are run under it again.

Functions of ``torch.nn.functional`` ask first whether a mode wants them, and hand themselves over whole. Run without
that question they are ordinary Python, whose every call the taps see.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import torch.nn.functional as F


def _never(*args) -> bool:
    return False


def _inside(function: Callable) -> Callable:
    """The handler that runs a function's insides with the mode on."""
    assert isinstance(function, FunctionType)
    asking = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    blind = {**function.__globals__, **dict.fromkeys(asking, _never)}
    body = FunctionType(function.__code__, blind, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__

    def tap(mode, *args, **kwargs):
        with mode:
            return body(*args, **kwargs)

    return tap


# Attention modules with their projections, a loss with a last layer inside, and one that calls a function it is given.
_COMPOSITES = [
    getattr(F, name)
    for name in ("multi_head_attention_forward", "linear_cross_entropy", "triplet_margin_with_distance_loss")
    if hasattr(F, name)
]
HANDLERS: dict[Callable, Callable] = {function: _inside(function) for function in _COMPOSITES}
