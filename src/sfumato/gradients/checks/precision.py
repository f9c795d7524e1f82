"""Half precision within a model's forward pass, named where the self-check fails for it."""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sfumato._checks import SfumatoError
from sfumato.gradients.checks.synthetic import Examples
from sfumato.gradients.examples import call, each, tensors

_COARSE = (torch.bfloat16, torch.float16)


class _Types(TorchFunctionMode):
    """The half-precision types that functions give, or that autocast would have on this kind of device."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind, self.found = kind, set[torch.dtype]()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if torch.is_autocast_enabled(self._kind):
            self.found.add(torch.get_autocast_dtype(self._kind))
        result = func(*args, **(kwargs or {}))
        self.found.update(one.dtype for one in tree_leaves(result) if isinstance(one, Tensor) and one.dtype in _COARSE)
        return result


def refuse_coarse(model: nn.Module, examples: Examples, views: int) -> None:
    """Refuse, by its name, the half precision that a model computes in, whatever the type of its parameters.

    Args:
        model: in float64.
        examples: made-up ones, inputs (E, ...) if views is 1, (E, K, ...) otherwise; the first is run.
    """
    first = each(itemgetter(slice(0, 1) if views == 1 else 0), examples[0])
    kind = tensors(first)[0].device.type
    if torch.is_autocast_enabled(kind):
        raise SfumatoError(
            "self_check is called within torch.autocast, too coarsely for its gradients to be checked",
            "call it outside, and put torch.autocast around the call of ClippedGradient alone",
        )
    with _Types(kind) as seen, torch.no_grad():
        call(model, {}, first)
    if seen.found:
        names = " and ".join(sorted(str(one).removeprefix("torch.") for one in seen.found))
        raise SfumatoError(
            f"the model computes in {names} within its forward pass (torch.autocast, or a conversion), too coarsely "
            "for its gradients to be checked",
            "take that out of it, and give precision='bfloat16' (sfumato.train, private_steps), or put torch.autocast "
            "around the call of ClippedGradient",
        )
