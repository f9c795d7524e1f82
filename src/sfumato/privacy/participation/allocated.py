"""Random allocation: each example takes part in exactly one step of every epoch, drawn afresh for each epoch."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError
from sfumato.privacy.participation.participation import BatchedParticipation


@dataclass(frozen=True, kw_only=True)
class Allocated(BatchedParticipation):
    """In every epoch of ceil(N / B) steps, each example takes part in one step, drawn uniformly at random.

    Also known as balls in bins with new bins in each epoch, and as random allocation with k = 1 (Feldman and Shenfeld
    2025, arXiv 2502.08202). Allocation to k of t steps costs no more than to one step in each of k parts of t / k steps
    (their lemma for general k), so there is no parameter k: give a larger batch instead.

    Args:
        batch_size: B, at most N. Sums are divided by it, however many examples a step has.

    **Guarantee.** An example's steps are drawn independently of all other examples, and of its own steps in other
    epochs. So who else takes part does not depend on whether the example is present.

    >>> Allocated(batch_size=300).epoch(1000)
    4
    """

    name = "allocated"

    def check(self, population: int) -> None:
        """Refuse a batch size that this rule cannot draw from the population."""
        if self.batch_size > population:
            raise SfumatoError(
                f"batch_size must not exceed the number of examples, got {self.batch_size} of {population}",
                f"give at most {population}",
            )

    def epoch(self, population: int) -> int:
        """t = ceil(N / B), the number of steps in an epoch."""
        return -(-population // self.batch_size)

    def probability(self, population: int) -> float:
        """The probability that an example takes part in a step: 1 / t."""
        return 1 / self.epoch(population)

    def facts(self, population: int) -> dict[str, object]:
        """The batch size and the number of steps in an epoch."""
        return {"batch_size": self.batch_size, "steps_per_epoch": self.epoch(population)}

    def describe(self, population: int, one: str = "example") -> str:
        """Its description in a statement; `one` is the name of a single participant."""
        return f"each {one} in one of every {self.epoch(population)} steps, drawn in secret for each epoch"

    def remark(self, one: str = "example") -> str:
        """The same in plain words."""
        return (
            f"Each {one} took part once in every epoch, in a step drawn at random and in secret. The guarantee "
            "depends on this draw as well as on the noise."
        )
