"""Computation one level below vmap, where the axis of examples is visible.

Inside ``torch.vmap`` a tensor that depends on the example hides its first axis. A handler that folds examples and views
into one ordinary batch needs this axis. It runs its computation here, on the plain tensors, like a batching rule.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter


def is_batched(value: object) -> bool:
    """Whether a value depends on the example and is under no other vmap, such as one inside the model."""
    if not isinstance(value, Tensor) or not _functorch.is_batchedtensor(value):
        return False
    return not _functorch.is_batchedtensor(_functorch.get_unwrapped(value))


def depends_on_example(value: object) -> bool:
    """Whether a value depends on the example, at any level of vmap."""
    return isinstance(value, Tensor) and _functorch.is_batchedtensor(value)


def unwrap_batched(tensor: Tensor) -> tuple[Tensor, int] | None:
    """The values of all examples and the axis of examples of a tensor that `is_batched`; None for other tensors."""
    if not is_batched(tensor):
        return None
    value, axis = _functorch._unwrap_batched(tensor, retrieve_current_functorch_interpreter().level())
    return None if axis is None else (value, axis)


def apply_batched(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Applies ``function`` to the tensors as (B, ...), and returns its result (B, ...) as a tensor of one example.

    Args:
        tensors: at least one of them batched; tensors that are the same for all examples are expanded.
    """
    interpreter = retrieve_current_functorch_interpreter()
    level, examples = interpreter.level(), interpreter.batch_size()  # type: ignore[attr-defined]
    plain = []
    for tensor in tensors:
        value, axis = _functorch._unwrap_batched(tensor, level)
        plain.append(value.expand(examples, *value.shape) if axis is None else value.movedim(axis, 0))
    with interpreter.lower():
        result = function(*plain)
    return _functorch._add_batch_dim(result, 0, level)
