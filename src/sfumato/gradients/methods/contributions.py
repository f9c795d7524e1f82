"""The gradient of each parameter, added up over its uses, in a form with a norm per example and a clipped sum."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.methods.derived import Operand, Operands
from sfumato.gradients.methods.layout import members
from sfumato.gradients.methods.row_forms import RowForm
from sfumato.gradients.sites import token_gram
from sfumato.gradients.sites.forms import Factored, Tiled, certified, combine, replace_hard
from sfumato.gradients.sites.token_gram import TokenGram
from sfumato.gradients.use import Exact, Instantiated, RowStatistics, Use, constants, slices, tolerance

# Largest per-example gradient, in elements, that is joined with those of other parameters.
_SMALL = 1 << 12
# The tolerance of gradients whose products were formed in bfloat16 or TF32: their factors were rounded by 5e-4 or more.
_COARSE = 5e-4
# Allowance for the error of the numbers s, a, c, relative to the norm computed from them.
_FORM_ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5}


class Direct:
    """The gradient of one parameter. With `operand`, it comes through a tensor of the same entries in another order."""

    def __init__(self, name: str, use: Use, operands: Operands, operand: Operand | None = None):
        self.names = (name,)
        self.use, self._operands, self._operand = use, operands, operand

    def squared_norms(self) -> Tensor:
        """(B,) float64: never smaller than the square of what `weighted_sums` adds with factor 1."""
        return self.use.squared_norms()

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """The clipped sum by parameter name; arguments as in `Use.weighted_sum`."""
        total = self.use.weighted_sum(factors, excluding=excluding)
        return {self.names[0]: total if self._operand is None else self._moved_back(total)}

    def _moved_back(self, values: Tensor) -> Tensor:
        """Moves values from the order of the operand to (..., *shape of the parameter): exact, in any type."""
        assert self._operand is not None
        tensor, lead = self._operand.tensor, values.shape[: values.dim() - self._operand.tensor.dim()]
        moved = values.new_empty(*lead, tensor.numel())
        strides = [tensor.numel()] * len(lead)
        moved.as_strided(values.shape, (*strides, *tensor.stride())).copy_(values)
        return moved.reshape(*lead, *self._operands.shape(self.names[0]))

    def is_small(self) -> bool:
        """Whether the gradient is small enough to be joined with others in one tensor."""
        whole = type(self.use) is Instantiated and self._operand is None
        return whole and self.use.instantiate()[0].numel() <= _SMALL

    def by_name(self) -> dict[str, Use]:
        """Per-example gradients by parameter name, in a form that can be added to others."""
        if self._operand is None:
            return {self.names[0]: self.use}
        return {self.names[0]: Instantiated(self._moved_back(self.use.instantiate()))}

    def bytes(self) -> int:
        """Memory held."""
        return self.use.bytes()


class Joined:
    """The small gradients of several parameters, joined in one tensor so that one kernel serves them all."""

    def __init__(self, parts: list[Direct]):
        self.names = tuple(part.names[0] for part in parts)
        values = [part.use.instantiate() for part in parts]
        self._shapes = [value.shape[1:] for value in values]
        self._use = Instantiated(torch.cat([value.reshape(len(value), -1) for value in values], dim=1))

    def squared_norms(self) -> Tensor:
        """See `Direct.squared_norms`."""
        return self._use.squared_norms()

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """See `Direct.weighted_sums`."""
        return self._by_name(self._use.weighted_sum(factors, excluding=excluding))

    def by_name(self) -> dict[str, Use]:
        """See `Direct.by_name`."""
        return {name: Instantiated(value) for name, value in self._by_name(self._use.instantiate()).items()}

    def _by_name(self, values: Tensor) -> dict[str, Tensor]:
        pieces = values.split([shape.numel() for shape in self._shapes], dim=-1)
        shapes = [(*values.shape[:-1], *shape) for shape in self._shapes]
        return {name: piece.reshape(shape) for name, piece, shape in zip(self.names, pieces, shapes, strict=True)}

    def bytes(self) -> int:
        """Memory held."""
        return self._use.bytes()


class RowFunction:
    """The gradients of the parameters of a function of rows, from its uses.

    **Guarantee.** Norm and sum use the same linear map, that of the closed form (`RowForm.pull_back`), so the bound
    holds whether or not this map is the function's derivative; the probes are there to show that it is. As in
    `forms.Factored`, the norm includes an allowance for the rounding of dot products, sum and map. An example for which
    this allowance matters (its gradient lies almost entirely in the directions that the function removes) has the norm
    infinity, or is pulled back by itself and kept.
    """

    def __init__(self, operand: Operand, use: Use, operands: Operands):
        self.names = operand.names
        self.operand, self._use, self._operands = operand, use, operands
        self._hard: tuple[Tensor, dict[str, Use]] | None = None

    def squared_norms(self) -> Tensor:
        """See `Direct.squared_norms`."""
        return bounds([self])[0]

    def keep_hard(self, rows: Tensor) -> Tensor:
        """See `Factored.keep_hard`."""
        pieces = [
            self._per_example(rows[part]) for part in slices(len(rows), self.operand.tensor.numel(), on=rows.device)
        ]
        exact: dict[str, Use] = {name: Instantiated(*(piece[name] for piece in pieces)) for name in self.names}
        self._hard = rows, exact
        return torch.stack([use.squared_norms() for use in exact.values()]).sum(dim=0)

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """See `Direct.weighted_sums`."""
        return self.completed(
            self._pull_back(self.easy_sum(factors, excluding=excluding)), factors, excluding=excluding
        )

    def easy_sum(self, factors: Tensor, *, excluding: bool) -> Tensor:
        """The clipped sum of the operand's gradients, without hard examples."""
        easy = factors if self._hard is None else factors.index_fill(0, self._hard[0], 0)
        return self._use.weighted_sum(easy, excluding=excluding)

    def completed(self, pulled: dict[str, Tensor], factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """The pulled-back `easy_sum` with the hard examples added, in the parameters' shapes."""
        totals = self._shaped(pulled)
        if self._hard is not None:
            rows, exact = self._hard
            for name, use in exact.items():
                totals[name] = totals[name] + use.weighted_sum(factors[rows], excluding=excluding)
        return totals

    def by_name(self) -> dict[str, Use]:
        """See `Direct.by_name`."""
        return {name: Instantiated(gradient) for name, gradient in self._per_example(None).items()}

    def _per_example(self, rows: Tensor | None) -> dict[str, Tensor]:
        """Per-example gradients (b, *shape) by parameter name."""
        values = self._use.instantiate(rows)
        return self._shaped(self._pull_back(values), len(values))

    def _pull_back(self, values: Tensor) -> dict[str, Tensor]:
        return self.form.pull_back(self.operand.tensor.detach(), values)

    @property
    def form(self) -> RowForm:
        """The function's closed form."""
        assert self.operand.form is not None
        return self.operand.form

    @property
    def tolerance(self) -> float:
        """The relative excess of a norm above which its example counts as hard."""
        if isinstance(self._use, Tiled) and self._use.coarse:
            return _COARSE
        return tolerance(self.operand.tensor.dtype)

    def statistics(self) -> RowStatistics:
        """The statistics from which the norm is computed."""
        assert self.operand.rows is not None
        return self._use.row_statistics(self.operand.rows)

    def _shaped(self, values: dict[str, Tensor], *lead: int) -> dict[str, Tensor]:
        return {name: value.reshape(*lead, *self._operands.shape(name)) for name, value in values.items()}

    def bytes(self) -> int:
        """Memory held."""
        return self._use.bytes()


class RowFunctionGroup:
    """The gradients through all functions of rows in one matrix of numbers, pulled back by the same few kernels."""

    def __init__(self, parts: list[RowFunction]):
        self.parts = sorted(parts, key=lambda part: part.form.rows.start)
        self.names = tuple(name for part in parts for name in part.names)

    def squared_norms(self) -> Tensor:
        """See `Direct.squared_norms`."""
        return bounds(self.parts).sum(dim=0)

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """See `Direct.weighted_sums`."""
        numbers, parts = self.parts[0].form.numbers, self.parts
        sums = numbers.layout.join([part.easy_sum(factors, excluding=excluding).flatten(1) for part in parts])
        tensors = numbers.layout.join([part.operand.tensor.detach().flatten(1) for part in parts])
        weights, gains = numbers.pull_back(tensors.to(sums.dtype), sums)
        totals: dict[str, Tensor] = {}
        for part, weight in zip(parts, numbers.layout.split(weights), strict=True):
            pulled = part.form.by_name(weight, [gain[part.form.rows] for gain in gains])
            totals |= part.completed(pulled, factors, excluding=excluding)
        return totals

    def by_name(self) -> dict[str, Use]:
        """See `Direct.by_name`."""
        return {name: use for part in self.parts for name, use in part.by_name().items()}

    def bytes(self) -> int:
        """Memory held."""
        return sum(part.bytes() for part in self.parts)


Contribution = Direct | Joined | RowFunction | RowFunctionGroup


def squared_norms(parts: list[Contribution], *, synchronize: bool) -> Tensor:
    """(B,) float64: squared norms over all parameters together, never too small; there is at least one part.

    Args:
        synchronize: find out which examples are hard (`Factored`), and keep their gradients.
    """
    held: list[Factored] = []
    tokens: list[TokenGram] = []
    rows: list[RowFunction] = []
    others: list[Contribution] = []
    for part in parts:
        if isinstance(part, (RowFunction, RowFunctionGroup)):
            rows += part.parts if isinstance(part, RowFunctionGroup) else [part]
        elif isinstance(part, Direct) and isinstance(part.use, Factored):
            held.append(part.use)
        elif isinstance(part, Direct) and isinstance(part.use, TokenGram):
            tokens.append(part.use)
        else:
            others.append(part)
    squares = [torch.stack([part.squared_norms() for part in others])] if others else []
    squares += [certified(held, synchronize=synchronize)] if held else []
    squares += [token_gram.certified(tokens, synchronize=synchronize)] if tokens else []
    squares += [bounds(rows, synchronize=synchronize)] if rows else []
    return torch.cat(squares).sum(dim=0)


def bounds(parts: list[RowFunction], *, synchronize: bool = False) -> Tensor:
    """(S, B) float64: bounds on the squared norms of S functions of rows (`RowFunction`), by shared kernels."""
    statistics, forms = [part.statistics() for part in parts], [part.form for part in parts]
    each = (torch.cat([getattr(one, name) for one in statistics], 1) for name in ("sums", "dots", "dots_rounding"))
    sums, dots, dots_rounding = (one.double() for one in each)
    of_sums, of_dots, of_both = torch.cat([form.numbers.quadratic[:, form.rows] for form in forms], dim=1)
    change = sums.square() * of_sums + dots.square() * of_dots + sums * dots * of_both
    slope = (2 * of_dots * dots).abs() + (of_both * sums).abs() + of_dots.abs() * dots_rounding
    of_rows = members(tuple(form.rows.stop - form.rows.start for form in forms), sums.device)
    change, unsure = (torch.stack([change, slope * dots_rounding]) @ of_rows).unbind()
    direct, rounding = (torch.stack([getattr(one, name) for one in statistics], 1) for name in ("squares", "rounding"))
    dtypes = [part.operand.tensor.dtype for part in parts]
    squares = (direct + change).clamp_min(0)
    upper = squares + 4 * rounding * (torch.maximum(direct, squares).sqrt() + rounding) + unsure
    bound = upper.sqrt() * constants(tuple(1 + _FORM_ROUNDING[dtype] for dtype in dtypes), sums.device) + rounding
    # A lower bound leaves out the margins added to the rows' norms, which weigh more where terms cancel.
    margins = constants(tuple(clipping.margin(dtype, sums.device) for dtype in dtypes), sums.device)
    least = (squares - margins * direct).clamp_min(0)
    most = constants(tuple(1 + 1.8 * part.tolerance for part in parts), sums.device)
    certain = (bound <= most * least.sqrt()) | (rounding == 0)
    hard = ~certain.t()
    unproven = {id(proven): proven for part in parts if (proven := part.operand.proven) is not None}
    if unproven:
        hard |= ~torch.stack(list(unproven.values())).all()
    squares = bound.square_().t().masked_fill(hard, torch.inf)
    return replace_hard(squares, hard, parts) if synchronize else squares


def contributions(
    uses: list[tuple[Operand, Use]], expanded: dict[str, Use], operands: Operands, *, exact: bool
) -> list[Contribution]:
    """Adds up the gradients of each parameter over all of its uses, before any norm is taken.

    Args:
        uses: the tapped uses, each with its operand.
        expanded: the uses of expanded parameters, by name.
        exact: instantiate every per-example gradient, and compute norms in float64; meant for a few examples.
    """
    by_operand: dict[int, tuple[Operand, list[Use]]] = {}
    for operand, use in uses:
        by_operand.setdefault(id(operand), (operand, []))[1].append(use)
    parts: list[Contribution] = [Direct(name, use, operands) for name, use in expanded.items()]
    for operand, of_operand in by_operand.values():
        operand.refuse_changed()
        use = combine(of_operand)
        if not operand.derived:
            parts.append(Direct(operand.names[0], use, operands))
        elif operand.moved:
            parts.append(Direct(operand.names[0], use, operands, operand))
        elif not exact and operand.form is not None:
            parts.append(RowFunction(operand, use, operands))
        else:
            pulled = operands.pull_back(operand, use.instantiate())
            parts.extend(Direct(name, gradient, operands) for name, gradient in pulled.items())
    parts = _complete(parts, operands)
    if not exact:
        return _grouped(_merge_small(parts))
    by_name = [pair for part in parts for pair in part.by_name().items()]
    return [Direct(name, Exact(use.instantiate()), operands) for name, use in by_name]


def _complete(parts: list[Contribution], operands: Operands) -> list[Contribution]:
    """The same contributions with every parameter in exactly one part."""
    counts: dict[str, int] = {}
    for part in parts:
        for name in part.names:
            counts[name] = counts.get(name, 0) + 1
    # All parameters of a part are split off as soon as one of them also occurs elsewhere.
    single = [part for part in parts if all(counts[name] == 1 for name in part.names)]
    shared: dict[str, list[Use]] = {}
    for part in parts:
        if any(counts[name] > 1 for name in part.names):
            for name, use in part.by_name().items():
                shared.setdefault(name, []).append(use)
    return [*single, *(Direct(name, combine(uses), operands) for name, uses in shared.items())]


def _merge_small(parts: list[Contribution]) -> list[Contribution]:
    """The same contributions with small ones joined."""
    small: dict[torch.dtype, list[Direct]] = {}
    for part in parts:
        if isinstance(part, Direct) and part.is_small():
            small.setdefault(part.use.instantiate().dtype, []).append(part)
    several = [group for group in small.values() if len(group) > 1]
    done = {id(part) for group in several for part in group}
    return [*(part for part in parts if id(part) not in done), *map(Joined, several)]


def _grouped(parts: list[Contribution]) -> list[Contribution]:
    """The same contributions with functions of rows grouped if they share one complete matrix of numbers."""
    groups: dict[int, list[RowFunction]] = {}
    for part in parts:
        if isinstance(part, RowFunction):
            groups.setdefault(id(part.form.numbers), []).append(part)
    whole = [group for group in groups.values() if len(group) == len(group[0].form.numbers.layout.rows) > 1]
    done = {id(part) for group in whole for part in group}
    return [*(part for part in parts if id(part) not in done), *map(RowFunctionGroup, whole)]
