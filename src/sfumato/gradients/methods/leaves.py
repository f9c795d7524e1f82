"""Leaves: the parameters of one run of the model, shared by all examples or expanded to one copy each.

A parameter whose uses are all tapped is *shared*. All others (class token, position embedding, LayerScale, the scale of
a norm, any use that no tap knows) are *expanded*: every example gets its own copy under vmap, which takes no memory,
and autograd itself yields the per-example gradients. The engine finds out by running the model: a shared parameter that
still has a gradient path outside the taps must be expanded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients import clipping
from sfumato.gradients.methods.derived import refuse_bypassed
from sfumato.gradients.use import Instantiated, Use
from sfumato.gradients.walk import named_parameters


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters that require gradients, each once, under its first name."""
    trainable: dict[str, Tensor] = {
        name: parameter for name, parameter in named_parameters(model).items() if parameter.requires_grad
    }
    for name, parameter in trainable.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise SfumatoError(
                f"parameter {name!r} has no shape yet", "run the model once on a synthetic input before passing it here"
            )
        if not parameter.is_floating_point():
            raise SfumatoError(
                f"parameter {name!r} has the type {parameter.dtype}, for which no clipped gradient is defined",
                "store real and imaginary parts in a real parameter (..., 2) and apply torch.view_as_complex to it in "
                "the forward pass, or freeze it with requires_grad_(False)"
                if parameter.is_complex()
                else "use real floating-point parameters, or freeze it with requires_grad_(False)",
            )
    if not trainable:
        raise SfumatoError(
            "the model has no trainable parameter", "set requires_grad_(True) on those that should be trained"
        )
    return trainable


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """The tensors that replace the model's own in one run.

    Attributes:
        shared: by name, of the parameter's shape.
        expanded: by name, (B, *shape).
        fixed: copies of frozen parameters and buffers that the run must not touch; usually empty.
        originals: the model's own trainable parameters. A gradient that reaches one of them bypassed its substitute.
    """

    shared: dict[str, Tensor]
    expanded: dict[str, Tensor]
    fixed: dict[str, Tensor]
    originals: dict[str, Tensor]

    def backward(self, total: Tensor, anchors: list[Tensor]) -> tuple[dict[str, Use], set[str]]:
        """Runs the backward pass, outside the taps and, through the anchors, inside them.

        Returns:
            the expanded parameters' uses, and the names of shared parameters that turn out to need expansion.
        """
        if not total.requires_grad:
            return {}, set()
        wanted = [*anchors, *self.expanded.values(), *self.shared.values(), *self.originals.values()]
        gradients = torch.autograd.grad(total, wanted, allow_unused=True)[len(anchors) :]
        uses: dict[str, Use] = {
            name: Instantiated(values)
            for name, values in zip(self.expanded, gradients, strict=False)
            if values is not None
        }
        direct = gradients[len(self.expanded) :]
        self.refuse_bypassed(direct[len(self.shared) :])
        return uses, {name for name, values in zip(self.shared, direct, strict=False) if values is not None}

    def refuse_bypassed(self, gradients: Sequence[Tensor | None]) -> None:
        """Raises an error if a gradient reached one of the originals; gradients are in their order."""
        for name, gradient in zip(self.originals, gradients, strict=True):
            if gradient is not None:
                refuse_bypassed(name)


def make_leaves(model: nn.Module, examples: int, expanded: Collection[str], *, own_copies: bool = False) -> Leaves:
    """Creates the leaves of one run.

    Args:
        examples: B.
        expanded: names of the parameters to expand.
        own_copies: copy every parameter and buffer, so that a model that writes to them does no harm.
    """

    def plain(tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if own_copies else tensor.detach()

    trainable = trainable_parameters(model)
    fixed: dict[str, Tensor] = {}
    if own_copies:
        frozen = {name: tensor for name, tensor in named_parameters(model).items() if name not in trainable}
        fixed = {name: plain(tensor) for name, tensor in {**frozen, **dict(model.named_buffers())}.items()}
    return Leaves(
        shared={name: plain(p).requires_grad_() for name, p in trainable.items() if name not in expanded},
        expanded={
            name: plain(trainable[name]).unsqueeze(0).expand(examples, *trainable[name].shape).requires_grad_()
            for name in trainable
            if name in expanded
        },
        fixed=fixed,
        originals=trainable,
    )


def zero_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Zeros for every trainable parameter, in the type in which its gradients are summed."""
    return {name: clipping.zeros(parameter) for name, parameter in trainable_parameters(model).items()}
