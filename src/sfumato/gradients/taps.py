"""Taps: how expensive uses of parameters are intercepted without changing the model.

`Taps` is a torch function mode around the forward pass of one example under ``torch.vmap``. It intercepts ``F.linear``,
convolutions, norms and similar functions whose input depends on the example and whose parameters do not. It passes them
to a function whose batching rule folds examples and views into one ordinary batch, so the ordinary kernel runs once.
The backward of this function belongs to the site (`sites`): it computes only the gradient of the input, and keeps what
the clipped sum needs. Autograd computes no parameter gradient: the parameter is detached there, so without other uses
it has no gradient path left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.gradients import conditions
from sfumato.gradients.checks import hooks
from sfumato.gradients.frozen import FrozenNorms
from sfumato.gradients.methods.batch_axis import apply_batched, depends_on_example, is_batched
from sfumato.gradients.sites import (
    Site,
    attention,
    composites,
    conv,
    dropout,
    embedding,
    embedding_bag,
    layer_norm,
    linear,
    norm,
    recurrent,
)

if TYPE_CHECKING:
    from sfumato.gradients.methods.derived import Operands
    from sfumato.gradients.sites.dropout import ExampleDraws
    from sfumato.gradients.tuner import Tuner


class Tape:
    """The sites of a forward pass.

    Attributes:
        sites: in the order of the forward pass.
        anchor: () tensor that requires a gradient, passed to every tapped call.
        operands: maps each tensor used by a site to the model's parameters.
        tuner: chooses each site's method.
        draws: the random numbers of dropout, or None to draw none.
        conditions: the conditions that the model evaluates on its example.
    """

    def __init__(
        self,
        device: torch.device,
        operands: Operands,
        tuner: Tuner,
        draws: ExampleDraws | None,
        conditions: conditions.Conditions,
    ):
        self.sites: list[Site] = []
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.operands, self.tuner, self.draws, self.conditions = operands, tuner, draws, conditions

    def record(self, site: Site, examples: int, views: int) -> None:
        """Records the start of a site's call."""
        site.examples, site.views, site.tuner = examples, views, self.tuner
        site.roles = {role: self.operands.operand_of(t) for role, t in site.operands.items() if t.requires_grad}
        for operand in site.roles.values():
            operand.uses += 1
        self.sites.append(site)


class _Tapped(torch.autograd.Function):
    """A site's call on folded examples. The anchor makes autograd run the backward even for inputs without gradient."""

    @staticmethod
    def forward(ctx, inputs, anchor, site):
        began = time.perf_counter()
        outputs, saved = site.forward(inputs)
        ctx.save_for_backward(*saved)
        ctx.site = site
        site.seconds += time.perf_counter() - began
        # In-place operations on a view returned from here would fail, such as an in-place activation after a norm.
        return torch.ops.aten._unsafe_view(outputs, outputs.shape) if outputs._is_view() else outputs

    @staticmethod
    def backward(ctx, output_gradients):  # type: ignore[override]
        began = time.perf_counter()
        with torch.autocast(output_gradients.device.type, enabled=False):
            gradient = ctx.site.backward(ctx.saved_tensors, output_gradients, ctx.needs_input_grad[0])
        ctx.site.seconds += time.perf_counter() - began
        return gradient, None, None


class Taps(FrozenNorms):
    """The mode around one example's forward pass; writes to the tape."""

    def __init__(self, tape: Tape):
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        handler = HANDLERS.get(func)
        if handler is not None:
            outputs = handler(self, *args, **kwargs)
            if outputs is not NotImplemented:
                return outputs
        return super().__torch_function__(func, types, args, kwargs)

    def can_draw(self, like: Any) -> bool:
        """Whether random numbers of this tensor's shape can be drawn from the examples' keys."""
        return self.tape.draws is not None and is_batched(like)

    def call(self, site: Site, inputs: Any, axes: int = 0) -> Any:
        """A site's outputs for one example's inputs (K, ...), or NotImplemented if the call cannot be tapped.

        Inputs with at most `axes` axes are a single image without an axis of views; one is added for the call. A call
        can be tapped if the inputs depend on the example, the operands do not, and one of them is trained. Complex
        tensors are left to autograd, which conjugates them correctly.
        """
        operands = site.operands.values()
        if not is_batched(inputs) or any(depends_on_example(operand) for operand in operands):
            return NotImplemented
        if any(tensor.is_complex() for tensor in (inputs, *operands)):
            return NotImplemented
        if not any(operand.requires_grad for operand in operands):
            return NotImplemented
        if inputs.dim() <= axes:
            return apply_batched(partial(self._folded, site), inputs.unsqueeze(0)).squeeze(0)
        return apply_batched(partial(self._folded, site), inputs)

    def _folded(self, site: Site, inputs: Tensor) -> Tensor:
        """The site's outputs (B, K, ...) for inputs (B, K, ...)."""
        if torch.is_autocast_enabled(inputs.device.type) and inputs.is_floating_point():
            half = torch.get_autocast_dtype(inputs.device.type)
            inputs = inputs.to(half if site.half else torch.promote_types(inputs.dtype, torch.float32))
        examples, views = inputs.shape[:2]
        self.tape.record(site, examples, views)
        with torch.autocast(inputs.device.type, enabled=False):
            outputs = _Tapped.apply(inputs.flatten(0, 1), self.tape.anchor, site)
        return outputs.unflatten(0, (examples, -1))


# A handler gets the mode and the function's own arguments, and returns NotImplemented to let it run as it is.
HANDLERS: dict[Callable, Callable] = {
    F.linear: linear.tap,
    torch.matmul: linear.tap_product,
    torch.mm: linear.tap_product,
    Tensor.matmul: linear.tap_product,
    Tensor.mm: linear.tap_product,
    Tensor.__matmul__: linear.tap_product,
    torch.addmm: linear.tap_added_product,
    F.conv1d: conv.tap,
    F.conv2d: conv.tap,
    F.conv3d: conv.tap,
    F.conv_transpose1d: conv.tap_transposed,
    F.conv_transpose2d: conv.tap_transposed,
    F.conv_transpose3d: conv.tap_transposed,
    F.scaled_dot_product_attention: attention.tap,
    F.group_norm: norm.tap_group_norm,
    F.instance_norm: norm.tap_instance_norm,
    F.batch_norm: norm.tap_batch_norm,
    F.layer_norm: layer_norm.tap_layer_norm,
    F.rms_norm: layer_norm.tap_rms_norm,
    F.embedding: embedding.tap,
    F.embedding_bag: embedding_bag.tap,
    **recurrent.HANDLERS,
    **composites.HANDLERS,
    **dropout.HANDLERS,
    **conditions.HANDLERS,
    **hooks.HANDLERS,
}
