"""Autocast in a model's forward pass, which the self-check reports when it fails because of it."""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sfumato._checks import SfumatoError
from sfumato.gradients.checks.synthetic import Examples
from sfumato.gradients.examples import call_model, tree_map, tree_tensors


class _Autocast(TorchFunctionMode):
    """Records the autocast types that are active when functions are called."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind, self.dtypes = kind, set[torch.dtype]()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if torch.is_autocast_enabled(self._kind):
            self.dtypes.add(torch.get_autocast_dtype(self._kind))
        return func(*args, **(kwargs or {}))


def refuse_autocast(model: nn.Module, examples: Examples, views: int) -> None:
    """Refuses half precision that the model, or the caller of the self-check, has enabled with autocast.

    Args:
        examples: synthetic examples, inputs (E, ...) if views is 1, (E, K, ...) otherwise; the first one is run.
    """
    first = tree_map(itemgetter(slice(0, 1) if views == 1 else 0), examples[0])
    kind = tree_tensors(first)[0].device.type
    if torch.is_autocast_enabled(kind):
        raise SfumatoError(
            "self_check is called within torch.autocast, which is too coarse to check gradients",
            "call it outside, and put torch.autocast around the call of ClippedGradient only",
        )
    with _Autocast(kind) as active, torch.no_grad():
        call_model(model, {}, first)
    if active.dtypes:
        names = " and ".join(sorted(str(one).removeprefix("torch.") for one in active.dtypes))
        raise SfumatoError(
            f"the model computes in {names} in its forward pass (torch.autocast), which is too coarse to check its "
            "gradients",
            "remove autocast from the model, and give `precision=bfloat16`, or put autocast around the call of "
            "ClippedGradient",
        )
