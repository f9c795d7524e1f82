"""The table of theorems: which theorem covers which plan. Each family's mathematics is in its own file.

A combination without a row is refused, and the error names the nearest rows. The accountants of dp-accounting differ in
their conventions (only its PLD accountant doubles the sensitivity under replace-one, for instance), so every row builds
its events explicitly.

**Guarantee.** Every row allows the query of a step to be chosen in view of all earlier releases. This covers the
gradient at theta_t and at any other function of the weights so far (an average of them, a restart from it). The
argument is different for each row:

- PoissonGaussian, DriftingGaussian, TruncatedGaussian: each step is sampled afresh, whatever was released before, with
  the plan's probability for it. Its pair of distributions dominates every query whose vectors
  have norm at most C. Dominating pairs compose adaptively (Zhu, Dong and Wang 2022), and so does Renyi DP (Mironov
  2017).
- ComposedGaussian: the steps in which a unit takes part are decided before the first step, and Gaussian mechanisms
  compose adaptively (Dong, Roth and Su 2022).
- TreeAggregation, ToeplitzGaussian: noise that is correlated across steps has the same guarantee for sums chosen one
  after the other as for sums fixed in advance (Denisov et al. 2022, theorem 2.1).
- CyclicBanded: a turn is one Poisson-sampled Gaussian release over the rows that the unit's step reaches. In these rows
  the sums of the other units are functions of earlier releases, whether or not the unit is present. Turns share no row
  and compose adaptively, as the steps of PoissonGaussian do (Choquette-Choo et al. 2023, theorem 4).
"""

from __future__ import annotations

from sfumato._checks import SfumatoError
from sfumato.privacy.mechanism import Mechanism
from sfumato.privacy.participation import (
    CyclicPoisson,
    DriftingPoisson,
    FixedOrder,
    Participation,
    Poisson,
    TruncatedPoisson,
)
from sfumato.privacy.theorems.composed_gaussian import ComposedGaussian, ToeplitzGaussian, TreeAggregation
from sfumato.privacy.theorems.drifting_gaussian import DriftingGaussian
from sfumato.privacy.theorems.poisson_gaussian import CyclicBanded, PoissonGaussian, TruncatedGaussian
from sfumato.privacy.theorems.theorem import Plan, Theorem

TABLE: tuple[Theorem, ...] = (
    PoissonGaussian(),
    ComposedGaussian(),
    TreeAggregation(),
    ToeplitzGaussian(),
    CyclicBanded(),
    TruncatedGaussian(),
    DriftingGaussian(),
)
_REASONS: dict[type[Participation], str] = {
    Poisson: "the steps of a unit may lie close together, where their noise is correlated",
    TruncatedPoisson: "the steps of a unit may lie close together, where their noise is correlated",
    DriftingPoisson: "the steps of a unit may lie close together, where their noise is correlated",
    CyclicPoisson: "its groups amplify only noise whose bands end before the group's next turn",
}
_MOVES_OTHERS: dict[type[Participation], tuple[str, str]] = {
    FixedOrder: ("a fixed order by position", "use another order (random, or time)"),
    TruncatedPoisson: ("truncated sampling", "use Poisson sampling without truncation"),
}
"""Rules under which one record's absence changes who else takes part, and what to use instead."""


def theorem_for(plan: Plan) -> Theorem:
    """The row that covers this plan. Otherwise refuses, with the reason and the nearest rows."""
    rule, mechanism, allowed = type(plan.participation), type(plan.mechanism), plan.participation.adjacencies
    row = next((row for row in TABLE if rule in row.participations and mechanism in row.mechanisms), None)
    if row is None:
        having = (row.participations for row in TABLE if mechanism in row.mechanisms)
        nearest = [f"{mechanism.name} with {_names(*having)}"]
        if mechanisms := [row.mechanisms for row in TABLE if rule in row.participations]:
            nearest.append(f"{rule.name} with {_names(*mechanisms)}")
        why = f": {_REASONS[rule]}" if rule in _REASONS else ""
        raise SfumatoError(
            f"no theorem here covers {mechanism.name} noise under {rule.name} participation{why}",
            f"use {', or '.join(nearest)}",
        )
    if plan.adjacency not in allowed:
        moves, instead = _MOVES_OTHERS[rule]
        raise SfumatoError(
            f"adjacency must be {' or '.join(allowed)} under {moves}, where one record's absence changes who else "
            f"takes part; got {plan.adjacency}",
            f"use {' or '.join(allowed)} adjacency, or {instead}",
        )
    return row


def _names(*kinds: tuple[type[Participation] | type[Mechanism], ...]) -> str:
    return " or ".join(each.name for some in kinds for each in some)
