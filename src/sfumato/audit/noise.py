"""Tests of each parameter's noise: scale, largest values, repeats and correlations.

A projection on one direction averages over all parameters and can miss a parameter without noise. A step's release,
minus the clipped sum and divided by the plan's standard deviation, is N(0, 1) in every coordinate, independent of all
others. Under this hypothesis each test has a bound on its false alarms, for every number of steps and coordinates:

    scale        r, the mean of M squares:               P <= exp(-M (r - 1 - ln r) / 2), on either side (Chernoff)
    coordinates  the scale test for the coordinate with the smallest of d sums of M squares: d times the bound
    tails        t, the largest of M magnitudes:         P(max <= t) = (1 - 2 Phi(-t))^M
    repeats      two windows of k numbers within e:      P <= pairs (e sqrt(2 / pi))^k
    correlation  r, the mean of (a - b)^2 / 2 over M pairs: as for the scale

The correlation test runs on consecutive steps, on the same step of two runs, and on every pair of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import gammaincinv, log_ndtr, ndtri_exp

from sfumato._checks import fraction
from sfumato.audit.bound import NINE_OF_TEN, smallest_fault

FALSE_ALARM = 1e-6
"""The probability that correct noise fails the audit, over all parameters and tests."""
TESTS = ("scale", "coordinates", "tails", "repeats", "steps", "runs", "parameters")
"""The tests. Each gets an equal share of `FALSE_ALARM`."""
WINDOW = 8
"""Number of values in a window of the repeats test. Windows of a smaller parameter span several steps."""
ALL = "all parameters together"
SHOWN = 3
"""The number of faults that are printed."""


@dataclass(frozen=True, kw_only=True)
class ParameterNoise:
    """Statistics of one parameter's noise, in units of the plan's standard deviation.

    Args:
        name: name of the parameter.
        coordinates: d, the number of its coordinates.
        steps: the number of steps, over all runs.
        squares: the sum of all d * steps squares.
        least: the sum of squares of one coordinate over all steps, minimised over coordinates.
        largest: the largest magnitude.
        kept: float64 (runs, steps of a run, k): the values of k coordinates in each step.
    """

    name: str
    coordinates: int
    steps: int
    squares: float
    least: float
    largest: float
    kept: np.ndarray

    @property
    def numbers(self) -> int:
        """M, the number of values."""
        return self.coordinates * self.steps


@dataclass(frozen=True, kw_only=True)
class NoiseAudit:
    """Whether the noise of every parameter matches the plan.

    Args:
        parameters, steps, numbers: the number of parameters, steps and values that were checked.
        false_alarm: upper bound on the probability that correct noise fails.
        faults: descriptions of the faults; empty if there are none.
        weakest: the parameter with the fewest values, for which the tests are weakest.
        scale: the largest factor below 1 on the noise that would be detected in nine of ten repetitions: in the weakest
            parameter alone, and in all parameters; None if no factor would be.
        cut: truncation of the noise at this number of standard deviations, or below, would be detected: in the weakest
            parameter alone, and in all parameters.
        first_steps: whether each step is the first step of a separate run, as for correlated noise.
    """

    parameters: int
    steps: int
    numbers: int
    false_alarm: float
    faults: tuple[str, ...]
    weakest: str
    scale: tuple[float | None, float | None]
    cut: tuple[float, float]
    first_steps: bool = False

    @property
    def has_fault(self) -> bool:
        """Whether a fault was found."""
        return bool(self.faults)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was checked, what was found, and the smallest faults that would have been detected."""
        each = "the only parameter" if self.parameters == 1 else f"each of the {self.parameters:,} parameters"
        steps = f"{self.steps:,} steps of two runs"
        if self.first_steps:
            steps = f"the first steps of {self.steps:,} runs"
        checked = (
            f"The noise of {each} was checked in {steps}: its scale, its largest "
            f"values, and repeats between {'' if self.first_steps else 'steps, '}runs and parameters. Correct noise "
            f"fails this check with probability at most {self.false_alarm:g}."
        )
        single, together = (
            "less than a hundredth" if factor is None else f"{math.floor(1e4 * factor) / 100:.2f}%"
            for factor in self.scale
        )
        power = (
            f"The check would have noticed noise of {together} of its scale in all parameters, or of {single} in "
            f"{self.weakest} alone, the smallest of them; and noise cut off at {_rounded_down(self.cut[1])} standard "
            f"deviations in all parameters, or at {_rounded_down(self.cut[0])} in {self.weakest} alone."
        )
        if not self.faults:
            return checked, f"No fault was found. {power}"
        more = len(self.faults) - SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        return checked, f"The noise is not the plan's: {'; '.join(self.faults[:SHOWN])}{rest}.", power

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data for `from_dict`, and the sentences."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {**plain, "broken": self.has_fault, "sentences": list(self.sentences)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoiseAudit:
        """The audit that `to_dict` wrote."""
        values: dict[str, Any] = {field.name: data[field.name] for field in fields(cls)}
        for name in ("faults", "scale", "cut"):
            values[name] = tuple(values[name])
        return cls(**values)


