"""What releases cost: epsilon as a function of delta and back, and its composition with what other releases cost."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sfumato._checks import SfumatoError, fraction, not_negative, one_of
from sfumato.privacy.composition import Composition, compositions
from sfumato.privacy.unit import Adjacency, Unit

FINE_GRID = 1e-4
COARSE_GRID = 1e-3
ACCOUNTANTS = ("pld", "rdp")
MOST_CHOICES = 64


Repeats = Sequence[tuple[Any, int]]
"""dp-accounting's privacy loss distributions, and how many times each."""


class Part(ABC):
    """The releases of one theorem, some number of steps of them; frozen."""

    @property
    @abstractmethod
    def coarsening(self) -> float:
        """How much wider than nominal the grid of its privacy losses may be."""

    @abstractmethod
    def repeats(self, width: float) -> tuple[Repeats, ...]:
        """Its steps, as privacy loss distributions that are rounded pessimistically to a grid of this width, each with
        how often it is composed; for each kind of units whose steps are others, such a list."""

    def dominating(self, width: float) -> Repeats:
        """One list that dominates all of these, where there would be too many choices among the parts' kinds."""
        return self.repeats(width)[0]

    def and_then(self, other: Part) -> Part | None:
        """Both as one part, exactly, or None where they have no such form."""
        return None

    def event(self) -> Any:
        """dp-accounting's event of all its steps, for Renyi divergences; None where it has none."""
        return None

    def epsilon(self, delta: float) -> float | None:
        """Epsilon at delta where it stands alone, by a closed form; None where there is none."""
        return None

    def delta(self, epsilon: float) -> float | None:
        """Delta at epsilon, likewise."""
        return None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The privacy loss of releases on one data set.

    Args:
        unit: what the bound speaks of.
        adjacency: the relation between data sets under which it holds.
        parts: of releases by different theorems or rules; none is merged with another where that would lose something.

    **Guarantee.** Upper bounds for any two neighbouring data sets: privacy loss distributions are rounded
    pessimistically, and what their composition may lose by rounding is added to delta (`Composition`); Renyi DP is a
    bound for each order. Composition is of releases that were fixed, with their number, before the first of them; what
    a release computes may depend on earlier ones. Plans that were chosen after seeing earlier releases need an odometer
    or a filter (Rogers et al. 2016), which this is not.
    """

    unit: Unit
    adjacency: Adjacency
    parts: tuple[Part, ...]

    def epsilon(self, delta: float, *, accountant: str = "pld", grid: float = FINE_GRID) -> float:
        """The least epsilon that the bound gives at this delta.

        Args:
            delta: strictly between 0 and 1.
            accountant: "pld" (for Gaussians without sampling their exact closed form) or "rdp".
            grid: the discretisation of privacy losses, for "pld". Coarser is faster and larger, never below the truth.
        """
        fraction("delta", delta, remedy="give a number such as 1e-5, well below 1/N")
        return _epsilon(self.parts, delta, one_of("accountant", accountant, ACCOUNTANTS), grid)

    def delta(self, epsilon: float, *, grid: float = FINE_GRID) -> float:
        """The least delta that the bound gives at this epsilon."""
        return self.deltas([epsilon], grid=grid)[0]

    def deltas(self, epsilons: Sequence[float], *, grid: float = FINE_GRID) -> list[float]:
        """The same at each of these epsilons, for the price of one."""
        for epsilon in epsilons:
            not_negative("epsilon", epsilon, remedy="give a privacy budget, a number such as 3")
        if len(self.parts) == 1:
            exact = [delta for epsilon in epsilons if (delta := self.parts[0].delta(epsilon)) is not None]
            if len(exact) == len(epsilons):
                return exact
        import numpy as np

        return functools.reduce(np.maximum, [one.deltas(epsilons) for one in _compositions(self.parts, grid)]).tolist()

    @property
    def accountants(self) -> tuple[str, ...]:
        """Those that can account for all its parts."""
        return ACCOUNTANTS if all(part.event() is not None for part in self.parts) else ACCOUNTANTS[:1]

    def with_(self, *others: Loss) -> Self:
        """The loss of these releases and the others' together."""
        parts = list(self.parts)
        for other in others:
            if (other.unit.name, other.adjacency) != (self.unit.name, self.adjacency):
                raise SfumatoError(
                    f"losses for ({self.unit.name}, {self.adjacency}) and ({other.unit.name}, {other.adjacency}) do "
                    "not compose",
                    "list them side by side: each speaks of its own unit and adjacency",
                )
            for part in other.parts:
                parts = _joined(parts, part)
        return replace(self, parts=tuple(parts))

    def renyi(self, orders: Sequence[float]) -> Any:
        """The Renyi divergence of each order, an array of shape (orders,)."""
        return renyi_accountant(self.parts, orders)._rdp


