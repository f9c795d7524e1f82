"""What the tensors that sites use are to the model's parameters, and how gradients are pulled back to these.

A site's operand may be a parameter (the usual case), a parameter with its entries in another order (``W.t()``), or
any other function of parameters: a standardised weight, a normalised one, a merged adapter. Per-example gradients of
``V = h(W)`` belong to W by the chain rule, ``J^T G_b``. The sum over examples needs that only once, since it is linear.
The norm needs it for each example, and there one family of functions has a closed form.

**Functions of rows.** Let each row of V depend on the same row of W, ``J_i^T = s_i (I - a_i e e^T - c_i u_i u_i^T)``, e
the unit vector of equal entries and u_i the direction of V's own row. Weight standardisation (Qiao et al. 2019), with
whatever epsilon, and weight normalisation (Salimans and Kingma 2016) are of this kind, with a learned gain of each row
or without. Then

    |J_i^T d|^2 = s_i^2 ( |d|^2 + (a_i^2 - 2 a_i) (d.e)^2 + (c_i^2 - 2 c_i) (d.u)^2 + 2 a_i c_i (d.e) (d.u) (u.e) )

and a gain's gradient is a multiple of d.u. Whether a function is of this kind is not looked up but found: the numbers
s, a, c come from one backward of a probe, and the form is proven when a model is met by predicting another, random one,
entry by entry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.gradients import clipping
from sfumato.gradients.sites import Use
from sfumato.gradients.sites.uses import Instantiated, rounding, slices, together, tolerance

# Backward steps that only move entries about.
_MOVES = ("T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Alias", "Clone")
# Rows shorter than this don't determine the three numbers of their form.
_SHORTEST_ROW = 8
# Not a seed that people give: weights drawn from the same numbers would be no test.
_PROBE_SEED = 0x5F3759DF
# Relative differences between a function of rows and its closed form: entry by entry when it is proven; in norm later.
_PROOF = {torch.float64: 1e-10, torch.float32: 1e-4}
_DRIFT = {torch.float64: 1e-6, torch.float32: 1e-2}
# What the numbers s, a, c may be wrong by, relative to the norm that they give.
_FORM_ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5}


class RowForm(NamedTuple):
    """The numbers of a function of rows, each (rows,) float64.

    Attributes:
        scales, ones, own: s, a, c of the module's docstring.
        lengths: |V_i|.
        overlap: u_i . e.
        gains: by name of a parameter with one entry for each row, its m_i in ``dV_i / dgain_i = m_i V_i``.
    """

    scales: Tensor
    ones: Tensor
    own: Tensor
    lengths: Tensor
    overlap: Tensor
    gains: dict[str, Tensor]


@dataclass(eq=False)
class Operand:
    """A tensor that sites use, and what it is to the parameters.

    Attributes:
        tensor: with its graph.
        names: of the parameters it depends on.
        derived: whether gradients must be pulled back; a parameter itself is not derived.
        moved: derived, but only by moving entries.
        form: of a function of rows, or None.
        uses: how often sites use it.
    """

    tensor: Tensor
    names: tuple[str, ...]
    derived: bool = True
    moved: bool = False
    form: RowForm | None = None
    uses: int = 0

    @property
    def rows(self) -> tuple[Tensor, Tensor] | None:
        """Weight and scales for `Use.row_statistics`, of a function of rows."""
        return None if self.form is None else (self.tensor.detach(), self.form.scales)


@dataclass(eq=False)
class Forms:
    """What has been found out about a model's functions of parameters; lives as long as its `ClippedGradient`."""

    proven: dict[tuple, bool] = field(default_factory=dict)
    known: dict[tuple, tuple[Tensor, RowForm]] = field(default_factory=dict)
    probes: dict[tuple, Tensor] = field(default_factory=dict)

    def probe(self, like: Tensor, number: int) -> Tensor:
        """The same made-up numbers each time, (rows, n)."""
        key = (tuple(like.shape), like.dtype, like.device, number)
        if key not in self.probes:
            # From NumPy: modes around the model may replace what torch's random functions return.
            drawn = np.random.default_rng([_PROBE_SEED, number]).standard_normal(tuple(like.shape))
            self.probes[key] = torch.from_numpy(drawn).to(like)
        return self.probes[key]


