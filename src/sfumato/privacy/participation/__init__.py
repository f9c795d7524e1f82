"""Who takes part in a step. Frozen data, read by both the sampler and the accountant."""

from __future__ import annotations

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.participation.drifting_poisson import DriftingPoisson
from sfumato.privacy.participation.rules import CyclicPoisson, FixedOrder, FullBatch, Poisson, TruncatedPoisson
from sfumato.privacy.participation.rules import Participation as Participation

PARTICIPATIONS: dict[str, type[Participation]] = {
    each.__name__: each for each in (Poisson, FullBatch, FixedOrder, CyclicPoisson, TruncatedPoisson, DriftingPoisson)
}


def participation_for(*, population: int, batch_size: int, rule: Participation | None = None) -> Participation:
    """The rule with this batch size. By default Poisson sampling; full batches at N, which compose more tightly.

    >>> participation_for(population=100, batch_size=100)
    FullBatch()
    >>> participation_for(population=100, batch_size=20, rule=FixedOrder(batch_size=1))
    FixedOrder(batch_size=20, assignment='random')
    """
    positive_integer(examples=population, remedy="give the number of training examples")
    remedy = f"give the expected number of examples in a step, {population} for full-batch steps"
    positive_integer(most=population, batch_size=batch_size, remedy=remedy)
    if rule is None:
        return FullBatch() if batch_size == population else Poisson(batch_size=batch_size)
    rule = rule.with_batch_size(batch_size)
    if rule.expected_batch_size(population) != batch_size:
        raise SfumatoError(
            f"batch_size must be {population}, the number of examples, for full batches, got {batch_size}",
            f"give {population}, or use another rule of participation",
        )
    return rule


UNPROVEN: dict[str, tuple[str, str]] = {
    "shuffling": (
        "epochs over a reshuffled order cost more than Poisson sampling of the same batch size, and no bound is tight",
        "use fixed-order, which keeps one order, or poisson",
    ),
    "with-replacement": ("one record may be drawn several times into one step", "use poisson"),
    "fixed-size": (
        "drawing a fixed number without replacement is proven only for replacing one record, by Renyi divergences",
        "use truncated for steps of one shape, or poisson",
    ),
    "balls-in-bins": (
        "the same secret bin in every epoch costs more than Poisson sampling over as many epochs, and the cost is "
        "known only by Monte Carlo simulation, which nobody can verify exactly",
        "use poisson, or fixed-order, which keeps the bins of the first epoch and has a theorem",
    ),
    "b-min-sep": ("its cost is known only by Monte Carlo simulation", "use cyclic, or fixed-order"),
}
"""Rules that people use but no theorem here covers: for each, the reason and the nearest alternative."""


def refuse_unproven(name: object) -> None:
    """Refuse an unproven rule by its name, in any spelling. All other names pass.

    >>> refuse_unproven("Poisson")
    """
    if (rule := name.lower().replace("_", "-") if isinstance(name, str) else "") in UNPROVEN:
        why, instead = UNPROVEN[rule]
        raise SfumatoError(f"no theorem here covers the participation {name!r}: {why}", instead)
