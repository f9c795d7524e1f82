"""One level below vmap, where the examples' axis can be seen.

Inside ``torch.vmap`` a tensor that depends on the example hides its first axis. A handler that must see it, to fold
examples and views into one ordinary batch, runs its computation here: on the plain tensors, as a batching rule does.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter


def is_batched(value: object) -> bool:
    """Whether a value depends on the example, and that alone: no other vmap, of the model's own, is around it."""
    if not isinstance(value, Tensor) or not _functorch.is_batchedtensor(value):
        return False
    return not _functorch.is_batchedtensor(_functorch.get_unwrapped(value))


def hides_examples(value: object) -> bool:
    """Whether a value depends on the example, in whatever way."""
    return isinstance(value, Tensor) and _functorch.is_batchedtensor(value)


def values_of(tensor: Tensor) -> tuple[Tensor, int] | None:
    """What a tensor that `is_batched` holds for all examples, and the axis of the examples; None if it is not."""
    if not is_batched(tensor):
        return None
    value, axis = _functorch._unwrap_batched(tensor, retrieve_current_functorch_interpreter().level())
    return None if axis is None else (value, axis)


def lowered(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """``function`` of the tensors as (B, ...), its result (B, ...) as one example's again.

    Args:
        tensors: at least one of them batched; one that is the same for all examples is expanded.
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
