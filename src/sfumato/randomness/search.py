"""The randomness of a search: the settings of each of its runs, drawn from a fixed space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, number, positive
from sfumato.randomness.keys import RunKey


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of several values with equal probability. A value that is listed twice is twice as likely.

    >>> Choice(values=("sgd", "adam")).value(np.random.default_rng(0))
    'adam'
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.values, tuple) or not self.values:
            raise SfumatoError(f"values must be a non-empty tuple, got {self.values!r}", "list the possible values")

    def value(self, generator: np.random.Generator) -> Any:
        """One draw."""
        return self.values[int(generator.integers(len(self.values)))]


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """A uniform number between two bounds."""

    low: float
    high: float

    def __post_init__(self) -> None:
        number("low", self.low)
        number("high", self.high)
        if self.low >= self.high:
            raise SfumatoError(
                f"low must be below high, got {self.low!r} and {self.high!r}", "give the smaller bound first"
            )

    def value(self, generator: np.random.Generator) -> float:
        """One draw."""
        return float(generator.uniform(self.low, self.high))


@dataclass(frozen=True, kw_only=True)
class LogUniform(Uniform):
    """A number between two positive bounds whose logarithm is uniform, for learning rates and the like."""

    def __post_init__(self) -> None:
        positive("low", self.low)
        positive("high", self.high)
        super().__post_init__()

    def value(self, generator: np.random.Generator) -> float:
        """One draw."""
        return math.exp(generator.uniform(math.log(self.low), math.log(self.high)))


Dimension = Choice | Uniform | LogUniform
Space = Mapping[str, Dimension]


def draw_settings(candidate: int, space: Space, key: RunKey) -> dict[str, Any]:
    """The settings of one candidate, counted from 0: {name: value}, one value from each dimension of the space.

    **Guarantee.** Each value is drawn by its dimension alone, independently of the data, of the other names and of the
    other candidates (with replacement), so no candidate's settings depend on how another one did. The draw is a
    function of (key, candidate, name): adding a dimension to the space changes no other value.

    >>> space = {"learning_rate": LogUniform(low=0.1, high=10), "views": Choice(values=(1, 4, 16))}
    >>> draw_settings(3, space, RunKey.from_seed(0)) == draw_settings(3, space, RunKey.from_seed(0))
    True
    """
    _counted(candidate)
    for name, dimension in space.items():
        if not isinstance(dimension, (Choice, Uniform, LogUniform)):
            raise SfumatoError(
                f"the space of {name!r} is not a rule to draw from: {dimension!r}", "use Choice, Uniform or LogUniform"
            )
    return {name: rule.value(key.generator("candidate's settings", candidate, name)) for name, rule in space.items()}


def _counted(candidate: int) -> None:
    if isinstance(candidate, bool) or not isinstance(candidate, int) or candidate < 0:
        raise SfumatoError(f"candidate must be a number from 0, got {candidate!r}", "count candidates from 0")
