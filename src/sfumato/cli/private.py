"""What the verbs that train privately share: the budget, and how whatever was not given follows by rule."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sfumato.cli.choices import Choices
from sfumato.cli.options import BatchSize, Delta, Epsilon, Examples, NoiseMultiplier, One, Steps, WholeByRule

if TYPE_CHECKING:
    from sfumato.data import Source
    from sfumato.training.experiment import Decided


@dataclass(frozen=True, kw_only=True)
class PrivateChoices(Choices):
    """Options of a verb that trains privately."""

    epsilon: Epsilon = None
    """The privacy budget, or in sfumato train several of them, with commas: a run for each."""
    delta: Delta = None
    """The chance at which the bound may fail."""
    noise_multiplier: NoiseMultiplier = None
    """Standard deviation of the noise over the clipping norm."""
    batch_size: BatchSize = None
    """Expected number of examples in a step; as many as N means full-batch steps."""
    steps: Steps = None
    """Number of training steps."""
    max_norm: One = None
    """C, the norm to which each example's gradient is clipped."""

    examples: Examples = None
    """N, declared: then the statement need not name it as read from the data."""
    private: bool = False
    """The data are private, although the source is a published one."""
    micro_batch: WholeByRule = None
    """The most examples in memory at once."""


def one_budget(asked: PrivateChoices) -> float | None:
    """The privacy budget, where one is given; several are refused."""
    from sfumato._checks import SfumatoError

    if isinstance(asked.epsilon, tuple):
        raise SfumatoError(
            f"--epsilon {','.join(map(str, asked.epsilon))} names several budgets", "give one, or use sfumato train"
        )
    return asked.epsilon


def decide(asked: PrivateChoices, source: Source) -> Decided:
    """Plan and settings: what was asked for, the rest by rule."""
    from sfumato.training.experiment import Experiment

    named: dict[str, Any] = {one.name: getattr(asked, one.name) for one in fields(Experiment)}
    return Experiment(**{**named, "epsilon": one_budget(asked)}).decide(source)
