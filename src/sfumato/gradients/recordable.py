"""What lets a call be recorded and run again (`replay`): its questions about numbers, and its constants.

A question such as "is any example out of range" is nearly always answered alike. Asked in the ordinary way, it is
answered by looking. While a call is being recorded, today's answer is taken for granted, and the question becomes part
of the recording: where a later call would answer otherwise, it is computed in the ordinary way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_ASSUMED: ContextVar[list[Tensor] | None] = ContextVar("assumed", default=None)
_PERMANENT = WeakTensorKeyDictionary()


class CannotReplay(Exception):  # noqa: N818
    """A call that must be computed in the ordinary way; the message says why."""


def holds(question: Tensor) -> bool:
    """The answer to a question () bool about numbers; a device is waited for.

    >>> import torch
    >>> holds(torch.tensor([1.0, 2.0]).max() > 1)
    True
    """
    assumed = _ASSUMED.get()
    if assumed is None:
        return bool(question)
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with disable_proxy_modes_tracing():
        answer = bool(question)
    assumed.append(question if answer else ~question)
    return answer


@contextmanager
def assuming() -> Iterator[list[Tensor]]:
    """While inside, questions are noted in the list that this gives: () bool each, true where the answer stays."""
    assumed: list[Tensor] = []
    token = _ASSUMED.set(assumed)
    try:
        yield assumed
    finally:
        _ASSUMED.reset(token)


def permanent(tensor: Tensor) -> Tensor:
    """The tensor, noted as one whose numbers never change, so that a recording may hold it."""
    _PERMANENT[tensor] = True
    return tensor


def is_permanent(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor never change."""
    return tensor in _PERMANENT