def _joined(parts: list[Part], other: Part) -> list[Part]:
    for place, part in enumerate(parts):
        if (both := part.and_then(other)) is not None:
            return [*parts[:place], both, *parts[place + 1 :]]
    return [*parts, other]


@functools.lru_cache(maxsize=256)
def _epsilon(parts: tuple[Part, ...], delta: float, accountant: str, grid: float) -> float:
    """A pure function of frozen data, asked for again by every part of a run that prints epsilon."""
    if accountant == "rdp":
        with quiet_absl():
            return float(renyi_accountant(parts).get_epsilon(delta))
    if len(parts) == 1 and (exact := parts[0].epsilon(delta)) is not None:
        return exact
    least = 0.0
    for one in _compositions(parts, grid):
        least = one.epsilon(delta, at_least=least)
        if least == math.inf:
            raise SfumatoError(
                f"delta {delta:g} is smaller than what the accountant of privacy loss distributions resolves for these "
                f"releases, which is {_above(one.lost):g}",
                f"give a delta of at least {_above(one.lost):g}, or fewer steps",
            )
    return least


def _above(lost: float) -> float:
    """A number of one digit that is at least twice this."""
    lost = max(lost, 1e-300)
    power = 10.0 ** math.floor(math.log10(2 * lost))
    return float(f"{math.ceil(2 * lost / power) * power:.1g}")


def _compositions(parts: Sequence[Part], grid: float) -> Iterator[Composition]:
    """Of all parts, one for each direction and each choice among the parts' kinds of units: the worst of them
    counts."""
    width = grid * min(part.coarsening for part in parts)
    kinds = [part.repeats(width) for part in parts]
    if math.prod(map(len, kinds)) > MOST_CHOICES:
        kinds = [(part.dominating(width),) for part in parts]
    for choice in itertools.product(*kinds):
        yield from compositions([one for repeats in choice for one in repeats], width)


def renyi_accountant(parts: Sequence[Part], orders: Sequence[float] | None = None) -> Any:
    """dp-accounting's accountant with all parts composed; its own orders by default."""
    import dp_accounting
    from dp_accounting import rdp

    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = rdp.RdpAccountant(orders, neighboring_relation=relation)
    with quiet_absl():
        accountant.compose(event_of(parts))
    return accountant


def event_of(parts: Sequence[Part]) -> Any:
    """dp-accounting's event of all parts; `SfumatoError` where one has no Renyi divergence."""
    import dp_accounting

    events = [part.event() for part in parts]
    if None in events:
        raise SfumatoError(
            "no Renyi divergence is known of one of the releases (truncated Poisson sampling has none, nor have users "
            "whose records are drawn by themselves)",
            "account by privacy loss distributions (pld), or take Poisson sampling of the units, without a cut",
        )
    return dp_accounting.ComposedDpEvent(events)


@contextlib.contextmanager
def quiet_absl() -> Iterator[None]:
    """dp-accounting logs each RDP order that it leaves out; leaving one out only makes the bound larger."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
