"""Which theorem speaks for which plan. One table, and a file for each family, with its mathematics.

A combination that has no row is refused, and the refusal names those nearest to it. dp-accounting's accountants differ
in their conventions (only its PLD doubles the sensitivity under replace-one, for instance), so every row builds its
events explicitly.

**Guarantee.** In every row the query of a step may be chosen in view of all earlier releases: the gradient at theta_t
is, and so is one at any other function of the weights so far (an average of them, a restart from it). For each row by
its own argument:

- PoissonGaussian, DriftingGaussian, MixtureOfGaussians, TruncatedGaussian: a step's coins are tossed anew whatever was
  released, with chances that the plan has for it, and its pair of distributions dominates every query whose vectors
  keep to the norm; dominating pairs compose adaptively (Zhu, Dong and Wang 2022), and so does Renyi DP (Mironov 2017).
- ComposedGaussian: in which steps a unit takes part is decided before the first one, and Gaussian mechanisms compose
  adaptively (Dong, Roth and Su 2022).
- TreeAggregation, ToeplitzGaussian: noise that hangs together over the steps, added to sums that are chosen one after
  the other, promises what it does for sums that were fixed beforehand (Denisov et al. 2022, theorem 2.1).
- CyclicBanded: a turn is one Poisson-sampled Gaussian release over the rows that the unit's step reaches, in which the
  other units' sums are functions of releases, with and without the unit alike; turns share no row, and compose
  adaptively as the steps of PoissonGaussian do (Choquette-Choo et al. 2023, theorem 4).
"""

from __future__ import annotations

from sfumato._checks import SfumatoError
from sfumato.privacy.mechanism import Gaussian, Mechanism
from sfumato.privacy.participation import (
    CyclicPoisson,
    DriftingPoisson,
    FixedOrder,
    Participation,
    Poisson,
    TruncatedPoisson,
)
from sfumato.privacy.theorems.composed_gaussian import ComposedGaussian
from sfumato.privacy.theorems.drifting_gaussian import DriftingGaussian
from sfumato.privacy.theorems.mixture_of_gaussians import MixtureOfGaussians
from sfumato.privacy.theorems.poisson_gaussian import CyclicBanded, PoissonGaussian, TruncatedGaussian
from sfumato.privacy.theorems.theorem import Plan, Theorem
from sfumato.privacy.theorems.toeplitz import ToeplitzGaussian
from sfumato.privacy.theorems.tree_aggregation import TreeAggregation
from sfumato.privacy.unit import Example

TABLE: tuple[Theorem, ...] = (
    PoissonGaussian(),
    ComposedGaussian(),
    TreeAggregation(),
    ToeplitzGaussian(),
    CyclicBanded(),
    TruncatedGaussian(),
    DriftingGaussian(),
    MixtureOfGaussians(),
)
SINGLE = tuple(row for row in TABLE if row.covers(Example()))
"""The rows about units of which a step's sum holds one vector."""

_WHY: dict[type[Participation], str] = {
    Poisson: "a unit may take part in steps however near each other, each with noise of the others",
    TruncatedPoisson: "a unit may take part in steps however near each other, each with noise of the others",
    DriftingPoisson: "a unit may take part in steps however near each other, each with noise of the others",
    CyclicPoisson: "its groups amplify noise whose bands end before a group's next turn, and no other",
}
_WHY_NOT_SEVERAL: dict[type[Participation], str] = {
    TruncatedPoisson: "at a cut several others may take their places at once",
    DriftingPoisson: "they may lie in both groups, whose steps are others",
    CyclicPoisson: "they lie in different groups, so that the user has a turn in many steps",
    FixedOrder: "they lie in different steps of an epoch",
}
_MOVES: dict[type[Participation], tuple[str, str]] = {
    FixedOrder: ("a fixed order by position", "another order (random, or time)"),
    TruncatedPoisson: ("truncated sampling", "Poisson sampling without a cut"),
}
"""Under what one record's absence moves others, and what to take instead."""


def theorem_for(plan: Plan) -> Theorem:
    """The row that speaks for this plan, or a refusal with the reason and the rows nearest to it."""
    rule, mechanism, allowed = type(plan.participation), type(plan.mechanism), plan.participation.adjacencies
    row = next((row for row in TABLE if row.speaks_for(plan)), None)
    if row is None and plan.unit.vectors > 1:
        _refuse_ambiguous(plan)
    if row is None:
        having = (row.participations for row in SINGLE if mechanism in row.mechanisms)
        nearest = [f"{mechanism.name} with {_names(*having)}"]
        if known := [row.mechanisms for row in SINGLE if rule in row.participations]:
            nearest.append(f"{rule.name} with {_names(*known)}")
        why = f": {_WHY[rule]}" if rule in _WHY else ""
        raise SfumatoError(
            f"no theorem here covers {mechanism.name} noise under {rule.name} participation{why}",
            f"take {', or '.join(nearest)}",
        )
    if plan.unit.shared and plan.adjacency != "zero-out":
        raise SfumatoError(
            f"adjacency must be zero-out where a record may be of several users, got {plan.adjacency}: which records "
            "are kept of one user depends on who else is on them, so a user who is missing may let others' records in",
            "take zero-out adjacency, which holds with it known who is on which record; or leave shared records out",
        )
    if plan.adjacency not in allowed:
        moves, instead = _MOVES[rule]
        raise SfumatoError(
            f"adjacency must be {' or '.join(allowed)} where one record's absence moves others, as under "
            f"{moves}; got {plan.adjacency}",
            f"take {' or '.join(allowed)} adjacency, or {instead}",
        )
    return row


def _refuse_ambiguous(plan: Plan) -> None:
    """Refuse a rule or noise under which nothing is proven of a user with several records."""
    rule, mechanism = type(plan.participation), type(plan.mechanism)
    why = _WHY_NOT_SEVERAL.get(rule)
    if why is None and mechanism is not Gaussian:
        why = "they take part in steps however near each other, each with noise of the others"
    raise SfumatoError(
        f"no theorem here covers {mechanism.name} noise under {rule.name} participation for a user with "
        f"{plan.unit.vectors} records that are drawn by themselves{f': {why}' if why else ''}",
        "take gaussian noise with poisson or full-batch participation, or draw users",
    )


def _names(*kinds: tuple[type[Participation] | type[Mechanism], ...]) -> str:
    return " or ".join(each.name for some in kinds for each in some)
