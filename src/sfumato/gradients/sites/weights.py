"""Which form the per-example gradients of a weight take: the method that the tuner chose for the site."""

from __future__ import annotations

from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.sites import Site
from sfumato.gradients.sites.forms import Held, Kept
from sfumato.gradients.use import Kernel, Use


def use_of_weight(site: Site, kernel: Kernel, x: Tensor, g: Tensor, y: Tensor | None = None) -> Use:
    """The use of a site's operand "weight", after its backward.

    Args:
        kernel: the arithmetic of the map.
        x, g, y: inputs, output gradients and, if at hand, outputs, each (B*K, ...).
    """
    operand = site.roles["weight"]
    x, g = x.detach(), g.detach()
    if operand.uses > 1 and kernel.joins:
        site.method = "gram, uses joined"
        return Held(kernel, x, g, "gram", later=True)
    dtype = clipping.accumulation_dtype(g.dtype)
    method = site.tuner.method(site.words, kernel, x, g)
    site.method = method
    if method.startswith("keep"):
        derived = operand.rows if operand.uses == 1 else None
        return Kept(kernel, x.to(dtype), g.to(dtype), method.removeprefix("keep "), derived)
    bias = site.operands.get("bias")
    return Held(
        kernel,
        x,
        g,
        method.removeprefix("drop "),
        derived=operand.rows,
        y=None if y is None else y.detach(),
        bias=None if bias is None else bias.detach(),
        later=operand.uses > 1 or (operand.derived and operand.rows is None),
    )
