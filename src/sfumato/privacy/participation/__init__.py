"""Who takes part in a step. Frozen data, one file for each rule; the sampler and the accountant both read them."""

from __future__ import annotations

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.participation.cyclic_poisson import CyclicPoisson
from sfumato.privacy.participation.fixed_order import FixedOrder
from sfumato.privacy.participation.full_batch import FullBatch
from sfumato.privacy.participation.participation import Participation as Participation
from sfumato.privacy.participation.poisson import Poisson
from sfumato.privacy.participation.truncated_poisson import TruncatedPoisson

PARTICIPATIONS: dict[str, type[Participation]] = {
    each.__name__: each for each in (Poisson, FullBatch, FixedOrder, CyclicPoisson, TruncatedPoisson)
}


def participation_for(*, population: int, batch_size: int) -> Participation:
    """Poisson sampling below N; full batch at N, where the exact Gaussian composition is tighter.

    >>> participation_for(population=100, batch_size=100)
    FullBatch()
    """
    positive_integer("examples", population, remedy="give the number of training examples")
    positive_integer("batch_size", batch_size, remedy="give the expected number of examples in a step")
    if batch_size > population:
        raise SfumatoError(
            f"batch_size must not exceed the number of examples, got {batch_size} of {population}",
            f"give at most {population}, which means full-batch steps",
        )
    return FullBatch() if batch_size == population else Poisson(batch_size=batch_size)
