"""Functions of rows (`derived`): how their numbers are found, and what is remembered between runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato.gradients.methods.layout import Layout

# Internal seed, not one that users are likely to choose: weights drawn from the same numbers would defeat the test.
_PROBE_SEED = 0x5F3759DF
# Outside this range of row lengths, float32 cannot hold the squares.
_LENGTHS = (1e-15, 1e15)
PROOF = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Largest relative difference, entry by entry, between a function of rows and its closed form."""


@dataclass(frozen=True, eq=False)
class RowNumbers:
    """The numbers of several functions of rows, one after the other, so that few kernels compute them.

    Attributes:
        layout: the arrangement of the rows of all operands in one matrix. All other attributes are float64, with one
            number for each of its rows.
        scales, ones, own: s, a, c in the docstring of `derived`.
        lengths: |V_i|.
        overlap: u_i . e.
        gains: (G, rows), for each parameter with one entry per row the m_i of ``dV_i / dgain_i = m_i V_i``; zeros for a
            function with fewer such parameters.
    """

    layout: Layout
    scales: Tensor
    ones: Tensor
    own: Tensor
    lengths: Tensor
    overlap: Tensor
    gains: Tensor

    @cached_property
    def quadratic(self) -> Tensor:
        """(3, rows): factors of ``(d.1)^2``, ``(d.V)^2``, ``(d.1) (d.V)`` added to ``s^2 |d|^2``; gains included."""
        a, c, square = self.ones, self.own, self.scales.square()
        of_own = (c * c - 2 * c) * square / self.lengths.square() + self.gains.square().sum(0)
        of_both = 2 * a * c * self.overlap * square / (self.layout.widths.sqrt() * self.lengths)
        return torch.stack([(a * a - 2 * a) * square / self.layout.widths, of_own, of_both])

    @cached_property
    def sizes(self) -> Tensor:
        """(rows,): upper bounds on the norm of `RowForm.pull_back` for each row, times 1.5 to cover its own
        rounding."""
        a, c = self.ones, self.own
        most = torch.stack([torch.ones_like(a), (1 - a).abs(), (1 - c).abs(), (1 - a - c).abs()]).amax(dim=0)
        return 1.5 * ((self.scales * most).square() + (self.gains * self.lengths).square().sum(0)).sqrt()

    @cached_property
    def coefficients(self) -> Tensor:
        """(3 + G, rows): coefficients of a row, of its sum, of its dot product with V, and of that in each gain."""
        ones, along = self.scales * self.ones / self.layout.widths, self.scales * self.own / self.lengths**2
        return torch.cat([torch.stack([self.scales, ones, along]), self.gains])

    @cached_property
    def finite(self) -> Tensor:
        """(rows,) bool."""
        numbers = torch.stack([self.scales, self.ones, self.own, self.lengths, self.overlap])
        return torch.isfinite(torch.cat([numbers, self.gains])).all(dim=0)

    @cached_property
    def squared(self) -> Tensor:
        """(rows, 2): the squares of scales and sizes."""
        return torch.stack([self.scales, self.sizes], dim=1).square_()

    def pull_back(self, v: Tensor, values: Tensor, rows: slice = slice(None)) -> tuple[Tensor, list[Tensor]]:
        """``J^T values``: (..., rows, width) of the weights, and (..., rows) of each gain.

        Args:
            v: V, (rows, width).
            values: (..., rows, width), padded with zeros like `v`; the results are undefined at the padding.
            rows: the places of these rows in the layout.
        """
        dots, sums = (values * v).sum(-1), values.sum(-1)
        scales, ones, along, *gains = self.coefficients[:, rows].to(values.dtype)
        weight = (values * scales[:, None]).sub_((ones * sums).unsqueeze(-1))
        weight.addcmul_(v, (along * dots).unsqueeze(-1), value=-1)
        return weight, [gain * dots for gain in gains]


@dataclass(frozen=True, eq=False)
class RowForm:
    """The closed form of a function of rows.

    Attributes:
        weight: name of the parameter with the rows.
        gains: names of the parameters with one entry per row.
        numbers, rows: the numbers of several forms, and the rows of this one.
    """

    weight: str
    gains: tuple[str, ...]
    numbers: RowNumbers
    rows: slice

    def pull_back(self, operand: Tensor, values: Tensor) -> dict[str, Tensor]:
        """``J^T values`` by parameter name, in the shapes (..., rows, width) and (..., rows).

        Args:
            operand: V, (rows, ...).
            values: (rows, ...), or (B, rows, ...) of examples.
        """
        v = operand.flatten(1).to(values.dtype)
        rows = values.reshape(*values.shape[: values.dim() - operand.dim()], *v.shape)
        return self.by_name(*self.numbers.pull_back(v, rows, self.rows))

    def by_name(self, weight: Tensor, gains: Sequence[Tensor]) -> dict[str, Tensor]:
        """The gradients by parameter name; surplus gains are dropped."""
        return {self.weight: weight, **dict(zip(self.gains, gains, strict=False))}


