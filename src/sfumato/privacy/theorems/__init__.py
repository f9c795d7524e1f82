"""Which theorem speaks for which plan. One table, one file for each row, with the row's own mathematics.

A combination that has no row is refused, and the refusal lists the rows that exist. dp-accounting's accountants differ
in their conventions (only its PLD doubles the sensitivity under replace-one, for instance), so every row names its
adjacency and its events explicitly.
"""

from __future__ import annotations

from sfumato._checks import SfumatoError
from sfumato.privacy.theorems.composed_gaussian import ComposedGaussian
from sfumato.privacy.theorems.poisson_gaussian import PoissonGaussian
from sfumato.privacy.theorems.theorem import Plan, Theorem

TABLE: tuple[Theorem, ...] = (PoissonGaussian(), ComposedGaussian())


def theorem_for(plan: Plan) -> Theorem:
    """The row that speaks for this plan, or a refusal that lists the rows there are."""
    for row in TABLE:
        if row.speaks_for(plan):
            return row
    wanted = ", ".join((plan.adjacency, type(plan.participation).__name__, type(plan.mechanism).__name__))
    rows = "; ".join(f"({row.adjacency}, {row.participation.__name__}, {row.mechanism.__name__})" for row in TABLE)
    raise SfumatoError(
        f"no theorem here covers (adjacency, participation, mechanism) = ({wanted})", f"choose one of: {rows}"
    )
