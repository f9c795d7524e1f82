"""Who takes part in a step. Frozen data, one file for each rule; the sampler and the accountant both read them."""

from __future__ import annotations

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.participation.cyclic_poisson import CyclicPoisson
from sfumato.privacy.participation.drifting_poisson import DriftingPoisson
from sfumato.privacy.participation.fixed_order import FixedOrder
from sfumato.privacy.participation.full_batch import FullBatch
from sfumato.privacy.participation.participation import Participation as Participation
from sfumato.privacy.participation.poisson import Poisson
from sfumato.privacy.participation.truncated_poisson import TruncatedPoisson
from sfumato.privacy.participation.unproven import refuse_unproven as refuse_unproven

PARTICIPATIONS: dict[str, type[Participation]] = {
    each.__name__: each for each in (Poisson, FullBatch, FixedOrder, CyclicPoisson, TruncatedPoisson, DriftingPoisson)
}


def participation_for(*, population: int, batch_size: int, rule: Participation | None = None) -> Participation:
    """The rule with this batch size. None: Poisson sampling below N; at N full batches, whose composition is tighter.

    >>> participation_for(population=100, batch_size=100)
    FullBatch()
    >>> participation_for(population=100, batch_size=20, rule=FixedOrder(batch_size=1))
    FixedOrder(batch_size=20, assignment='random')
    """
    positive_integer("examples", population, remedy="give the number of training examples")
    positive_integer("batch_size", batch_size, remedy="give the expected number of examples in a step")
    if batch_size > population:
        raise SfumatoError(
            f"batch_size must not exceed the number of examples, got {batch_size} of {population}",
            f"give at most {population}, which means full-batch steps",
        )
    if rule is None:
        return FullBatch() if batch_size == population else Poisson(batch_size=batch_size)
    rule = rule.with_batch_size(batch_size)
    if rule.expected_batch_size(population) != batch_size:
        raise SfumatoError(
            f"batch_size must be {population}, the number of examples, for full batches, got {batch_size}",
            f"give {population}, or another rule of participation",
        )
    return rule