class KnownForms(NamedTuple):
    """The forms of functions at some values of their parameters.

    Attributes:
        marks: random dot products of the values, by which they are recognised.
        versions: the version counters of the model's parameters and buffers.
        forms: the form of each function.
        proven: () bool, whether the forms are right; None if they are known to be.
    """

    marks: Tensor
    versions: tuple[int, ...]
    forms: list[RowForm]
    proven: Tensor | None


@dataclass(eq=False)
class Forms:
    """The forms of a model's functions of parameters, kept as long as its `ClippedGradient`; `without` have none."""

    without: set[tuple] = field(default_factory=set)
    known: dict[tuple, KnownForms] = field(default_factory=dict)
    layouts: dict[tuple, Layout] = field(default_factory=dict)
    probes: dict[tuple, Tensor] = field(default_factory=dict)

    def probe(self, like: Tensor, number: int) -> Tensor:
        """Random numbers in the shape of `like`, the same in every call: a prefix of one sequence for all shapes."""
        key = (like.dtype, like.device, number)
        if key not in self.probes or self.probes[key].numel() < like.numel():
            # From NumPy: modes around the model may replace what torch's random functions return.
            drawn = np.random.default_rng([_PROBE_SEED, number]).standard_normal(like.numel())
            self.probes[key] = torch.from_numpy(drawn).to(like)
        return self.probes[key][: like.numel()].reshape(like.shape)

    def layout(self, tensors: Sequence[Tensor]) -> Layout:
        """The layout of tensors (rows, ...), each taken as a matrix."""
        shapes, device = tuple((len(tensor), tensor[0].numel()) for tensor in tensors), tensors[0].device
        if (shapes, device) not in self.layouts:
            self.layouts[shapes, device] = Layout(shapes, device)
        return self.layouts[shapes, device]


class Candidate(NamedTuple):
    """A tensor that may be a function of rows.

    Attributes:
        tensor: the tensor, with its graph.
        weight, gains: names of its parameters, told apart by shape.
        pull: computes ``J^T`` of tensors (m, *shape), by parameter name.
    """

    tensor: Tensor
    weight: str
    gains: tuple[str, ...]
    pull: Callable[[Tensor], dict[str, Tensor]]

    def pull_back(self, probes: Tensor) -> tuple[Tensor, list[Tensor]] | None:
        """``J^T``: (m, rows, width) for the weight, (m, rows) for each gain; None if a parameter has no gradient."""
        pulled = self.pull(probes.reshape(len(probes), *self.tensor.shape))
        if pulled.keys() != {self.weight, *self.gains}:
            return None
        gains = [pulled[name].reshape(probes.shape[:2]) for name in self.gains]
        return pulled[self.weight].reshape(probes.shape), gains


