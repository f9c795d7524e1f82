"""The privacy loss of releases: epsilon as a function of delta and back, and composition with other releases."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from sfumato._checks import SfumatoError, fraction, not_negative, one_of
from sfumato.privacy.composition import Composition, compositions
from sfumato.privacy.unit import Adjacency, Unit

FINE_GRID = 1e-4
COARSE_GRID = 1e-3
ACCOUNTANTS = ("pld", "rdp")
MOST_CHOICES = 64
RENYI_ORDERS = (
    *(1 + hundredth / 100 for hundredth in range(2, 100)),
    *(tenth / 10 for tenth in range(20, 110)),
    *range(11, 65),
    *(128, 256, 512, 1024),
)
"""dp-accounting's, and more of them between 1 and 2, where the best order of a large epsilon lies."""


Repeats = Sequence[tuple[Any, int]]
"""dp-accounting's privacy loss distributions, each with the number of times it is composed."""


class Part(ABC):
    """A number of steps that are covered by one theorem. Frozen."""

    has_renyi: ClassVar[bool] = False
    """Whether a Renyi divergence of its steps is known."""

    @property
    @abstractmethod
    def coarsening(self) -> float:
        """How much wider than nominal the grid of its privacy losses may be."""

    @abstractmethod
    def repeats(self, width: float) -> tuple[Repeats, ...]:
        """Its steps as privacy loss distributions, rounded pessimistically to a grid of this width, each with the
        number of times it is composed. One list for each kind of unit that has different steps."""

    def dominating(self, width: float) -> Repeats:
        """One list that dominates all of them, for parts that have too many combinations of kinds."""
        return self.repeats(width)[0]

    def and_then(self, other: Part) -> Part | None:
        """Both as one part, exactly; None if they have no such form."""
        return None

    def renyi(self, orders: Sequence[float]) -> Any:
        """The Renyi divergence of all its steps at each order, of shape (orders,), where `has_renyi`."""
        raise NotImplementedError

    def epsilon(self, delta: float) -> float | None:
        """Epsilon at delta of this part alone, by a closed form; None if there is none."""
        return None

    def delta(self, epsilon: float) -> float | None:
        """Delta at epsilon of this part alone, by a closed form; None if there is none."""
        return None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The privacy loss of releases on one data set.

    Args:
        unit: the unit that the bound covers.
        adjacency: the relation between data sets under which it holds.
        parts: releases by different theorems or rules. Parts are merged only if nothing is lost.

    **Guarantee.** Upper bounds for any two neighbouring data sets: privacy loss distributions are rounded
    pessimistically, and the possible rounding error of their composition is added to delta (`Composition`); Renyi DP is
    a bound for each order. The composition covers releases that were fixed, including their number, before the first of
    them; what a release computes may depend on earlier ones. Plans that were chosen after seeing earlier releases need
    an odometer or a filter (Rogers et al. 2016), which this is not.
    """

    unit: Unit
    adjacency: Adjacency
    parts: tuple[Part, ...]

    def epsilon(self, delta: float, *, accountant: str = "pld", grid: float = FINE_GRID) -> float:
        """The least epsilon that the bound gives at this delta.

        Args:
            delta: strictly between 0 and 1.
            accountant: "pld" (an exact closed form for Gaussians without sampling) or "rdp".
            grid: the discretisation of privacy losses, for "pld". A coarser grid is faster and never underestimates.
        """
        fraction(delta=delta, remedy="give a number such as 1e-5, well below 1/N")
        return _epsilon(self.parts, delta, one_of(ACCOUNTANTS, accountant=accountant), grid)

    def delta(self, epsilon: float, *, grid: float = FINE_GRID) -> float:
        """The least delta that the bound gives at this epsilon."""
        return self.deltas([epsilon], grid=grid)[0]

    def deltas(self, epsilons: Sequence[float], *, grid: float = FINE_GRID) -> list[float]:
        """Delta at each of these epsilons, computed together."""
        for epsilon in epsilons:
            not_negative(epsilon=epsilon, remedy="give a privacy budget, a number such as 3")
        if len(self.parts) == 1:
            exact = [delta for epsilon in epsilons if (delta := self.parts[0].delta(epsilon)) is not None]
            if len(exact) == len(epsilons):
                return exact
        import numpy as np

        curves = [composition.deltas(epsilons) for composition in _compositions(self.parts, grid)]
        return functools.reduce(np.maximum, curves).tolist()

    @property
    def accountants(self) -> tuple[str, ...]:
        """The accountants that cover all its parts."""
        return ACCOUNTANTS if all(part.has_renyi for part in self.parts) else ACCOUNTANTS[:1]

    def composed_with(self, *others: Loss) -> Self:
        """The loss of these releases and of the others together."""
        parts = list(self.parts)
        for other in others:
            if (other.unit.name, other.adjacency) != (self.unit.name, self.adjacency):
                raise SfumatoError(
                    f"losses for ({self.unit.name}, {self.adjacency}) and ({other.unit.name}, {other.adjacency}) do "
                    "not compose",
                    "list them side by side: each is for its own unit and adjacency",
                )
            for part in other.parts:
                parts = _merged(parts, part)
        return replace(self, parts=tuple(parts))

    def renyi(self, orders: Sequence[float]) -> Any:
        """The Renyi divergence of each order, an array of shape (orders,)."""
        return _renyi(self.parts, orders)


def _merged(parts: list[Part], other: Part) -> list[Part]:
    for place, part in enumerate(parts):
        if (merged := part.and_then(other)) is not None:
            return [*parts[:place], merged, *parts[place + 1 :]]
    return [*parts, other]


@functools.lru_cache(maxsize=256)
def _epsilon(parts: tuple[Part, ...], delta: float, accountant: str, grid: float) -> float:
    """Cached: a pure function of frozen data that many parts of a run evaluate to print epsilon."""
    if accountant == "rdp":
        from dp_accounting import rdp

        with quiet_absl():
            return float(rdp.compute_epsilon(RENYI_ORDERS, _renyi(parts, RENYI_ORDERS), delta)[0])
    if len(parts) == 1 and (exact := parts[0].epsilon(delta)) is not None:
        return exact
    least = 0.0
    for composition in _compositions(parts, grid):
        least = composition.epsilon(delta, at_least=least)
        if least == math.inf:
            raise SfumatoError(
                f"delta {delta:g} is below the resolution of the privacy loss distribution accountant for these "
                f"releases, which is {_twice_rounded_up(composition.lost):g}",
                f"give a delta of at least {_twice_rounded_up(composition.lost):g}, or fewer steps",
            )
    return least


def _twice_rounded_up(lost: float) -> float:
    """A number with one significant digit that is at least twice this."""
    lost = max(lost, 1e-300)
    power = 10.0 ** math.floor(math.log10(2 * lost))
    return float(f"{math.ceil(2 * lost / power) * power:.1g}")


def _compositions(parts: Sequence[Part], grid: float) -> Iterator[Composition]:
    """The compositions of all parts, one for each direction and each combination of kinds of units. The worst of them
    counts."""
    width = grid * min(part.coarsening for part in parts)
    kinds = [part.repeats(width) for part in parts]
    if math.prod(map(len, kinds)) > MOST_CHOICES:
        kinds = [(part.dominating(width),) for part in parts]
    for choice in itertools.product(*kinds):
        yield from compositions([part for repeats in choice for part in repeats], width)


def _renyi(parts: Sequence[Part], orders: Sequence[float]) -> Any:
    """The Renyi divergences of all parts, which add up. Refuses a part without one."""
    if not all(part.has_renyi for part in parts):
        raise SfumatoError(
            "no Renyi divergence is known for one of the releases (there is none for truncated Poisson sampling, "
            "nor for users whose records are sampled independently)",
            "account by privacy loss distributions (pld), or use Poisson sampling of the units, without truncation",
        )
    return sum(part.renyi(orders) for part in parts)


@contextlib.contextmanager
def quiet_absl() -> Iterator[None]:
    """Silences dp-accounting, which logs each RDP order that it leaves out. That only makes the bound larger."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
