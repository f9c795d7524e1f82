"""Sites: the places in a forward pass where parameters meet the data, one file per kind.

A *site* is one call of a heavy function (`linear`, `conv`). Its forward is the ordinary fast kernel on all examples at
once; in the backward it is given its inputs and the gradients of its outputs (`Site.record`), and from these it answers
for each tensor it used, its *operands*, what a clipped sum needs (`Use`). Another way of computing norms is another
`Use`.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from sfumato.gradients import clipping


class Use(Protocol):
    """The per-example gradients of one tensor from one use of it, in whatever form is cheapest."""

    def squared_norms(self) -> Tensor:
        """(B,) float64, never smaller than the square of what `weighted_sum` adds for the example with factor 1."""
        ...

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """``sum_b factors_b G_b``, of the tensor's shape, float32 at least; factors (B,), zero means excluded."""
        ...

    def instantiate(self) -> Tensor:
        """(B, *shape), the per-example gradients themselves."""
        ...

    def bytes(self) -> int:
        """Memory held, in bytes."""
        ...


class Site(Protocol):
    """One tapped call in a forward pass."""

    def record(self, inputs: Tensor, output_gradients: Tensor) -> None:
        """Called once, in the backward, with the folded inputs (B*K, ...) and the gradients of the outputs."""
        ...

    def uses(self) -> list[tuple[Tensor, Use]]:
        """The trainable operands and their per-example gradients; empty if the backward never came by."""
        ...


class Instantiated:
    """Per-example gradients (B, *shape) as they are: the plain way, and the common form of all others."""

    def __init__(self, values: Tensor):
        self._values = values

    def squared_norms(self) -> Tensor:
        return clipping.squared_norms(self._values)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return clipping.weighted_sum(self._values, factors)

    def instantiate(self) -> Tensor:
        return self._values

    def bytes(self) -> int:
        return self._values.numel() * self._values.element_size()


def together(uses: list[Use]) -> Use:
    """All uses of one tensor as one: they add before the norm is taken."""
    if len(uses) == 1:
        return uses[0]
    total = uses[0].instantiate().clone()
    for use in uses[1:]:
        total += use.instantiate()
    return Instantiated(total)
