"""Sampling rules: who takes part in a step. Frozen data; the sampler and the accountant both read these fields."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError, positive_integer


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Each example takes part in each step by a coin of its own, with probability `batch_size / examples`.

    Args:
        examples: N, the declared number of examples: a public constant, whatever number the data hold.
        batch_size: the expected number of participants of a step, below N.

    **Guarantee.** The probability is a function of two declared constants, so it does not depend on the data; batches
    have random sizes, and an empty one is a step like any other.

    >>> Poisson(examples=50_000, batch_size=4096).probability
    0.08192
    """

    examples: int
    batch_size: int

    def __post_init__(self) -> None:
        positive_integer("examples", self.examples, remedy="give the number of training examples")
        positive_integer("batch_size", self.batch_size, remedy="give the expected number of examples in a step")
        if self.batch_size >= self.examples:
            raise SfumatoError(
                f"batch_size must be below the number of examples for Poisson sampling, "
                f"got {self.batch_size} of {self.examples}",
                "give a smaller batch, or the whole data set for full-batch steps",
            )

    @property
    def probability(self) -> float:
        """The chance of one example to take part in one step."""
        return self.batch_size / self.examples

    @property
    def expected_batch_size(self) -> int:
        """What sums are divided by: a public constant, never the realised size."""
        return self.batch_size


@dataclass(frozen=True, kw_only=True)
class FullBatch:
    """Every example takes part in every step.

    Args:
        examples: N, the declared number of examples, which sums are divided by.

    >>> FullBatch(examples=1437).probability
    1.0
    """

    examples: int

    def __post_init__(self) -> None:
        positive_integer("examples", self.examples, remedy="give the number of training examples")

    @property
    def probability(self) -> float:
        """The chance of one example to take part in one step: one."""
        return 1.0

    @property
    def expected_batch_size(self) -> int:
        """What sums are divided by: the declared N, a public constant."""
        return self.examples


SamplingRule = Poisson | FullBatch


def rule_for(*, examples: int, batch_size: int) -> SamplingRule:
    """Poisson sampling below N; full batch at N, where the exact Gaussian composition is tighter.

    >>> rule_for(examples=100, batch_size=100)
    FullBatch(examples=100)
    """
    positive_integer("examples", examples, remedy="give the number of training examples")
    positive_integer("batch_size", batch_size, remedy="give the expected number of examples in a step")
    if batch_size > examples:
        raise SfumatoError(
            f"batch_size must not exceed the number of examples, got {batch_size} of {examples}",
            f"give at most {examples}, which means full-batch steps",
        )
    if batch_size == examples:
        return FullBatch(examples=examples)
    return Poisson(examples=examples, batch_size=batch_size)
