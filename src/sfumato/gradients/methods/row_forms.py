"""The numbers of a function of rows (`derived`): how they are found, and what is remembered of them between runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Not a seed that people give: weights drawn from the same numbers would be no test.
_PROBE_SEED = 0x5F3759DF
# Lengths of rows outside of this range have squares that float32 cannot hold.
_LENGTHS = (1e-15, 1e15)
PROOF = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Relative differences, entry by entry, between a function of rows and its closed form."""


@dataclass(frozen=True, eq=False)
class RowNumbers:
    """Those of functions one after the other, each (rows of all of them,) float64, so that few kernels make them.

    Attributes:
        widths: n, of a row.
        scales, ones, own: s, a, c of the docstring of `derived`.
        lengths: |V_i|.
        overlap: u_i . e.
        gains: (G, rows), for each parameter with one entry for each row its m_i in ``dV_i / dgain_i = m_i V_i``; zeros
            for a function that has fewer of these.
    """

    widths: Tensor
    scales: Tensor
    ones: Tensor
    own: Tensor
    lengths: Tensor
    overlap: Tensor
    gains: Tensor

    @cached_property
    def quadratic(self) -> Tensor:
        """(3, rows): what ``(d.1)^2``, ``(d.V)^2`` and ``(d.1) (d.V)`` add to ``s^2 |d|^2``, gains included."""
        a, c, square = self.ones, self.own, self.scales.square()
        of_own = (c * c - 2 * c) * square / self.lengths.square() + self.gains.square().sum(0)
        of_both = 2 * a * c * self.overlap * square / (self.widths.sqrt() * self.lengths)
        return torch.stack([(a * a - 2 * a) * square / self.widths, of_own, of_both])

    @cached_property
    def sizes(self) -> Tensor:
        """(rows,): at least the norm of `RowForm.pulled` for each row, and half as much again for its own rounding."""
        a, c = self.ones, self.own
        most = torch.stack([torch.ones_like(a), (1 - a).abs(), (1 - c).abs(), (1 - a - c).abs()]).amax(dim=0)
        return 1.5 * ((self.scales * most).square() + (self.gains * self.lengths).square().sum(0)).sqrt()

    @cached_property
    def coefficients(self) -> Tensor:
        """(3 + G, rows): of a row itself, of its sum, of its dot with V, and of that dot in each gain."""
        ones, along = self.scales * self.ones / self.widths, self.scales * self.own / self.lengths**2
        return torch.cat([torch.stack([self.scales, ones, along]), self.gains])

    @cached_property
    def finite(self) -> Tensor:
        """(rows,) bool."""
        numbers = torch.stack([self.scales, self.ones, self.own, self.lengths, self.overlap])
        return torch.isfinite(torch.cat([numbers, self.gains])).all(dim=0)


@dataclass(frozen=True, eq=False)
class RowForm:
    """The closed form of a function of rows.

    Attributes:
        weight: name of the parameter with the rows.
        gains: names of those with one entry for each row.
        numbers, rows: where its numbers are.
    """

    weight: str
    gains: tuple[str, ...]
    numbers: RowNumbers
    rows: slice

    @property
    def scales(self) -> Tensor:
        """s, (rows,) float64."""
        return self.numbers.scales[self.rows]

    @property
    def sizes(self) -> Tensor:
        """(rows,): see `RowNumbers.sizes`."""
        return self.numbers.sizes[self.rows]

    @property
    def quadratic(self) -> Tensor:
        """(3, rows): see `RowNumbers.quadratic`."""
        return self.numbers.quadratic[:, self.rows]

    def pulled(self, operand: Tensor, values: Tensor) -> dict[str, Tensor]:
        """``J^T values`` by parameter name, in the shapes (..., rows, width) and (..., rows).

        Args:
            operand: V, (rows, ...).
            values: (rows, ...), or (B, rows, ...) of examples.
        """
        own = operand.flatten(1).to(values.dtype)
        rows = values.reshape(*values.shape[: values.dim() - operand.dim()], *own.shape)
        dots, sums = (rows * own).sum(-1), rows.sum(-1)
        scales, ones, along, *gains = self.numbers.coefficients[:, self.rows].to(values.dtype)
        weight = (rows * scales[:, None]).sub_((ones * sums).unsqueeze(-1))
        weight.addcmul_(own, (along * dots).unsqueeze(-1), value=-1)
        return {self.weight: weight, **{name: gain * dots for name, gain in zip(self.gains, gains, strict=False)}}


