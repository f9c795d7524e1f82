"""A participation and a mechanism asked for by name, before batch size and steps are known."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.privacy.mechanism import MECHANISMS, BandedToeplitz, BufferedToeplitz, Gaussian, Mechanism, Tree
from sfumato.privacy.participation import (
    PARTICIPATIONS,
    CyclicPoisson,
    DriftingPoisson,
    FixedOrder,
    FullBatch,
    Participation,
    Poisson,
    TruncatedPoisson,
    refuse_unproven,
)
from sfumato.privacy.participation.fixed_order import ASSIGNMENTS
from sfumato.privacy.unit import Adjacency

NAMES_OF_MECHANISMS = tuple(each.name for each in MECHANISMS.values())
NAMES_OF_PARTICIPATIONS = tuple(each.name for each in PARTICIPATIONS.values())
BUFFERS, BANDS, GROUPS = 2, 64, 8
OF_MECHANISMS = {"tree": ("steps_per_tree", "complete_trees"), "banded": ("bands",), "blt": ("buffers",)}
OF_PARTICIPATIONS = {
    "fixed-order": ("order",),
    "cyclic": ("groups",),
    "truncated": ("largest_batch",),
    "drifting": ("drift", "drift_shape", "drift_groups", "drift_size"),
}


@dataclass(frozen=True, kw_only=True)
class Optimal:
    """A Toeplitz mechanism whose coefficients follow from the plan: those with the least noise in the weights.

    `adapted` gives the mechanism.

    Args:
        buffers: of a buffered one; None for a banded one.
        bands: of a banded one, fewer where there are fewer steps or groups; None for a buffered one.
        momentum: of the optimizer.
        rates: of a number of steps, the factor of the learning rate in each; None for a constant rate.
    """

    buffers: int | None = None
    bands: int | None = None
    momentum: float = 0.0
    rates: Callable[[int], tuple[float, ...]] | None = None

    def adapted(self, participation: Participation, population: int, steps: int) -> Mechanism:
        """The best of its kind for so many steps and the units' participations."""
        gap = participation.gap(population)
        # Where coins decide, bands end before a group's next turn, and a column of C is what one unit moves.
        rates = None if self.rates is None else self.rates(steps)
        most = steps if gap is not None else min(steps, participation.longest_band)
        return _optimal(steps, gap or steps, self.momentum, rates, self.buffers, self.bands and min(self.bands, most))


class Request(NamedTuple):
    """What `PrivacyPlan.calibrate` takes besides the four numbers."""

    participation: Participation | None
    mechanism: Mechanism | Optimal
    adjacency: Adjacency


@functools.lru_cache(maxsize=64)
def _optimal(
    steps: int,
    separation: int,
    momentum: float,
    rates: tuple[float, ...] | None,
    buffers: int | None,
    bands: int | None,
) -> Mechanism:
    from sfumato.privacy import factorisation

    workload = factorisation.Workload(steps=steps, separation=min(separation, steps), momentum=momentum, rates=rates)
    if buffers is not None:
        scales, decays = factorisation.optimal_blt(workload, buffers)
        return BufferedToeplitz(noise_multiplier=1.0, scales=scales, decays=decays)
    return BandedToeplitz(noise_multiplier=1.0, coefficients=factorisation.optimal_banded(workload, bands or 1))


@dataclass(frozen=True, kw_only=True)
class CutByRule(TruncatedPoisson):
    """Truncated Poisson sampling whose cut follows from the batch size: five standard deviations above it."""

    batch_size: int = 1
    largest: int = 1
    population: int

    def largest_batch(self, population: int, steps: int) -> int:
        """All but one, as without a cut."""
        return population - 1

    def with_batch_size(self, batch_size: int) -> TruncatedPoisson:  # type: ignore[override]
        """The rule of a plan."""
        deviation = math.sqrt(batch_size * max(0.0, 1 - batch_size / self.population))
        largest = min(self.population, math.ceil(batch_size + 5 * deviation))
        return TruncatedPoisson(batch_size=batch_size, largest=largest)