def fit_row_forms(candidates: Sequence[Candidate], forms: Forms) -> tuple[list[RowForm | None], Tensor]:
    """Returns each candidate's form, None if it cannot be a function of rows, and (candidates,) bool: which are right.

    One probe ``v = z + 3 e + 3 u``, with z orthogonal to e and u, gives ``J^T v = s v + alpha e + beta u``, from which
    the numbers of all candidates follow. A second probe shows whether they are right.
    """
    layout = forms.layout([candidate.tensor for candidate in candidates])
    tensors = layout.join([candidate.tensor.detach().flatten(1) for candidate in candidates])
    z, other = (_zero_padding(forms.probe(tensors, number), layout) for number in range(2))
    # Names of two letters are inner products of rows: t the tensor V, 1 ones, e, u, z, v the probe, p its gradient.
    lengths = torch.linalg.vector_norm(tensors, dim=1, dtype=torch.float64)
    t1, tz, z1, zz, even = _sums(tensors), _dots(tensors, z), _sums(z), _dots(z, z), layout.widths**-0.5
    overlap, ze, zu = t1 * even / lengths, z1 * even, tz / lengths
    usable = (lengths > _LENGTHS[0]) & (lengths < _LENGTHS[1]) & (overlap.abs() < 0.9)
    # The probe z - (z.e) e - k (u - (u.e) e) + 3 e + 3 u, written as z + of_t V + of_1 1.
    k = (zu - ze * overlap) / (1 - overlap.square())
    of_t, of_1 = (3 - k) / lengths, (3 - ze + k * overlap) * even
    factor_t, factor_1 = torch.stack([of_t, of_1]).to(tensors.dtype).unsqueeze(2)
    probes = torch.stack([torch.addcmul(z, tensors, factor_t).add_(factor_1), other])
    pulled = [candidate.pull_back(probe) for candidate, probe in zip(candidates, layout.views(probes), strict=True)]
    first, second = layout.join(_weights(pulled, layout.views(probes)))
    gains = _gains(pulled, layout)
    ve, vu = ze + (of_t * t1 + of_1 * layout.widths) * even, zu + of_t * lengths + of_1 * t1 / lengths
    vv = of_t * vu * lengths + of_1 * ve / even + (of_t * tz + of_1 * z1 + zz)
    p1, pt = _sums(first), _dots(first, tensors)
    pv, pe, pu = _dots(first, z) + of_t * pt + of_1 * p1, p1 * even, pt / lengths
    one = torch.ones_like(vv)
    basis = torch.stack([vv, ve, vu, ve, one, overlap, vu, overlap, one], -1).reshape(-1, 3, 3)
    solution, failed = torch.linalg.solve_ex(basis, torch.stack([pv, pe, pu], -1).unsqueeze(-1))
    scales, alpha, beta = solution.squeeze(-1).unbind(-1)
    numbers = RowNumbers(
        layout=layout,
        scales=scales,
        ones=-alpha / (scales * ve),
        own=-beta / (scales * vu),
        lengths=lengths,
        overlap=overlap,
        gains=gains[:, 0].double() / (vu * lengths),
    )
    right = usable & (failed == 0) & numbers.finite & _predicted(numbers, tensors, other, second, gains[:, 1])
    return [
        None if result is None else RowForm(candidate.weight, candidate.gains, numbers, rows)
        for candidate, result, rows in zip(candidates, pulled, layout.rows, strict=True)
    ], layout.all_per_matrix(right)


def _predicted(numbers: RowNumbers, tensors: Tensor, other: Tensor, weight: Tensor, gains: Tensor) -> Tensor:
    """(rows,) bool: whether the form predicts the second probe's gradients, entry by entry."""
    expected, of_gains = numbers.pull_back(tensors, other)
    difference, proof = _zero_padding(expected.sub_(weight).abs_(), numbers.layout).amax(1), PROOF[tensors.dtype]
    right = difference <= proof * numbers.scales.abs()
    if of_gains:
        most = proof * numbers.gains.abs() * numbers.lengths * numbers.layout.widths.sqrt()
        right &= ((torch.stack(of_gains) - gains).abs() <= most).all(0)
    return right


def _zero_padding(values: Tensor, layout: Layout) -> Tensor:
    """The values (n, w) with zeros at the padding."""
    return values if layout.beyond is None else values.masked_fill(layout.beyond, 0)


def _dots(first: Tensor, second: Tensor) -> Tensor:
    """(rows,) float64: inner products of the rows. No matrix product, whose precision may be lower."""
    return (first * second).sum(dim=1, dtype=torch.float64)


def _sums(rows: Tensor) -> Tensor:
    return rows.sum(dim=1, dtype=torch.float64)


_Pulled = tuple[Tensor, list[Tensor]] | None


def _weights(pulled: Sequence[_Pulled], like: Sequence[Tensor]) -> list[Tensor]:
    """(2, n_i, w_i) each: the weights' gradients; zeros if a parameter has none."""
    return [torch.zeros_like(probe) if one is None else one[0] for one, probe in zip(pulled, like, strict=True)]


def _gains(pulled: Sequence[_Pulled], layout: Layout) -> Tensor:
    """(G, 2, n): the gradients of each candidate's gains; zeros if there are none."""
    gains = [[] if one is None else one[1] for one in pulled]
    none = layout.widths.new_zeros(2, layout.shape[0])
    found = [
        torch.cat(
            [one[place] if place < len(one) else none[:, at] for one, at in zip(gains, layout.rows, strict=True)], 1
        )
        for place in range(max(map(len, gains)))
    ]
    return torch.stack(found) if found else none.new_zeros(0, *none.shape)