def audit_noise(
    seen: Sequence[ParameterNoise], *, false_alarm: float = FALSE_ALARM, first_steps: bool = False
) -> NoiseAudit:
    """Checks the noise of each parameter, and of all parameters together, against the plan.

    Args:
        seen: the statistics of each parameter, from the same steps of two runs with different keys.
        false_alarm: upper bound on the probability that correct noise fails.
        first_steps: whether each step is instead the first step of a separate run.

    **Guarantee.** If the noise is N(0, 1), independent across coordinates, parameters, steps and runs, a fault is
    reported with probability at most `false_alarm`. Each of the tests above has a bound that holds for every number of
    observations, and the bounds sum to `false_alarm` (union bound). Rounding to float32, at most 5e-4 of a standard
    deviation for a noise multiplier of 0.001 or more, is neglected.
    """
    fraction(false_alarm=false_alarm)
    share = false_alarm / len(TESTS)
    whole = ParameterNoise(
        name=ALL,
        coordinates=sum(noise.coordinates for noise in seen),
        steps=seen[0].steps,
        squares=math.fsum(noise.squares for noise in seen),
        least=min(noise.least for noise in seen),
        largest=max(noise.largest for noise in seen),
        kept=seen[0].kept[:, :, :0],
    )
    level = share / (len(seen) + 1)
    faults = [fault for noise in (*seen, whole) for fault in (*_scale(noise, level), *_tails(noise, level))]
    for noise in seen:
        alone = share / len(seen)
        faults += (*_coordinates(noise, alone), *_repeats(noise, alone), *_neighbours(noise, alone, first_steps))
    weakest = min(seen, key=lambda noise: noise.numbers)
    return NoiseAudit(
        parameters=len(seen),
        steps=whole.steps,
        numbers=whole.numbers,
        false_alarm=false_alarm,
        faults=(*faults, *_between_parameters(seen, share)),
        weakest=weakest.name,
        scale=(_smallest(weakest.numbers, level), _smallest(whole.numbers, level)),
        cut=(_least_maximum(weakest.numbers, level), _least_maximum(whole.numbers, level)),
        first_steps=first_steps,
    )


def _log_chance(mean: float, count: int) -> float:
    """Logarithm of Chernoff's bound on P(the mean of `count` squares is at least this far from 1, on this side)."""
    return -math.inf if mean <= 0 else -count * (mean - 1 - math.log(mean)) / 2


def _rejected(mean: float, count: int, alpha: float) -> bool:
    """Whether the mean of squares is rejected at level alpha, two-sided."""
    return _log_chance(mean, count) < math.log(alpha / 2)


def _scale(noise: ParameterNoise, alpha: float) -> Iterator[str]:
    mean = noise.squares / noise.numbers
    if _rejected(mean, noise.numbers, alpha):
        yield f"{noise.name}: the noise has {100 * math.sqrt(mean):.2f}% of its scale"


def _coordinates(noise: ParameterNoise, alpha: float) -> Iterator[str]:
    mean = noise.least / noise.steps
    if mean < 1 and _log_chance(mean, noise.steps) < math.log(alpha / noise.coordinates):
        yield f"{noise.name}: in one coordinate the noise has {100 * math.sqrt(mean):.2f}% of its scale"


