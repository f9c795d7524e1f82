"""Models that give their logits inside an object, as those of transformers do."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn


class _Logits:
    """Stands in front of a model's class, and takes the logits out of what its forward pass gives."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        outputs = super().forward(*inputs, **named)  # type: ignore[misc] - the model's own
        return outputs if isinstance(outputs, Tensor) else outputs.logits


def holds_logits(outputs: Any) -> bool:
    """Whether what a model gives is an object with logits.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> holds_logits(SimpleNamespace(loss=None, logits=torch.zeros(1, 3))), holds_logits(torch.zeros(1, 3))
    (True, False)
    """
    return not isinstance(outputs, Tensor) and isinstance(getattr(outputs, "logits", None), Tensor)


def giving_logits(model: nn.Module) -> nn.Module:
    """A twin of the model that gives the logits themselves: it has the same parts, parameters and names.

    No wrapper, so weights keep their names; no hook, so the model stays as it is, and the twin's steps can be replayed.
    """
    kind, twin = type(model), copy.copy(model)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    twin.__class__ = type(kind.__name__, (_Logits, kind), named)
    return twin
