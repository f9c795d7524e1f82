"""Spaces that a search draws its settings from: one rule for each setting, fixed beforehand. Frozen data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, number, positive


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of some values, each with the same chance. A value that is listed twice has twice the chance.

    >>> Choice(values=("sgd", "adam")).value(np.random.default_rng(0))
    'adam'
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.values, tuple) or not self.values:
            raise SfumatoError(f"values must be a tuple of at least one, got {self.values!r}", "list what may be drawn")

    def value(self, generator: np.random.Generator) -> Any:
        """One draw."""
        return self.values[int(generator.integers(len(self.values)))]


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """A number between two bounds, uniform."""

    low: float
    high: float

    def __post_init__(self) -> None:
        number("low", self.low)
        number("high", self.high)
        _rising(self.low, self.high)

    def value(self, generator: np.random.Generator) -> float:
        """One draw."""
        return float(generator.uniform(self.low, self.high))


@dataclass(frozen=True, kw_only=True)
class LogUniform:
    """A number between two positive bounds whose logarithm is uniform: for learning rates and the like."""

    low: float
    high: float

    def __post_init__(self) -> None:
        positive("low", self.low)
        positive("high", self.high)
        _rising(self.low, self.high)

    def value(self, generator: np.random.Generator) -> float:
        """One draw."""
        return math.exp(generator.uniform(math.log(self.low), math.log(self.high)))


Dimension = Choice | Uniform | LogUniform
Space = Mapping[str, Dimension]


def _rising(low: float, high: float) -> None:
    if low >= high:
        raise SfumatoError(f"low must be below high, got {low!r} and {high!r}", "give the smaller bound first")
