"""Draws beside samples and noise: a private choice and noisy counts from random bits, and the settings of a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, number, positive, whole_number
from sfumato.privacy.noisy_table import NoisyTable, PrivateChoice, check_counts
from sfumato.randomness.keys import RunKey


def choose(choice: PrivateChoice, scores: Sequence[int], key: RunKey) -> int:
    """The index of the chosen candidate.

    Args:
        choice: epsilon and the number of candidates.
        scores: for each candidate, the number of held-out records that it labels correctly. Private.
        key: a secret used for this choice only: `RunKey.fresh()`, discarded afterwards.

    **Guarantee.** Exactly the distribution of `choice`: epsilon is the exact value of the float, all comparisons are of
    whole numbers, and no logarithm or exponential is rounded. The bits come from HMAC-SHA512 of the whole key. Reusing
    a key for another choice would reveal both: two choices with one key and scores that differ by a record compare the
    same coins.

    >>> choose(PrivateChoice(epsilon=0.5, candidates=3), [900, 890, 850], RunKey.from_seed(0))
    0
    """
    bits = Bits(key)
    heads = [place for place, exponent in enumerate(choice.exponents(scores)) if bits.coin_exp(exponent)]
    return heads[bits.below(len(heads))]


class Bits:
    """Random whole numbers and coins, drawn one after the other from the bits of a key.

    >>> bits = Bits(RunKey.from_seed(0))
    >>> sum(bits.coin_exp(Fraction(1)) for _ in range(1000))  # 368 expected
    382
    """

    def __init__(self, key: RunKey):
        self._bits = _bits(key)

    def below(self, bound: int) -> int:
        """Uniform on 0, ..., bound - 1. Draws as many bits as bound - 1 has until the number is below the bound."""
        while True:
            number = 0
            for _ in range((bound - 1).bit_length()):
                number = 2 * number + next(self._bits)
            if number < bound:
                return number

    def coin(self, probability: Fraction) -> bool:
        """True with this probability, a fraction in [0, 1]."""
        return self.below(probability.denominator) < probability.numerator

    def coin_exp(self, exponent: Fraction) -> bool:
        """True with probability e^-exponent, exponent >= 0 (Canonne, Kamath and Steinke 2020, algorithm 1).

        For an exponent x of at most 1, toss coins with probability x / 1, x / 2, x / 3, ...: the first that fails has
        an odd index with probability 1 - x + x^2 / 2 - ... = e^-x. A larger exponent is split into coins of e^-1 and a
        remainder, all of which must show heads.
        """
        whole = math.floor(exponent)
        if not all(self.coin_exp(Fraction(1)) for _ in range(whole if exponent > 1 else 0)):
            return False
        rest = exponent - whole if exponent > 1 else exponent
        return next(number for number in count(1) if not self.coin(rest / number)) % 2 == 1


def _bits(key: RunKey) -> Iterator[int]:
    for block in count():
        for word in key.uint64_words("choice", block):
            yield from (int(word) >> place & 1 for place in range(64))


def noisy_counts(table: NoisyTable, counts: Sequence[int], key: RunKey) -> list[int]:
    """The counts with the table's noise. Some may be negative.

    Args:
        table: the cells and their noise.
        counts: one for each cell, in the order of a flattened array of the table's shape. Private.
        key: a secret used for this release only.

    **Guarantee.** Exactly the distribution of `NoisyTable`: epsilon is the table's fraction, and no exponential is
    rounded. Sensitivity 1: counts must be whole numbers, one for each cell, or are refused. Two tables with the same
    key would have the same noise, and their difference none.
    """
    check_counts("count", counts, table.cells)
    bits = Bits(key)
    return [each + two_sided_geometric(bits, Fraction(table.epsilon)) for each in counts]


def two_sided_geometric(bits: Bits, epsilon: Fraction) -> int:
    """A whole number k with probability proportional to e^(-epsilon |k|).

    Canonne, Kamath and Steinke 2020, arXiv 2004.00010, algorithm 2. With epsilon = s/t: U + t V is geometric with
    e^(-1/t), where U below t is accepted with probability e^(-U/t) and V is the number of coins of e^-1 that show heads
    in a row; in units of s it is geometric with e^(-s/t). A minus zero is drawn again.
    """
    s, t = epsilon.numerator, epsilon.denominator
    while True:
        within = bits.below(t)
        if not bits.coin_exp(Fraction(within, t)):
            continue
        heads = 0
        while bits.coin_exp(Fraction(1)):
            heads += 1
        size = (within + t * heads) // s
        negative = bits.below(2)
        if size or not negative:
            return -size if negative else size


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
        number(low=self.low, high=self.high)
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
        positive(low=self.low, high=self.high)
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
    for name, dimension in space.items():
        if not isinstance(dimension, (Choice, Uniform, LogUniform)):
            raise SfumatoError(
                f"the space of {name!r} is not a rule to draw from: {dimension!r}", "use Choice, Uniform or LogUniform"
            )
    whole_number(candidate=candidate)
    return {name: rule.value(key.generator("candidate's settings", candidate, name)) for name, rule in space.items()}
