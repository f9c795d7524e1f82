"""Participations and mechanisms requested by name, before batch size and steps are known."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from sfumato._checks import SfumatoError, one_of, positive_integer, within
from sfumato._choices import choice
from sfumato.privacy import factorisation
from sfumato.privacy.mechanism import MECHANISMS, BandedToeplitz, Gaussian, Mechanism, Tree
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
from sfumato.privacy.participation.drifting_poisson import Shape
from sfumato.privacy.participation.rules import ASSIGNMENTS, Assignment
from sfumato.privacy.unit import Adjacency

NAMES_OF_MECHANISMS = tuple(each.name for each in MECHANISMS.values())
NAMES_OF_PARTICIPATIONS = tuple(each.name for each in PARTICIPATIONS.values())
BANDS, GROUPS = 64, 8
MECHANISM_OPTIONS = {"tree": ("steps_per_tree", "complete_trees"), "banded": ("bands",)}
PARTICIPATION_OPTIONS = {
    "fixed-order": ("order",),
    "cyclic": ("groups",),
    "truncated": ("largest_batch",),
    "drifting": ("drift", "drift_shape", "drift_groups", "drift_size"),
}


@dataclass(frozen=True, kw_only=True)
class OptimalToeplitz:
    """A banded mechanism whose coefficients are optimised for a plan, for the least noise in the weights.

    `adapted` returns the mechanism.

    Args:
        bands: the number of bands, reduced if there are fewer steps or groups.
        momentum: the optimizer's momentum.
        rates: maps the number of steps to the learning rate factor of each step; None for a constant rate.
    """

    bands: int
    momentum: float = 0.0
    rates: Callable[[int], tuple[float, ...]] | None = None

    longest: ClassVar[int] = 50_000
    """The most steps. The search takes some seconds for this many, and its time grows in proportion."""

    def adapted(self, participation: Participation, population: int, steps: int) -> Mechanism:
        """The optimal mechanism for this number of steps and the units' participations.

        Raises:
            SfumatoError: if there are more steps than `longest`.
        """
        if steps > self.longest:
            raise SfumatoError(
                f"the best coefficients of banded noise are computed for at most {self.longest} steps, got {steps}",
                "use --mechanism tree or gaussian, or larger batches and fewer steps; in Python a mechanism with "
                "coefficients of its own, such as those of sfumato.privacy.factorisation, takes any number of steps",
            )
        gap = participation.gap(population)
        # If participants are sampled, bands end before a group's next turn, so one participation moves one column of C.
        rates = None if self.rates is None else self.rates(steps)
        work = factorisation.Workload(
            steps=steps, separation=min(gap or steps, steps), momentum=self.momentum, rates=rates
        )
        most = steps if gap is not None else min(steps, participation.longest_band)
        return _optimal(work, min(self.bands, most))


class Request(NamedTuple):
    """The arguments of `PrivacyPlan.calibrate` that follow from names."""

    participation: Participation | None
    mechanism: Mechanism | OptimalToeplitz
    adjacency: Adjacency


@functools.lru_cache(maxsize=64)
def _optimal(workload: factorisation.Workload, bands: int) -> Mechanism:
    return BandedToeplitz(noise_multiplier=1.0, coefficients=factorisation.optimal_banded(workload, bands))


@dataclass(frozen=True, kw_only=True)
class TruncatedByRule(TruncatedPoisson):
    """Truncated Poisson sampling whose largest size is five standard deviations above the batch size."""

    batch_size: int = 1
    largest: int = 1
    population: int

    def largest_batch(self, population: int) -> int:
        return population - 1

    def with_batch_size(self, batch_size: int) -> TruncatedPoisson:  # type: ignore[override]
        """The rule with this batch size and the largest size that follows from it."""
        deviation = math.sqrt(batch_size * max(0.0, 1 - batch_size / self.population))
        largest = min(self.population, math.ceil(batch_size + 5 * deviation))
        return TruncatedPoisson(batch_size=batch_size, largest=largest)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A mechanism and a participation by name, with their options. `with_defaults` fills in missing names.

    Errors: `SfumatoError` for an unknown name.
    """

    mechanism: str | None = choice(None, "gaussian|tree|banded")
    """Correlation of the noise across steps: none (gaussian), tree, or banded."""
    participation: str | None = choice(None, "poisson|full-batch|fixed-order|cyclic|truncated|drifting")
    """Who takes part in a step: a Poisson sample, all examples (full-batch), fixed batches in turn (fixed-order), a
    sample of one group in turn (cyclic), a Poisson sample cut at a fixed size (truncated), or of two groups with
    changing shares (drifting)."""
    adjacency: Adjacency | None = choice(
        None, "add-or-remove|zero-out", "add-or-remove, where the participation allows it", given_as="str"
    )
    """Which data sets are neighbours: those that differ by one record (add-or-remove), or by one record's contribution
    set to zero (zero-out)."""
    order: Assignment | None = choice(None, "random|position", "random", given_as="str")
    """For fixed-order participation: batches drawn at random and kept secret, or in the order of the file
    (position)."""
    groups: int | None = choice(None, by_default="8")
    """For cyclic participation: number of groups that take turns."""
    largest_batch: int | None = choice(None, by_default="five standard deviations above the batch size")
    """For truncated participation: size at which a batch is cut."""
    bands: int | None = choice(None, by_default="64; the number of groups with cyclic participation")
    """For banded noise: number of steps over which it is correlated, each of which but one takes a copy of the trained
    weights."""
    steps_per_tree: int | None = choice(None, by_default="one tree")
    """For tree noise: number of steps after which a new tree begins."""
    complete_trees: bool | None = choice(None, "True|False", "False")
    """For tree noise: whether each tree is completed with virtual steps before the next begins."""
    drift: int | None = choice(None, "STEPS", "")
    """For drifting participation: the period of the two groups' shares, in steps."""
    drift_shape: Shape | None = choice(None, "linear|cosine", "linear", given_as="str")
    """For drifting participation: whether shares change linearly or as a cosine."""
    drift_groups: tuple[str, ...] | None = choice(None, "NAME [NAME ...]", "")
    """For drifting participation: the classes of the second group, or its values in the group column."""
    drift_size: int | None = choice(None, by_default="counted in the data")
    """For drifting participation: number of training examples in the second group, declared."""

    def __post_init__(self) -> None:
        if self.participation is not None:
            refuse_unproven(self.participation)
        allowed_names = (NAMES_OF_PARTICIPATIONS, NAMES_OF_MECHANISMS, ASSIGNMENTS)
        for name, allowed in zip(("participation", "mechanism", "order"), allowed_names, strict=True):
            if (value := getattr(self, name)) is not None:
                one_of(allowed, **{name: value})

    def with_defaults(self) -> Pair:
        """The pair with the missing names filled in.

        An option of a participation (for drifting, its period) implies that participation. Otherwise, a correlated
        mechanism implies a fixed order. A fixed order and cyclic sampling imply banded noise, everything else implies
        independent noise.

        Errors: `SfumatoError` for an option that the chosen names do not have.
        """
        participation, mechanism = self.participation, self.mechanism
        if participation is None:
            given = (name for name, options in PARTICIPATION_OPTIONS.items() if getattr(self, options[0]) is not None)
            participation = next(given, None if mechanism in (None, "gaussian") else "fixed-order")
        if mechanism is None:
            mechanism = "banded" if participation in ("fixed-order", "cyclic") else "gaussian"
        for kind, chosen, table in (
            ("mechanism", mechanism, MECHANISM_OPTIONS),
            ("participation", participation, PARTICIPATION_OPTIONS),
        ):
            others = ((name, option) for name, options in table.items() if name != chosen for option in options)
            for name, option in others:
                if (value := getattr(self, option)) is not None:
                    raise SfumatoError(
                        f"{option} {value} is for {kind} {name}, but {kind} is {chosen or 'poisson'}",
                        f"leave it out, or give {kind} {name}",
                    )
        return replace(self, participation=participation, mechanism=mechanism)

    def create_participation(self, examples: int) -> Participation | None:
        """The participation; None if it follows from the batch size."""
        match self.participation:
            case None:
                return None
            case "poisson":
                return Poisson(batch_size=1)
            case "full-batch":
                return FullBatch()
            case "fixed-order":
                return FixedOrder(batch_size=1, assignment=self.order or "random")
            case "cyclic":
                return CyclicPoisson(batch_size=1, groups=GROUPS if self.groups is None else self.groups)
            case "drifting":
                return self._drifting(examples)
        if self.largest_batch is None:
            return TruncatedByRule(population=examples)
        return TruncatedPoisson(batch_size=1, largest=self.largest_batch)

    def _drifting(self, examples: int) -> DriftingPoisson:
        remedy = f"give how many of the {examples} examples are of the groups that `drift_groups` names"
        for name, how in (("drift", "give its period in steps"), ("drift_size", remedy)):
            if getattr(self, name) is None:
                raise SfumatoError(f"{name} must be given for drifting participation, got None", how)
        size = positive_integer(drift_size=self.drift_size, remedy=remedy)
        within(None, examples - 1, drift_size=size, remedy=remedy)
        assert self.drift is not None
        return DriftingPoisson(
            batch_size=1,
            period=self.drift,
            shape="linear" if self.drift_shape is None else self.drift_shape,
            sizes=(examples - size, size),
            named=tuple(self.drift_groups or ()),
        )

    def create_mechanism(
        self, momentum: float, rates: Callable[[int], tuple[float, ...]] | None
    ) -> Mechanism | OptimalToeplitz:
        """The mechanism. Optimised coefficients are those for the optimizer's momentum and rates."""
        match self.mechanism:
            case "tree":
                completed = bool(self.complete_trees)
                return Tree(noise_multiplier=1.0, steps_per_tree=self.steps_per_tree, completed=completed)
            case "banded":
                bands = self.groups or GROUPS if self.participation == "cyclic" else BANDS
                if self.bands is not None:
                    remedy = "give the number of steps that the noise is correlated over"
                    bands = positive_integer(bands=self.bands, remedy=remedy)
                return OptimalToeplitz(bands=bands, momentum=momentum, rates=rates)
        return Gaussian(noise_multiplier=1.0)


def request_by_names(
    *, examples: int, momentum: float = 0.0, rates: Callable[[int], tuple[float, ...]] | None = None, **pair: Any
) -> Request:
    """The arguments of `PrivacyPlan.calibrate` for a participation and a mechanism given by name.

    Args:
        examples: N.
        momentum, rates: those of the optimizer, for which coefficients are optimised (`OptimalToeplitz`).
        pair: the names and their options: see `Pair`.

    Errors: `SfumatoError` for an unknown name, and for an option that the chosen names do not have.
    """
    named = Pair(**pair).with_defaults()
    rule = named.create_participation(examples)
    allowed = ("add-or-remove", "zero-out") if rule is None else rule.adjacencies
    return Request(rule, named.create_mechanism(momentum, rates), named.adjacency or allowed[0])  # type: ignore[arg-type]
