"""The numbers of a function of rows (`derived`), and what is remembered of them from one run to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Not a seed that people give: weights drawn from the same numbers would be no test.
_PROBE_SEED = 0x5F3759DF


@dataclass(frozen=True, eq=False)
class RowForm:
    """The numbers of a function of rows, each (rows,) float64.

    Attributes:
        weight: name of the parameter with the rows.
        width: n, of a row.
        scales, ones, own: s, a, c of the module's docstring.
        lengths: |V_i|.
        overlap: u_i . e.
        gains: by name of a parameter with one entry for each row, its m_i in ``dV_i / dgain_i = m_i V_i``.
    """

    weight: str
    width: int
    scales: Tensor
    ones: Tensor
    own: Tensor
    lengths: Tensor
    overlap: Tensor
    gains: dict[str, Tensor]

    @cached_property
    def quadratic(self) -> tuple[Tensor, Tensor, Tensor]:
        """(rows,) each: what ``(d.1)^2``, ``(d.V)^2`` and ``(d.1) (d.V)`` add to ``s^2 |d|^2``, gains included."""
        a, c, square = self.ones, self.own, self.scales.square()
        even, along = self.width**-0.5, 1 / self.lengths
        of_own = (c * c - 2 * c) * square * along.square()
        for gain in self.gains.values():
            of_own = of_own + gain.square()
        return (a * a - 2 * a) * square * even**2, of_own, 2 * a * c * self.overlap * square * even * along

    @cached_property
    def sizes(self) -> Tensor:
        """(rows,): at least the norm of `pulled` for each row, and half as much again for its own rounding."""
        a, c = self.ones, self.own
        most = torch.stack([torch.ones_like(a), (1 - a).abs(), (1 - c).abs(), (1 - a - c).abs()]).amax(dim=0)
        squares = (self.scales * most).square()
        for gain in self.gains.values():
            squares = squares + (gain * self.lengths).square()
        return 1.5 * squares.sqrt()

    def pulled(self, operand: Tensor, values: Tensor) -> dict[str, Tensor]:
        """``J^T values`` by parameter name, in the shapes (..., rows, width) and (..., rows).

        Args:
            operand: V, (rows, ...).
            values: (rows, ...), or (B, rows, ...) of examples.
        """
        own = operand.flatten(1).to(values.dtype)
        rows = values.reshape(*values.shape[: values.dim() - operand.dim()], *own.shape)
        dots, sums = (rows * own).sum(-1), rows.sum(-1)
        scales, ones, along, *gains = self._coefficients.to(values.dtype)
        weight = (rows * scales[:, None]).sub_((ones * sums).unsqueeze(-1))
        weight.addcmul_(own, (along * dots).unsqueeze(-1), value=-1)
        return {self.weight: weight, **{name: gain * dots for name, gain in zip(self.gains, gains, strict=True)}}

    @cached_property
    def _coefficients(self) -> Tensor:
        """(3 + gains, rows): of a row itself, of its sum, of its dot with V, and of that dot in each gain."""
        ones, along = self.scales * self.ones / self.width, self.scales * self.own / self.lengths**2
        return torch.stack([self.scales, ones, along, *self.gains.values()])


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