class KnownForm(NamedTuple):
    """What was found out about a function at some values of its parameters.

    Attributes:
        marks: random dots of these, by which they are known again.
        versions: how often each had been written to.
        form: the numbers.
        proven: () bool, whether they are right; None if that is known.
    """

    marks: Tensor
    versions: tuple[int, ...]
    form: RowForm
    proven: Tensor | None


@dataclass(eq=False)
class Forms:
    """What has been found out about a model's functions of parameters; lives as long as its `ClippedGradient`."""

    without: set[tuple] = field(default_factory=set)
    known: dict[tuple, KnownForm] = field(default_factory=dict)
    probes: dict[tuple, Tensor] = field(default_factory=dict)

    def probe(self, like: Tensor, number: int) -> Tensor:
        """The same made-up numbers each time, in the shape of `like`: the first of a row that all shapes share."""
        key = (like.dtype, like.device, number)
        if key not in self.probes or self.probes[key].numel() < like.numel():
            # From NumPy: modes around the model may replace what torch's random functions return.
            drawn = np.random.default_rng([_PROBE_SEED, number]).standard_normal(like.numel())
            self.probes[key] = torch.from_numpy(drawn).to(like)
        return self.probes[key][: like.numel()].reshape(like.shape)


class Candidate(NamedTuple):
    """A tensor that may be a function of rows.

    Attributes:
        tensor: with its graph.
        weight, gains: by the shapes of its parameters.
        pull: ``J^T`` of each of several tensors of its shape (m, *shape), by parameter name.
    """

    tensor: Tensor
    weight: str
    gains: tuple[str, ...]
    pull: Callable[[Tensor], dict[str, Tensor]]


class _Rows:
    """A candidate's rows V and made-up rows z, whose dots with each other and with others are what is needed."""

    def __init__(self, candidate: Candidate, forms: Forms):
        self.candidate, self.own = candidate, candidate.tensor.detach().flatten(1)
        self._made_up, self._other = (forms.probe(self.own, number) for number in range(2))

    def dots(self) -> Tensor:
        """(5, rows) float64: |V|, V.1, V.z, z.1 and z.z."""
        own, made_up = self.own, self._made_up
        lengths = torch.linalg.vector_norm(own, dim=1, dtype=torch.float64)
        return torch.stack([lengths, _sums(own), _dots(own, made_up), _sums(made_up), _dots(made_up, made_up)])

    def dots_with(self, found: list[dict[str, Tensor]] | None) -> Tensor:
        """(3, rows) float64: of V, 1 and z with what `pulled` found first for the weight."""
        if found is None:
            return self.own.new_zeros(3, len(self.own), dtype=torch.float64)  # nobody looks at them
        weight = found[0][self.candidate.weight]
        return torch.stack([_dots(weight, self.own), _sums(weight), _dots(weight, self._made_up)])

    def pulled(self, parts: Tensor) -> list[dict[str, Tensor]] | None:
        """``J^T`` of z and so much (2, rows) of V and 1 beside it, and of other random rows; None where a parameter
        gets nothing."""
        of_own, of_ones = parts.to(self.own.dtype).unsqueeze(2)
        probes = torch.stack([torch.addcmul(self._made_up, self.own, of_own).add_(of_ones), self._other])
        found = self.candidate.pull(probes.reshape(2, *self.candidate.tensor.shape))
        if found.keys() != {self.candidate.weight, *self.candidate.gains}:
            return None
        return [{name: value[one].reshape(len(self.own), -1) for name, value in found.items()} for one in range(2)]

    def predicted(self, form: RowForm, found: dict[str, Tensor]) -> Tensor:
        """() bool: whether the form gives what was found for the other rows, entry by entry."""
        expected = form.pulled(self.own, self._other)
        scales, _, _, *gains = form.numbers.coefficients[:, form.rows].abs()
        lengths = form.numbers.lengths[form.rows] * self.own.shape[1] ** 0.5
        sizes = {form.weight: scales} | {name: m * lengths for name, m in zip(form.gains, gains, strict=False)}
        near_enough = [
            ((expected[name].reshape(value.shape) - value).abs().amax(1) <= PROOF[self.own.dtype] * sizes[name]).all()
            for name, value in found.items()
        ]
        return near_enough[0] if len(near_enough) == 1 else torch.stack(near_enough).all()


