"""What each parameter got from all of its uses, in a form that has a norm for each example and a clipped sum."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.methods.derived import Operand, Operands
from sfumato.gradients.sites.forms import together
from sfumato.gradients.use import Exact, Instantiated, Use, tolerance

# What the numbers s, a, c may be wrong by, relative to the norm that they give.
_FORM_ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5}


class Direct:
    """What one parameter got from its uses; with `operand`, through a tensor of the same entries in another order."""

    def __init__(self, name: str, use: Use, operands: Operands, operand: Operand | None = None):
        self.names = (name,)
        self._use, self._operands, self._operand = use, operands, operand

    def squared_norms(self) -> Tensor:
        """(B,) float64: never smaller than the square of what `weighted_sums` adds with factor 1."""
        return self._use.squared_norms()

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """By parameter name, the clipped sum; arguments as `Use.weighted_sum` takes them."""
        total = self._use.weighted_sum(factors, excluding=excluding)
        return {self.names[0]: total if self._operand is None else self._moved_back(total)}

    def _moved_back(self, values: Tensor) -> Tensor:
        """(..., *shape of the parameter) from the order of the operand: exact, in any type."""
        assert self._operand is not None
        tensor, lead = self._operand.tensor, values.shape[: values.dim() - self._operand.tensor.dim()]
        moved = values.new_empty(*lead, tensor.numel())
        strides = [tensor.numel()] * len(lead)
        moved.as_strided(values.shape, (*strides, *tensor.stride())).copy_(values)
        return moved.reshape(*lead, *self._operands.shape(self.names[0]))

    def by_name(self) -> dict[str, Use]:
        """By parameter name, per-example gradients in a form that can be added to others."""
        if self._operand is None:
            return {self.names[0]: self._use}
        return {self.names[0]: Instantiated(self._moved_back(self._use.instantiate()))}

    def bytes(self) -> int:
        """Memory held."""
        return self._use.bytes()


class OfRows:
    """What the parameters behind a function of rows got from its uses.

    **Guarantee.** Norm and sum are those of one linear map, the form's own (`RowForm.pulled`), so that the bound holds
    whether or not that map is the function's derivative; that it is, is what the proof by probes is for. As in
    `uses.Held` the norm adds an allowance for the rounding of dots, sum and map, and an example for which that would
    be felt (its gradient lies almost wholly in the directions that the function takes away) has the norm infinity.
    """

    def __init__(self, operand: Operand, use: Use, operands: Operands):
        self.names = operand.names
        self._operand, self._use, self._operands = operand, use, operands
        self._squares: Tensor | None = None

    def squared_norms(self) -> Tensor:
        """As `Direct.squared_norms`."""
        if self._squares is None:
            self._squares = self._bound()
        return self._squares

    def _bound(self) -> Tensor:
        form, tensor, known = self._operand.form, self._operand.tensor, self._operand.rows
        assert form is not None
        assert known is not None
        found = self._use.row_statistics(known)
        of_ones, of_own, of_both = form.quadratic
        change = found.ones.square() @ of_ones + found.own.square() @ of_own + (found.ones * found.own) @ of_both
        squares, felt = (found.squares + change).clamp_min(0), found.rounding
        doubt = found.own_rounding
        slope = (2 * of_own * found.own).abs() + (of_both * found.ones).abs() + of_own.abs() * doubt
        upper = squares + 4 * felt * (torch.maximum(found.squares, squares).sqrt() + felt) + (slope * doubt).sum(dim=1)
        bound = upper.sqrt() * (1 + _FORM_ROUNDING[tensor.dtype]) + felt
        # Without what the norms of rows were given for their rounding, which counts for more where terms cancel.
        least = (squares - clipping.margin(tensor.dtype) * found.squares).clamp_min(0)
        hard = ~(bound <= (1 + 1.8 * tolerance(tensor.dtype)) * least.sqrt()) & (found.rounding != 0)
        if form.proven is not None:
            hard |= ~form.proven
        return torch.where(hard, torch.inf, bound.square())

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """As `Direct.weighted_sums`."""
        return self._shaped(self._pulled(self._use.weighted_sum(factors, excluding=excluding)))

    def by_name(self) -> dict[str, Use]:
        """As `Direct.by_name`."""
        values = self._use.instantiate()
        return {name: Instantiated(own) for name, own in self._shaped(self._pulled(values), len(values)).items()}

    def _pulled(self, values: Tensor) -> dict[str, Tensor]:
        assert self._operand.form is not None
        return self._operand.form.pulled(self._operand.tensor.detach(), values)

    def _shaped(self, found: dict[str, Tensor], *lead: int) -> dict[str, Tensor]:
        return {name: value.reshape(*lead, *self._operands.shape(name)) for name, value in found.items()}

    def bytes(self) -> int:
        """Memory held."""
        return self._use.bytes()


Contribution = Direct | OfRows


def contributions(
    found: list[tuple[Operand, Use]], mains: dict[str, Use], operands: Operands, *, exact: bool
) -> list[Contribution]:
    """What reached each parameter, all uses of it added up before any norm is taken.

    Args:
        found: of each tapped use, its operand.
        mains: of expanded parameters, by name.
        exact: form every per-example gradient, and the norms of these in float64: for a few examples.
    """
    by_operand: dict[int, tuple[Operand, list[Use]]] = {}
    for operand, use in found:
        by_operand.setdefault(id(operand), (operand, []))[1].append(use)
    parts: list[Contribution] = [Direct(name, use, operands) for name, use in mains.items()]
    for operand, uses in by_operand.values():
        operand.refuse_changed()
        use = together(uses)
        if not operand.derived:
            parts.append(Direct(operand.names[0], use, operands))
        elif operand.moved:
            parts.append(Direct(operand.names[0], use, operands, operand))
        elif operand.form is not None and not exact:
            parts.append(OfRows(operand, use, operands))
        else:
            pulled = operands.pull_back(operand, use.instantiate())
            parts.extend(Direct(name, gradient, operands) for name, gradient in pulled.items())
    parts = _added(parts, operands)
    if not exact:
        return parts
    own = [pair for part in parts for pair in part.by_name().items()]
    return [Direct(name, Exact(use.instantiate()), operands) for name, use in own]


def _added(parts: list[Contribution], operands: Operands) -> list[Contribution]:
    """The same with every parameter in one part."""
    counts: dict[str, int] = {}
    for part in parts:
        for name in part.names:
            counts[name] = counts.get(name, 0) + 1
    # A part shares the fate of all the names it covers.
    single = [part for part in parts if all(counts[name] == 1 for name in part.names)]
    shared: dict[str, list[Use]] = {}
    for part in parts:
        if any(counts[name] > 1 for name in part.names):
            for name, use in part.by_name().items():
                shared.setdefault(name, []).append(use)
    return [*single, *(Direct(name, together(uses), operands) for name, uses in shared.items())]