def _tails(noise: ParameterNoise, alpha: float) -> Iterator[str]:
    """The two-sided test of the largest magnitude."""
    beyond = 2 * math.exp(float(log_ndtr(-noise.largest)))
    below = -math.inf if beyond >= 1 else noise.numbers * math.log1p(-beyond)
    largest = f"{noise.name}: the largest of {noise.numbers:,} values is {noise.largest:.2f} standard deviations"
    if below < math.log(alpha / 2):
        yield f"{largest}, but correct noise reaches at least {_rounded_down(_least_maximum(noise.numbers, alpha))}"
    elif noise.numbers * beyond < alpha / 2:
        yield f"{largest}, which correct noise does not reach"


def _least_maximum(count: int, alpha: float) -> float:
    """t with P(the largest of `count` magnitudes <= t) = alpha / 2."""
    return -float(ndtri_exp(math.log(-math.expm1(math.log(alpha / 2) / count) / 2)))


def _repeats(noise: ParameterNoise, alpha: float) -> Iterator[str]:
    """Whether a window of values occurs twice, in any steps of any runs.

    A value lies within e of any given number with probability at most e sqrt(2 / pi). In two overlapping windows of the
    same run each value is still independent of the earlier ones, so k values match with at most the k-th power.
    """
    kept = noise.kept[:, :, :WINDOW]
    length = -(-WINDOW // kept.shape[2])
    if kept.shape[1] < length:
        return
    windows = np.lib.stride_tricks.sliding_window_view(kept, length, axis=1)  # type: ignore[call-overload]
    points = windows.reshape(-1, kept.shape[2] * length)
    pairs = len(points) * (len(points) - 1) / 2
    distance = math.sqrt(math.pi / 2) * (alpha / pairs) ** (1 / points.shape[1])
    if _two_within(points, distance):
        yield f"{noise.name}: the noise of one step repeats in another"


def _two_within(points: np.ndarray, distance: float) -> bool:
    """Whether two of these points (n, k) differ by at most this distance in every coordinate."""
    column = int(points.std(0).argmax())
    ordered = points[points[:, column].argsort()]
    for lag in range(1, len(points)):
        close = np.flatnonzero(ordered[lag:, column] - ordered[:-lag, column] <= distance)
        if not close.size:
            return False  # a larger lag only increases the differences
        if (np.abs(ordered[close + lag] - ordered[close]) <= distance).all(1).any():
            return True
    return False


def _neighbours(noise: ParameterNoise, alpha: float, first_steps: bool) -> Iterator[str]:
    """Correlation with the next step and with the same step of the other run, each tested at level alpha."""
    kept, even = noise.kept, noise.kept.shape[1] // 2 * 2
    names = ("two runs", "two runs") if first_steps else ("two steps in a row", "the same step of two runs")
    sides = (kept[:, 0:even:2], kept[:, 1:even:2]), (kept[0], kept[1])
    for pair, (first, second) in zip(names, sides, strict=True):
        if first.size and _rejected(mean := float(np.square(first - second).mean()) / 2, first.size, alpha):
            yield f"{noise.name}: the noise of {pair} has a correlation of {1 - mean:.2f}"


def _between_parameters(seen: Sequence[ParameterNoise], alpha: float) -> Iterator[str]:
    """Correlation between the first coordinates of every pair of parameters, over all steps."""
    first = np.stack([noise.kept[:, :, 0].ravel() for noise in seen])
    products = first @ first.T
    count, pairs = first.shape[1], len(seen) * (len(seen) - 1) // 2
    for (i, noise), (j, other) in combinations(enumerate(seen), 2):
        mean = float(products[i, i] + products[j, j] - 2 * products[i, j]) / (2 * count)
        if _rejected(mean, count, alpha / pairs):
            yield f"{noise.name} and {other.name}: their noise has a correlation of {1 - mean:.2f}"


def _smallest(count: int, alpha: float) -> float | None:
    """The largest factor on the noise of `count` values that is detected in nine of ten repetitions."""
    unlucky = 2 * float(gammaincinv(count / 2, NINE_OF_TEN)) / count
    return smallest_fault(lambda factor: factor**2 * unlucky < 1 and _rejected(factor**2 * unlucky, count, alpha))


def _rounded_down(value: float) -> str:
    return f"{math.floor(100 * value) / 100:.2f}"