def measured(candidates: Sequence[Candidate], forms: Forms) -> list[tuple[RowForm, Tensor] | None]:
    """For each candidate its form, and () bool whether that is right; None where it is no function of rows at all.

    One probe ``v = z + 3 e + 3 u``, z across e and u, gives ``J^T v = s v + alpha e + beta u``, from which the numbers
    of all candidates follow together; another probe shows whether they are right.
    """
    tried = [_Rows(candidate, forms) for candidate in candidates]
    if not tried:
        return []
    counts = [len(rows.own) for rows in tried]
    widths = torch.cat([torch.full_like(rows.own[:, 0], rows.own.shape[1], dtype=torch.float64) for rows in tried])
    lengths, v1, vz, z1, zz = torch.cat([rows.dots() for rows in tried], dim=1)
    even = widths**-0.5
    overlap, ze, zu = v1 * even / lengths, z1 * even, vz / lengths
    usable = (lengths > _LENGTHS[0]) & (lengths < _LENGTHS[1]) & (overlap.abs() < 0.9)
    # The probe z - (z.e) e - k (u - (u.e) e) + 3 e + 3 u, as so much of V and of 1 beside z itself.
    k = (zu - ze * overlap) / (1 - overlap.square())
    of_v, of_1 = (3 - k) / lengths, (3 - ze + k * overlap) * even
    parts = torch.stack([of_v, of_1]).split(counts, dim=1)
    found = [rows.pulled(part) for rows, part in zip(tried, parts, strict=True)]
    ve, vu = ze + (of_v * v1 + of_1 * widths) * even, zu + of_v * lengths + of_1 * v1 / lengths
    vv = of_v * vu * lengths + of_1 * ve / even + (of_v * vz + of_1 * z1 + zz)
    of_pulled = torch.cat([rows.dots_with(own) for rows, own in zip(tried, found, strict=True)], dim=1)
    pv, pe, pu = of_pulled[2] + of_v * of_pulled[0] + of_1 * of_pulled[1], of_pulled[1] * even, of_pulled[0] / lengths
    one = torch.ones_like(vv)
    basis = torch.stack([vv, ve, vu, ve, one, overlap, vu, overlap, one], -1).reshape(-1, 3, 3)
    solution, failed = torch.linalg.solve_ex(basis, torch.stack([pv, pe, pu], -1).unsqueeze(-1))
    scales, alpha, beta = solution.squeeze(-1).unbind(-1)
    numbers = RowNumbers(
        widths=widths,
        scales=scales,
        ones=-alpha / (scales * ve),
        own=-beta / (scales * vu),
        lengths=lengths,
        overlap=overlap,
        gains=_gains(tried, found) / (vu * lengths),
    )
    good = (usable & (failed == 0) & numbers.finite).split(counts)
    result: list[tuple[RowForm, Tensor] | None] = []
    for rows, end, own, fine in zip(tried, accumulate(counts), found, good, strict=True):
        form = RowForm(rows.candidate.weight, rows.candidate.gains, numbers, slice(end - len(rows.own), end))
        result.append(None if own is None else (form, fine.all() & rows.predicted(form, own[1])))
    return result


def _dots(first: Tensor, second: Tensor) -> Tensor:
    """(rows,) float64: inner products of the rows; no matrix product, whose precision may be lower."""
    return (first * second).sum(dim=1, dtype=torch.float64)


def _sums(rows: Tensor) -> Tensor:
    return rows.sum(dim=1, dtype=torch.float64)


def _gains(tried: list[_Rows], pulled: list[list[dict[str, Tensor]] | None]) -> Tensor:
    """(G, rows) float64: what each candidate's gains got, zero where there is none."""
    most, rows = max(len(own.candidate.gains) for own in tried), sum(len(own.own) for own in tried)
    gains, start = tried[0].own.new_zeros(most, rows, dtype=torch.float64), 0
    for own, found in zip(tried, pulled, strict=True):
        if found is not None:
            for place, name in enumerate(own.candidate.gains):
                gains[place, start : start + len(own.own)] = found[0][name][:, 0]
        start += len(own.own)
    return gains
