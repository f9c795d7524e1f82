"""Autocast within a model's forward pass, named where the self-check fails for it."""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sfumato._checks import SfumatoError
from sfumato.gradients.checks.synthetic import Examples
from sfumato.gradients.examples import call, each, tensors


class _Autocast(TorchFunctionMode):
    """The types that autocast has where functions are called on this kind of device."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind, self.found = kind, set[torch.dtype]()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if torch.is_autocast_enabled(self._kind):
            self.found.add(torch.get_autocast_dtype(self._kind))
        return func(*args, **(kwargs or {}))


def refuse_autocast(model: nn.Module, examples: Examples, views: int) -> None:
    """Refuse, by its name, the half precision that a model or the caller of the self-check has put around its products.

    Args:
        examples: made-up ones, inputs (E, ...) if views is 1, (E, K, ...) otherwise; the first is run.
    """
    first = each(itemgetter(slice(0, 1) if views == 1 else 0), examples[0])
    kind = tensors(first)[0].device.type
    if torch.is_autocast_enabled(kind):
        raise SfumatoError(
            "self_check is called within torch.autocast, too coarsely for the gradients to be checked",
            "call it outside, and put torch.autocast around the call of ClippedGradient alone",
        )
    with _Autocast(kind) as seen, torch.no_grad():
        call(model, {}, first)
    if seen.found:
        names = " and ".join(sorted(str(one).removeprefix("torch.") for one in seen.found))
        raise SfumatoError(
            f"the model computes in {names} within its forward pass (torch.autocast), too coarsely for its gradients "
            "to be checked",
            "take autocast out of it, and give precision='bfloat16' (sfumato.train, private_steps), or put it around "
            "the call of ClippedGradient",
        )