def requested(
    *,
    examples: int,
    mechanism: str | None = None,
    participation: str | None = None,
    adjacency: str | None = None,
    bands: int | None = None,
    buffers: int | None = None,
    steps_per_tree: int | None = None,
    complete_trees: bool | None = None,
    groups: int | None = None,
    largest_batch: int | None = None,
    order: str | None = None,
    drift: int | None = None,
    drift_shape: str | None = None,
    drift_groups: tuple[str, ...] | None = None,
    drift_size: int | None = None,
    momentum: float = 0.0,
    rates: Callable[[int], tuple[float, ...]] | None = None,
) -> Request:
    """The rule and the noise of these names; what is None follows from what is given.

    A correlated mechanism comes with a fixed order, a fixed order with buffered noise, cyclic sampling with banded
    noise, and all else with independent noise. The adjacency is add-or-remove where the rule allows it.

    Args:
        examples: N.
        mechanism: one of `NAMES_OF_MECHANISMS`.
        participation: one of `NAMES_OF_PARTICIPATIONS`; None without a mechanism leaves it to the batch size.
        bands, buffers: of "banded" and "blt", whose coefficients are optimal for the plan.
        steps_per_tree, complete_trees: of "tree", see `Tree`.
        groups: of "cyclic"; largest_batch: of "truncated"; order: of "fixed-order".
        drift, drift_shape, drift_groups, drift_size: of "drifting": the period in steps, how shares rise and fall, the
            names of the second group's classes or groups, and how many of the examples are in it.
        momentum, rates: of the optimizer, which coefficients are optimised for.

    Errors: `SfumatoError` for an unknown name, and for an option that the chosen names do not have.
    """
    given = {"bands": bands, "buffers": buffers, "steps_per_tree": steps_per_tree, "complete_trees": complete_trees}
    given |= {"groups": groups, "largest_batch": largest_batch, "order": order}
    given |= {"drift": drift, "drift_shape": drift_shape, "drift_groups": drift_groups, "drift_size": drift_size}
    if participation is not None:
        refuse_unproven(participation)
        one_of("participation", participation, NAMES_OF_PARTICIPATIONS)
    if mechanism is not None:
        one_of("mechanism", mechanism, NAMES_OF_MECHANISMS)
    if order is not None:
        one_of("order", order, ASSIGNMENTS)
    if participation is None:
        participation = next((name for name, own in OF_PARTICIPATIONS.items() if given[own[0]] is not None), None)
        if participation is None and mechanism not in (None, "gaussian"):
            participation = "fixed-order"
    if mechanism is None:
        mechanism = {"fixed-order": "blt", "cyclic": "banded"}.get(participation or "", "gaussian")
    _refuse_others(mechanism, participation, given)
    rule = _rule(participation, examples, given)
    if adjacency is None:
        allowed = ("add-or-remove", "zero-out") if rule is None else rule.adjacencies
        adjacency = allowed[0]
    noise: Mechanism | Optimal = Gaussian(noise_multiplier=1.0)
    if mechanism == "tree":
        noise = Tree(noise_multiplier=1.0, steps_per_tree=steps_per_tree, completed=bool(complete_trees))
    elif mechanism == "banded":
        if bands is not None:
            positive_integer("bands", bands, remedy="give the number of steps that the noise is correlated over")
        wanted = bands or (groups or GROUPS if participation == "cyclic" else BANDS)
        noise = Optimal(bands=wanted, momentum=momentum, rates=rates)
    elif mechanism == "blt":
        noise = Optimal(buffers=BUFFERS if buffers is None else buffers, momentum=momentum, rates=rates)
    return Request(rule, noise, adjacency)  # type: ignore[arg-type]


def _rule(name: str | None, examples: int, given: dict[str, Any]) -> Participation | None:
    if name in (None, "poisson"):
        return None if name is None else Poisson(batch_size=1)
    if name == "full-batch":
        return FullBatch()
    if name == "fixed-order":
        return FixedOrder(batch_size=1, assignment=given["order"] or "random")
    if name == "cyclic":
        return CyclicPoisson(batch_size=1, groups=GROUPS if given["groups"] is None else given["groups"])
    if name == "drifting":
        return _drifting(examples, given)
    largest = given["largest_batch"]
    return CutByRule(population=examples) if largest is None else TruncatedPoisson(batch_size=1, largest=largest)


def _drifting(examples: int, given: dict[str, Any]) -> DriftingPoisson:
    if given["drift"] is None:
        raise SfumatoError("drift must be given for drifting participation, got None", "give its period in steps")
    remedy = f"give how many of the {examples} examples are of the groups that `drift_groups` names"
    if given["drift_size"] is None:
        raise SfumatoError("drift_size must be given for drifting participation, got None", remedy)
    size = positive_integer("drift_size", given["drift_size"], remedy=remedy)
    if size >= examples:
        raise SfumatoError(f"drift_size must be below the {examples} examples, got {size}", remedy)
    return DriftingPoisson(
        batch_size=1,
        period=given["drift"],
        shape="linear" if given["drift_shape"] is None else given["drift_shape"],
        sizes=(examples - size, size),
        named=tuple(given["drift_groups"] or ()),
    )


def _refuse_others(mechanism: str, participation: str | None, given: dict[str, object]) -> None:
    """Refuse options of mechanisms and participations that are not these."""
    for kind, chosen, table in (
        ("mechanism", mechanism, OF_MECHANISMS),
        ("participation", participation, OF_PARTICIPATIONS),
    ):
        for name, own in table.items():
            for option in own:
                if name != chosen and given[option] is not None:
                    raise SfumatoError(
                        f"{option} {given[option]} is of {kind} {name}, and {kind} is {chosen or 'poisson'}",
                        f"leave it out, or give {kind} {name}",
                    )