class Operands:
    """The operands of one run.

    Args:
        shared: the tensors that stand for the parameters, by name.
        originals: the model's own, which no graph may reach, by name.
        forms: what earlier runs found out.
    """

    def __init__(self, shared: dict[str, Tensor], originals: dict[str, Tensor], forms: Forms):
        self._shared, self._originals, self._forms = shared, originals, forms
        self._names = {id(leaf): name for name, leaf in shared.items()}
        self._bypassed = {id(leaf): name for name, leaf in originals.items()}
        self._found: dict[int, Operand] = {}

    def of(self, tensor: Tensor) -> Operand:
        """What this tensor is; the same answer for the same tensor."""
        if id(tensor) not in self._found:
            self._found[id(tensor)] = self._met(tensor)
        return self._found[id(tensor)]

    def _met(self, tensor: Tensor) -> Operand:
        if id(tensor) in self._names:
            return Operand(tensor, (self._names[id(tensor)],), derived=False)
        leaf = _moved_leaf(tensor)
        if leaf is not None and id(leaf) in self._names and leaf.numel() == tensor.numel():
            return Operand(tensor, (self._names[id(leaf)],), moved=True)
        operand = Operand(tensor, self._parameters(tensor))
        if tensor.dim() >= 2 and tensor.numel() >= _SHORTEST_ROW * len(tensor):
            operand.form = self._form(tensor, operand.names)
        return operand

    def _parameters(self, tensor: Tensor) -> tuple[str, ...]:
        """Names of the parameters at the ends of the tensor's graph."""
        leaves, seen, nodes = set(), set(), [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaves |= {id(node.variable)} if hasattr(node, "variable") else set()  # type: ignore[attr-defined]
            nodes += [following for following, _ in node.next_functions]
        for leaf in leaves & self._bypassed.keys():
            refuse_bypassed(self._bypassed[leaf])
        return tuple(name for name, leaf in self._shared.items() if id(leaf) in leaves)

    def gradients(
        self, tensor: Tensor, names: tuple[str, ...], output: Tensor, *, batched: bool = False
    ) -> dict[str, Tensor]:
        """``J^T output`` for the parameters named; with `batched`, for each of the outputs."""
        wanted = [self._shared[name] for name in names]
        found = torch.autograd.grad(
            tensor, wanted, output, is_grads_batched=batched, allow_unused=True, retain_graph=True
        )
        return {name: value for name, value in zip(names, found, strict=True) if value is not None}

    def pull_back(self, operand: Operand, values: Tensor) -> dict[str, Use]:
        """From per-example gradients (B, *shape) of an operand to those of its parameters."""
        tensor, names, values = operand.tensor, operand.names, values.to(operand.tensor.dtype)
        try:
            found = self.gradients(tensor, names, values, batched=True)
        except RuntimeError:  # an operation whose backward has no batching rule
            rows = [self.gradients(tensor, names, value) for value in values]
            found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        return {name: Instantiated(gradient) for name, gradient in found.items()}

    def _form(self, tensor: Tensor, names: tuple[str, ...]) -> RowForm | None:
        """The numbers of a function of rows, or None if it is none."""
        key = (names, tuple(tensor.shape), tensor.dtype)
        if self._forms.proven.get(key) is False or self._weight_and_gains(tensor, names) is None:
            return None
        # The same values have the same form, in all micro-batches of a step; they are known again by random dots.
        tensors = [t.detach().reshape(len(tensor), -1) for t in (tensor, *(self._shared[name] for name in names))]
        marks = torch.stack([torch.mv(t, self._forms.probe(t[:1], 2)[0]) for t in tensors])
        if key in self._forms.known and torch.equal(self._forms.known[key][0], marks):
            return self._forms.known[key][1]
        form, likeness = self._measured(tensor, names)
        if key not in self._forms.proven:
            proven = form is not None and self._predicts(tensor, names, form)
            self._forms.proven[key] = proven
            return form if proven else None
        if form is None or likeness > _DRIFT[tensor.dtype]:
            return None
        self._forms.known[key] = marks, form
        return form

    def _weight_and_gains(self, tensor: Tensor, names: tuple[str, ...]) -> tuple[str, list[str]] | None:
        rows = len(tensor)
        weights = [n for n in names if self._shared[n].numel() == tensor.numel() and len(self._shared[n]) == rows]
        gains = [n for n in names if n not in weights]
        if len(weights) != 1 or any(self._shared[n].numel() != rows for n in gains):
            return None
        return weights[0], gains

    def _measured(self, tensor: Tensor, names: tuple[str, ...]) -> tuple[RowForm | None, float]:
        """One probe ``v = z + 3 e + 3 u`` gives ``J^T v = s v + alpha e + beta u`` and with it the form's numbers.

        Returns:
            the form, and how far ``J^T v`` is from such a combination, in norm and relative (a rough number).
        """
        parts = self._weight_and_gains(tensor, names)
        if parts is None or tensor.dtype not in _PROOF:
            return None, math.inf
        own = tensor.detach().flatten(1)
        rows, width = own.shape
        lengths, overlap = _dots(own, own).sqrt(), _sums(own) / width**0.5
        if not bool((lengths > 0).all()) or not bool((overlap.abs() < 0.99 * lengths).all()):
            return None, math.inf
        overlap = overlap / lengths
        probe = self._forms.probe(own, 0) + 3 / width**0.5
        probe = torch.addcmul(probe, own, (3 / lengths).to(own.dtype)[:, None])
        found = self.gradients(tensor, names, probe.reshape(tensor.shape))
        weight, gains = parts
        if set(found) != set(names):
            return None, math.inf
        pulled = found[weight].reshape(rows, width)
        # Inner products of the basis (v, e, u), and of J^T v with it.
        ve, vu = _sums(probe) / width**0.5, _dots(probe, own) / lengths
        basis = torch.stack(
            [
                torch.stack([_dots(probe, probe), ve, vu], -1),
                torch.stack([ve, torch.ones_like(ve), overlap], -1),
                torch.stack([vu, overlap, torch.ones_like(ve)], -1),
            ],
            -1,
        )
        right = torch.stack([_dots(pulled, probe), _sums(pulled) / width**0.5, _dots(pulled, own) / lengths], -1)
        scales, alpha, beta = torch.linalg.solve(basis, right).unbind(-1)
        explained = (torch.stack([scales, alpha, beta], -1) * right).sum(-1)
        whole = _dots(pulled, pulled)
        likeness = float((1 - explained / whole.clamp_min(torch.finfo(torch.float64).tiny)).abs().max())
        form = RowForm(
            scales=scales,
            ones=-alpha / (scales * ve),
            own=-beta / (scales * vu),
            lengths=lengths,
            overlap=overlap,
            gains={name: found[name].reshape(rows).double() / (vu * lengths) for name in gains},
        )
        numbers = torch.stack([*form[:5], *form.gains.values()])
        return (form, likeness) if bool(torch.isfinite(numbers).all()) else (None, math.inf)

    def _predicts(self, tensor: Tensor, names: tuple[str, ...], form: RowForm) -> bool:
        """Whether the form gives ``J^T z`` for another random z, entry by entry."""
        parts = self._weight_and_gains(tensor, names)
        assert parts is not None
        weight, gains = parts
        own = tensor.detach().flatten(1).double() / form.lengths[:, None]
        width = own.shape[1]
        probe = self._forms.probe(tensor.detach().flatten(1), 1)
        found = self.gradients(tensor, names, probe.reshape(tensor.shape))
        probe = probe.double()
        dots = (probe * own).sum(1)
        expected = probe - (form.ones * probe.sum(1) / width)[:, None] - own * (form.own * dots)[:, None]
        pulled = found[weight].reshape(probe.shape).double()
        size = form.scales.abs()
        near = _PROOF[tensor.dtype]
        close = bool(((expected * form.scales[:, None] - pulled).abs().amax(1) <= near * size).all())
        for name in gains:
            ours = form.gains[name] * dots * form.lengths
            allowed = near * (form.gains[name] * form.lengths).abs() * width**0.5
            close = close and bool(((ours - found[name].reshape(-1)).abs() <= allowed).all())
        return close


def _dots(first: Tensor, second: Tensor) -> Tensor:
    """(rows,) float64: inner products of the rows."""
    return (first * second).sum(dim=1).double()


def _sums(rows: Tensor) -> Tensor:
    return rows.sum(dim=1).double()


def _moved_leaf(tensor: Tensor) -> Tensor | None:
    """The leaf whose entries this tensor holds in another order, if its graph says so."""
    node = tensor.grad_fn
    while node is not None:
        if hasattr(node, "variable"):
            return node.variable  # type: ignore[attr-defined]
        kind = node.name().removesuffix("Backward0").removesuffix("Backward1")
        if kind not in _MOVES or len(node.next_functions) != 1:
            return None
        node = node.next_functions[0][0]
    return None


def refuse_bypassed(name: str) -> NoReturn:
    """Refuses a model of which a gradient reaches one of its own parameters, past the tensor that stands for it."""
    raise SfumatoError(
        f"parameter {name!r} is used by the loss, or through a reference outside its module, "
        "so its gradient would be lost",
        "use it inside the model's forward pass as an attribute of its module; for weight decay take the optimizer's",
    )


class Direct:
    """What one parameter got from its uses; with `operand`, through a tensor of the same entries in another order."""

    def __init__(self, name: str, use: Use, operands: Operands, operand: Operand | None = None):
        self.names = (name,)
        self._use, self._operands, self._operand = use, operands, operand

    def squared_norms(self) -> Tensor:
        """(B,) float64: never smaller than the square of what `weighted_sums` adds with factor 1."""
        return self._use.squared_norms()

    def weighted_sums(self, factors: Tensor) -> dict[str, Tensor]:
        """By parameter name, the clipped sum."""
        total = self._use.weighted_sum(factors)
        if self._operand is None:
            return {self.names[0]: total}
        return self._operands.gradients(self._operand.tensor, self.names, total.to(self._operand.tensor.dtype))

    def by_name(self) -> dict[str, Use]:
        """By parameter name, per-example gradients in a form that can be added to others."""
        if self._operand is None:
            return {self.names[0]: self._use}
        return self._operands.pull_back(self._operand, self._use.instantiate())

    def bytes(self) -> int:
        """Memory held."""
        return self._use.bytes()


class OfRows:
    """What the parameters behind a function of rows got from its uses.

    **Guarantee.** As that of `uses.Held`: the norm adds an allowance for the rounding of the dots and of the pull-back,
    and an example for which that would be felt (its gradient lies almost wholly in the directions that the function
    takes away) is pulled back by itself.
    """

    def __init__(self, operand: Operand, use: Use, operands: Operands):
        self.names = operand.names
        self._operand, self._use, self._operands = operand, use, operands
        self._hard: tuple[Tensor, dict[str, Use]] | None = None
        self._squares: Tensor | None = None

    def squared_norms(self) -> Tensor:
        """As `Direct.squared_norms`."""
        if self._squares is None:
            self._squares = self._bound()
        return self._squares

    def _bound(self) -> Tensor:
        form, tensor = self._operand.form, self._operand.tensor
        assert form is not None
        found = self._use.row_statistics(tensor.detach(), form.scales)
        along, even = found.own / form.lengths, found.ones / (tensor[0].numel() ** 0.5)
        a, c = form.ones, form.own
        change = (a * a - 2 * a) * even.square() + (c * c - 2 * c) * along.square()
        change = change + 2 * a * c * form.overlap * even * along
        squares = found.squares + (change * form.scales.square()).sum(dim=1)
        for gain in form.gains.values():
            squares = squares + (gain * found.own).square().sum(dim=1)
        largest = max(
            float(form.scales.abs().max()), *(float((g * form.lengths).abs().max()) for g in form.gains.values()), 0.0
        )
        felt = rounding(found.reach, tensor.to(clipping.accumulation_dtype(tensor.dtype))) * largest
        squares = squares.clamp_min(0)
        upper = squares + 4 * felt * (found.squares.clamp_min(0).sqrt() + felt)
        bound = upper.sqrt() * (1 + _FORM_ROUNDING[tensor.dtype]) + felt
        hard = ~(bound <= (1 + 1.3 * tolerance(tensor.dtype)) * squares.sqrt()) & (found.reach != 0)
        bound = bound.square()
        if bool(hard.any()):
            rows = hard.nonzero()[:, 0]
            exact: dict[str, list[Tensor]] = {name: [] for name in self.names}
            for part in slices(len(rows), tensor.numel()):
                pulled = self._operands.pull_back(self._operand, self._use.instantiate(rows[part]))
                for name, use in pulled.items():
                    exact[name].append(use.instantiate())
            self._hard = rows, {name: Instantiated(torch.cat(values)) for name, values in exact.items()}
            bound[rows] = sum(use.squared_norms() for use in self._hard[1].values())  # type: ignore[assignment]
        return bound

    def weighted_sums(self, factors: Tensor) -> dict[str, Tensor]:
        """As `Direct.weighted_sums`."""
        easy = factors
        if self._hard is not None:
            easy = factors.clone()
            easy[self._hard[0]] = 0
        tensor = self._operand.tensor
        totals = self._operands.gradients(tensor, self.names, self._use.weighted_sum(easy).to(tensor.dtype))
        if self._hard is not None:
            rows, exact = self._hard
            totals = {name: totals[name] + use.weighted_sum(factors[rows]) for name, use in exact.items()}
        return totals

    def by_name(self) -> dict[str, Use]:
        """As `Direct.by_name`."""
        return self._operands.pull_back(self._operand, self._use.instantiate())

    def bytes(self) -> int:
        """Memory held."""
        return self._use.bytes()


Contribution = Direct | OfRows


def contributions(found: list[tuple[Operand, Use]], mains: dict[str, Use], operands: Operands) -> list[Contribution]:
    """What reached each parameter, all uses of it added up before any norm is taken.

    Args:
        found: of each tapped use, its operand.
        mains: of expanded parameters, by name.
    """
    by_operand: dict[int, tuple[Operand, list[Use]]] = {}
    for operand, use in found:
        by_operand.setdefault(id(operand), (operand, []))[1].append(use)
    parts: list[Contribution] = [Direct(name, use, operands) for name, use in mains.items()]
    for operand, uses in by_operand.values():
        use = together(uses)
        if not operand.derived:
            parts.append(Direct(operand.names[0], use, operands))
        elif operand.moved:
            parts.append(Direct(operand.names[0], use, operands, operand))
        elif operand.form is not None:
            parts.append(OfRows(operand, use, operands))
        else:
            pulled = operands.pull_back(operand, use.instantiate())
            parts.extend(Direct(name, gradient, operands) for name, gradient in pulled.items())
    return _added(parts, operands)


def _added(parts: list[Contribution], operands: Operands) -> list[Contribution]:
    """The same with every parameter in one part."""
    counts: dict[str, int] = {}
    for part in parts:
        for name in part.names:
            counts[name] = counts.get(name, 0) + 1
    # A part shares the fate of all the names it covers.
    single = [part for part in parts if all(counts[name] == 1 for name in part.names)]
    several: dict[str, list[Use]] = {}
    for part in parts:
        if any(counts[name] > 1 for name in part.names):
            for name, use in part.by_name().items():
                several.setdefault(name, []).append(use)
    return [*single, *(Direct(name, together(uses), operands) for name, uses in several.items())]
