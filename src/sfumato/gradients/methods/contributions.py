"""What each parameter got from all of its uses, in a form that has a norm for each example and a clipped sum."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.methods.derived import Operand, Operands
from sfumato.gradients.methods.layout import members
from sfumato.gradients.methods.row_forms import RowForm
from sfumato.gradients.sites import token_gram
from sfumato.gradients.sites.forms import Held, Kept, certified, together, with_hard_kept
from sfumato.gradients.sites.token_gram import TokenGram
from sfumato.gradients.use import Exact, Instantiated, RowStatistics, Use, constants, slices, tolerance

# Numbers per example up to which gradients are put beside those of other parameters.
_SMALL = 1 << 12
# The tolerance of gradients whose products were formed in bfloat16 or TF32: their factors were rounded by 5e-4 or more.
_COARSE = 5e-4
# What the numbers s, a, c may be wrong by, relative to the norm that they give.
_FORM_ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5}


class Direct:
    """What one parameter got from its uses; with `operand`, through a tensor of the same entries in another order."""

    def __init__(self, name: str, use: Use, operands: Operands, operand: Operand | None = None):
        self.names = (name,)
        self.use, self._operands, self._operand = use, operands, operand

    def squared_norms(self) -> Tensor:
        """(B,) float64: never smaller than the square of what `weighted_sums` adds with factor 1."""
        return self.use.squared_norms()

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """By parameter name, the clipped sum; arguments as `Use.weighted_sum` takes them."""
        total = self.use.weighted_sum(factors, excluding=excluding)
        return {self.names[0]: total if self._operand is None else self._moved_back(total)}

    def _moved_back(self, values: Tensor) -> Tensor:
        """(..., *shape of the parameter) from the order of the operand: exact, in any type."""
        assert self._operand is not None
        tensor, lead = self._operand.tensor, values.shape[: values.dim() - self._operand.tensor.dim()]
        moved = values.new_empty(*lead, tensor.numel())
        strides = [tensor.numel()] * len(lead)
        moved.as_strided(values.shape, (*strides, *tensor.stride())).copy_(values)
        return moved.reshape(*lead, *self._operands.shape(self.names[0]))

    def is_small(self) -> bool:
        """Whether it could as well stand in a tensor with others."""
        whole = type(self.use) is Instantiated and self._operand is None
        return whole and self.use.instantiate()[0].numel() <= _SMALL

    def by_name(self) -> dict[str, Use]:
        """By parameter name, per-example gradients in a form that can be added to others."""
        if self._operand is None:
            return {self.names[0]: self.use}
        return {self.names[0]: Instantiated(self._moved_back(self.use.instantiate()))}

    def bytes(self) -> int:
        """Memory held."""
        return self.use.bytes()


class Beside:
    """What several parameters got, where that is little for each: in one tensor, so that one kernel does for all."""

    def __init__(self, parts: list[Direct]):
        self.names = tuple(part.names[0] for part in parts)
        values = [part.use.instantiate() for part in parts]
        self._shapes = [value.shape[1:] for value in values]
        self._use = Instantiated(torch.cat([value.reshape(len(value), -1) for value in values], dim=1))

    def squared_norms(self) -> Tensor:
        """As `Direct.squared_norms`."""
        return self._use.squared_norms()

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """As `Direct.weighted_sums`."""
        return self._by_name(self._use.weighted_sum(factors, excluding=excluding))

    def by_name(self) -> dict[str, Use]:
        """As `Direct.by_name`."""
        return {name: Instantiated(own) for name, own in self._by_name(self._use.instantiate()).items()}

    def _by_name(self, values: Tensor) -> dict[str, Tensor]:
        pieces = values.split([shape.numel() for shape in self._shapes], dim=-1)
        shapes = [(*values.shape[:-1], *shape) for shape in self._shapes]
        return {name: own.reshape(shape) for name, own, shape in zip(self.names, pieces, shapes, strict=True)}

    def bytes(self) -> int:
        """Memory held."""
        return self._use.bytes()


class OfRows:
    """What the parameters behind a function of rows got from its uses.

    **Guarantee.** Norm and sum are those of one linear map, the form's own (`RowForm.pulled`), so that the bound holds
    whether or not that map is the function's derivative; that it is, is what the proof by probes is for. As in
    `uses.Held` the norm adds an allowance for the rounding of dots, sum and map, and an example for which that would
    be felt (its gradient lies almost wholly in the directions that the function takes away) has the norm infinity, or
    is pulled back by itself and kept.
    """

    def __init__(self, operand: Operand, use: Use, operands: Operands):
        self.names = operand.names
        self.operand, self._use, self._operands = operand, use, operands
        self._hard: tuple[Tensor, dict[str, Use]] | None = None

    def squared_norms(self) -> Tensor:
        """As `Direct.squared_norms`."""
        return bounds([self])[0]

    def keep_hard(self, rows: Tensor) -> Tensor:
        """As `Held.keep_hard`."""
        pieces = [self._each(rows[part]) for part in slices(len(rows), self.operand.tensor.numel(), on=rows.device)]
        own: dict[str, Use] = {name: Instantiated(*(piece[name] for piece in pieces)) for name in self.names}
        self._hard = rows, own
        return torch.stack([use.squared_norms() for use in own.values()]).sum(dim=0)

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """As `Direct.weighted_sums`."""
        return self.completed(self._pulled(self.easy_sum(factors, excluding=excluding)), factors, excluding=excluding)

    def easy_sum(self, factors: Tensor, *, excluding: bool) -> Tensor:
        """The clipped sum of the operand's own gradients, without hard examples."""
        easy = factors if self._hard is None else factors.index_fill(0, self._hard[0], 0)
        return self._use.weighted_sum(easy, excluding=excluding)

    def completed(self, pulled: dict[str, Tensor], factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """What is pulled back of `easy_sum`, with the hard examples and in the parameters' shapes."""
        totals = self._shaped(pulled)
        if self._hard is not None:
            rows, exact = self._hard
            for name, use in exact.items():
                totals[name] = totals[name] + use.weighted_sum(factors[rows], excluding=excluding)
        return totals

    def by_name(self) -> dict[str, Use]:
        """As `Direct.by_name`."""
        return {name: Instantiated(own) for name, own in self._each(None).items()}

    def _each(self, rows: Tensor | None) -> dict[str, Tensor]:
        """(b, *shape) by parameter name."""
        values = self._use.instantiate(rows)
        return self._shaped(self._pulled(values), len(values))

    def _pulled(self, values: Tensor) -> dict[str, Tensor]:
        return self.form.pulled(self.operand.tensor.detach(), values)

    @property
    def form(self) -> RowForm:
        """The numbers of the function."""
        assert self.operand.form is not None
        return self.operand.form

    @property
    def tolerance(self) -> float:
        """How much too large a norm may be, relatively, before its example counts as hard."""
        if isinstance(self._use, Kept) and self._use.coarse:
            return _COARSE
        return tolerance(self.operand.tensor.dtype)

    def statistics(self) -> RowStatistics:
        """What the norm is made of."""
        assert self.operand.rows is not None
        return self._use.row_statistics(self.operand.rows)

    def _shaped(self, found: dict[str, Tensor], *lead: int) -> dict[str, Tensor]:
        return {name: value.reshape(*lead, *self._operands.shape(name)) for name, value in found.items()}

    def bytes(self) -> int:
        """Memory held."""
        return self._use.bytes()


class OfManyRows:
    """What the parameters got behind all functions of rows whose numbers stand in one matrix: its sum is pulled back
    by the same few kernels for all."""

    def __init__(self, parts: list[OfRows]):
        self.parts = sorted(parts, key=lambda part: part.form.rows.start)
        self.names = tuple(name for part in parts for name in part.names)

    def squared_norms(self) -> Tensor:
        """As `Direct.squared_norms`."""
        return bounds(self.parts).sum(dim=0)

    def weighted_sums(self, factors: Tensor, *, excluding: bool) -> dict[str, Tensor]:
        """As `Direct.weighted_sums`."""
        numbers, parts = self.parts[0].form.numbers, self.parts
        sums = numbers.layout.joined([part.easy_sum(factors, excluding=excluding).flatten(1) for part in parts])
        own = numbers.layout.joined([part.operand.tensor.detach().flatten(1) for part in parts])
        weights, gains = numbers.pulled(own.to(sums.dtype), sums)
        totals: dict[str, Tensor] = {}
        for part, weight in zip(parts, numbers.layout.apart(weights), strict=True):
            pulled = part.form.by_name(weight, [gain[part.form.rows] for gain in gains])
            totals |= part.completed(pulled, factors, excluding=excluding)
        return totals

    def by_name(self) -> dict[str, Use]:
        """As `Direct.by_name`."""
        return {name: use for part in self.parts for name, use in part.by_name().items()}

    def bytes(self) -> int:
        """Memory held."""
        return sum(part.bytes() for part in self.parts)


Contribution = Direct | Beside | OfRows | OfManyRows


def squared_norms(parts: list[Contribution], *, synchronize: bool) -> Tensor:
    """(B,) float64: of the gradients of all parameters together, never too small; there is at least one part.

    Args:
        synchronize: look which examples are hard (`Held`), and keep their gradients for what they are hard for.
    """
    held: list[Held] = []
    tokens: list[TokenGram] = []
    rows: list[OfRows] = []
    others: list[Contribution] = []
    for part in parts:
        if isinstance(part, (OfRows, OfManyRows)):
            rows += part.parts if isinstance(part, OfManyRows) else [part]
        elif isinstance(part, Direct) and isinstance(part.use, Held):
            held.append(part.use)
        elif isinstance(part, Direct) and isinstance(part.use, TokenGram):
            tokens.append(part.use)
        else:
            others.append(part)
    found = [torch.stack([part.squared_norms() for part in others])] if others else []
    found += [certified(held, synchronize=synchronize)] if held else []
    found += [token_gram.certified(tokens, synchronize=synchronize)] if tokens else []
    found += [bounds(rows, synchronize=synchronize)] if rows else []
    return torch.cat(found).sum(dim=0)


def bounds(parts: list[OfRows], *, synchronize: bool = False) -> Tensor:
    """(S, B) float64: the squared norms of S functions of rows, as `OfRows` promises, by the same kernels for all."""
    found, forms = [part.statistics() for part in parts], [part.form for part in parts]
    each = (torch.cat([getattr(one, name) for one in found], 1) for name in ("ones", "own", "own_rounding"))
    ones, own, doubt = (one.double() for one in each)
    of_ones, of_own, of_both = torch.cat([form.numbers.quadratic[:, form.rows] for form in forms], dim=1)
    change = ones.square() * of_ones + own.square() * of_own + ones * own * of_both
    slope = (2 * of_own * own).abs() + (of_both * ones).abs() + of_own.abs() * doubt
    of_rows = members(tuple(form.rows.stop - form.rows.start for form in forms), ones.device)
    change, unsure = (torch.stack([change, slope * doubt]) @ of_rows).unbind()
    direct, felt = (torch.stack([getattr(one, name) for one in found], 1) for name in ("squares", "rounding"))
    dtypes = [part.operand.tensor.dtype for part in parts]
    squares = (direct + change).clamp_min(0)
    upper = squares + 4 * felt * (torch.maximum(direct, squares).sqrt() + felt) + unsure
    bound = upper.sqrt() * constants(tuple(1 + _FORM_ROUNDING[dtype] for dtype in dtypes), ones.device) + felt
    # Without what the norms of rows were given for their rounding, which counts for more where terms cancel.
    margins = constants(tuple(clipping.margin(dtype, ones.device) for dtype in dtypes), ones.device)
    least = (squares - margins * direct).clamp_min(0)
    most = constants(tuple(1 + 1.8 * part.tolerance for part in parts), ones.device)
    certain = (bound <= most * least.sqrt()) | (felt == 0)
    hard = ~certain.t()
    unproven = {id(proven): proven for part in parts if (proven := part.operand.proven) is not None}
    if unproven:
        hard |= ~torch.stack(list(unproven.values())).all()
    squares = bound.square_().t().masked_fill(hard, torch.inf)
    return with_hard_kept(squares, hard, parts) if synchronize else squares


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
        elif not exact and operand.form is not None:
            parts.append(OfRows(operand, use, operands))
        else:
            pulled = operands.pull_back(operand, use.instantiate())
            parts.extend(Direct(name, gradient, operands) for name, gradient in pulled.items())
    parts = _added(parts, operands)
    if not exact:
        return _of_many_rows(_beside(parts))
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


def _beside(parts: list[Contribution]) -> list[Contribution]:
    """The same with small ones beside each other."""
    small: dict[torch.dtype, list[Direct]] = {}
    for part in parts:
        if isinstance(part, Direct) and part.is_small():
            small.setdefault(part.use.instantiate().dtype, []).append(part)
    several = [own for own in small.values() if len(own) > 1]
    done = {id(part) for own in several for part in own}
    return [*(part for part in parts if id(part) not in done), *map(Beside, several)]


def _of_many_rows(parts: list[Contribution]) -> list[Contribution]:
    """The same with functions of rows together whose numbers make up one matrix."""
    groups: dict[int, list[OfRows]] = {}
    for part in parts:
        if isinstance(part, OfRows):
            groups.setdefault(id(part.form.numbers), []).append(part)
    whole = [group for group in groups.values() if len(group) == len(group[0].form.numbers.layout.rows) > 1]
    done = {id(part) for group in whole for part in group}
    return [*(part for part in parts if id(part) not in done), *map(OfManyRows, whole)]
