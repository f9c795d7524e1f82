"""Which theorem speaks for which plan. One table, one file for each row, with the row's own mathematics.

A combination that has no row is refused, and the refusal names those nearest to it. dp-accounting's accountants differ
in their conventions (only its PLD doubles the sensitivity under replace-one, for instance), so every row builds its
events explicitly.
"""

from __future__ import annotations

from sfumato._checks import SfumatoError
from sfumato.privacy.mechanism import Mechanism
from sfumato.privacy.participation import CyclicPoisson, FixedOrder, Participation, Poisson, TruncatedPoisson
from sfumato.privacy.theorems.composed_gaussian import ComposedGaussian
from sfumato.privacy.theorems.cyclic_banded import CyclicBanded
from sfumato.privacy.theorems.poisson_gaussian import PoissonGaussian
from sfumato.privacy.theorems.theorem import Plan, Theorem
from sfumato.privacy.theorems.toeplitz import ToeplitzGaussian
from sfumato.privacy.theorems.tree_aggregation import TreeAggregation
from sfumato.privacy.theorems.truncated_gaussian import TruncatedGaussian

TABLE: tuple[Theorem, ...] = (
    PoissonGaussian(),
    ComposedGaussian(),
    TreeAggregation(),
    ToeplitzGaussian(),
    CyclicBanded(),
    TruncatedGaussian(),
)


_WHY: dict[type[Participation], str] = {
    Poisson: "a unit may take part in steps however near each other, each with noise of the others",
    TruncatedPoisson: "a unit may take part in steps however near each other, each with noise of the others",
    CyclicPoisson: "its groups amplify noise whose bands end before a group's next turn, and no other",
}
_MOVES: dict[type[Participation], str] = {
    FixedOrder: "a fixed order by position",
    TruncatedPoisson: "truncated sampling",
}
_INSTEAD: dict[type[Participation], str] = {
    FixedOrder: "another order (random, or time)",
    TruncatedPoisson: "Poisson sampling without a cut",
}


def theorem_for(plan: Plan) -> Theorem:
    """The row that speaks for this plan, or a refusal with the reason and the rows nearest to it."""
    rule, mechanism, allowed = type(plan.participation), type(plan.mechanism), plan.participation.adjacencies
    row = next((row for row in TABLE if row.speaks_for(plan)), None)
    if row is None:
        nearest = [
            f"{mechanism.name} with {_names(*(row.participations for row in TABLE if mechanism in row.mechanisms))}"
        ]
        if known := [row.mechanisms for row in TABLE if rule in row.participations]:
            nearest.append(f"{rule.name} with {_names(*known)}")
        why = f": {_WHY[rule]}" if rule in _WHY else ""
        raise SfumatoError(
            f"no theorem here covers {mechanism.name} noise under {rule.name} participation{why}",
            f"take {', or '.join(nearest)}",
        )
    if plan.adjacency not in allowed:
        raise SfumatoError(
            f"adjacency must be {' or '.join(allowed)} where one record's absence moves others, as under "
            f"{_MOVES[rule]}; got {plan.adjacency}",
            f"take {' or '.join(allowed)} adjacency, or {_INSTEAD[rule]}",
        )
    return row


def _names(*kinds: tuple[type[Participation] | type[Mechanism], ...]) -> str:
    return " or ".join(each.name for some in kinds for each in some)
