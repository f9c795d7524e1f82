"""The noise of each parameter by itself: its scale, its largest values, and whether it repeats.

A projection on one direction averages over all parameters, so it passes one that has no noise. What a step releases,
less the clipped sum and divided by the plan's standard deviation, is N(0, 1) in every coordinate, independent of all
others. Each test below has a bound of its false alarms under that, for every number of steps and coordinates:

    scale        r, the mean of M squares:               P <= exp(-M (r - 1 - ln r) / 2), to either side (Chernoff)
    coordinates  the same for the M squares of one coordinate, the least of d of them: d times as much
    tails        t, the largest of M magnitudes:         P(max <= t) = (1 - 2 Phi(-t))^M
    repeats      two windows of k numbers within e:      P <= pairs (e sqrt(2 / pi))^k
    correlation  r, the mean of (a - b)^2 / 2 over M pairs: as for the scale

The last is asked of neighbouring steps, of the same step of two runs, and of each two parameters.
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
from sfumato.audit.search import NINE_OF_TEN, smallest_fault

FALSE_ALARM = 1e-6
"""The probability that right noise is called wrong, over all parameters and tests."""
TESTS = ("scale", "coordinates", "tails", "repeats", "steps", "runs", "parameters")
"""Each of which gets an equal part of it."""
WINDOW = 8
"""So many numbers of a parameter are compared between steps: of a smaller one those of several steps in a row."""
ALL = "all parameters together"
SHOWN = 3
"""So many faults are printed."""


@dataclass(frozen=True, kw_only=True)
class ParameterNoise:
    """What was seen of one parameter's noise, in the plan's standard deviations.

    Args:
        name: of the parameter.
        coordinates: d, how many numbers it has.
        steps: in all runs together.
        squares: the sum of all d * steps squares.
        least: the smallest sum of the squares of one coordinate, over all steps.
        largest: the largest magnitude.
        kept: float64 (runs, steps of a run, k): k of its coordinates in each step.
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
        """M."""
        return self.coordinates * self.steps


@dataclass(frozen=True, kw_only=True)
class NoiseAudit:
    """Whether the noise of each parameter is the plan's.

    Args:
        parameters, steps, numbers: how many were looked at.
        false_alarm: the probability, at most, that noise that is the plan's has a fault here.
        faults: what is wrong, in words; empty where nothing is.
        weakest: the smallest parameter, of which least can be seen.
        scale: the largest factor on the noise, below 1, that would have been noticed in nine of ten repetitions: of
            the weakest parameter, and of all together; None for none.
        cut: noise that is cut off at so many standard deviations, or fewer, would have been noticed: of the weakest
            parameter, and of all together.
        first_steps: whether each step was the first of a run of its own, as for correlated noise.
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
    def broken(self) -> bool:
        """Whether the noise is not the plan's."""
        return bool(self.faults)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was looked at, what was found, and what would have been noticed."""
        each = "the only parameter" if self.parameters == 1 else f"each of the {self.parameters:,} parameters"
        looked = (
            f"The noise of {each} was checked in {_where(self.steps, self.first_steps)}: its scale, its largest "
            f"values, and repeats between {'' if self.first_steps else 'steps, '}runs and parameters. Correct noise "
            f"fails this check with probability at most {self.false_alarm:g}."
        )
        single, together = (
            "less than a hundredth" if one is None else f"{math.floor(1e4 * one) / 100:.2f}%" for one in self.scale
        )
        noticed = (
            f"The check would have noticed noise of {together} of its scale in all parameters, or of {single} in "
            f"{self.weakest} alone, the smallest of them; and noise cut off at {_down(self.cut[1])} standard "
            f"deviations in all parameters, or at {_down(self.cut[0])} in {self.weakest} alone."
        )
        if not self.faults:
            return looked, f"No fault was found. {noticed}"
        more = len(self.faults) - SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        return looked, f"The noise is not the plan's: {'; '.join(self.faults[:SHOWN])}{rest}.", noticed

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back, and the sentences."""
        plain = {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(self).items()}
        return {**plain, "broken": self.broken, "sentences": list(self.sentences)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoiseAudit:
        """What `to_dict` wrote."""
        known: dict[str, Any] = {one.name: data[one.name] for one in fields(cls)}
        for name in ("faults", "scale", "cut"):
            known[name] = tuple(known[name])
        return cls(**known)


def _where(steps: int, first_steps: bool) -> str:
    return f"the first steps of {steps:,} runs" if first_steps else f"{steps:,} steps of two runs"


def audit_noise(
    seen: Sequence[ParameterNoise], *, false_alarm: float = FALSE_ALARM, first_steps: bool = False
) -> NoiseAudit:
    """Check the noise of each parameter, and of all together, against the plan's.

    Args:
        seen: of each parameter, from the same steps of two runs with keys of their own.
        false_alarm: the probability that noise that is the plan's has a fault here, at most.
        first_steps: whether each step was the first of a run of its own instead.

    **Guarantee.** Where the noise is N(0, 1), independent across coordinates, parameters, steps and runs, faults are
    found with probability at most `false_alarm`: each of the tests above has a bound of its own that holds for every
    number of observations, and the sum of them all is `false_alarm` (union bound). Rounding to float32, at most 5e-4
    of a standard deviation for a noise multiplier of 0.001 or more, is left out of account.
    """
    fraction("false_alarm", false_alarm)
    share = false_alarm / len(TESTS)
    whole = ParameterNoise(
        name=ALL,
        coordinates=sum(one.coordinates for one in seen),
        steps=seen[0].steps,
        squares=math.fsum(one.squares for one in seen),
        least=min(one.least for one in seen),
        largest=max(one.largest for one in seen),
        kept=seen[0].kept[:, :, :0],
    )
    each = share / (len(seen) + 1)
    faults = [fault for one in (*seen, whole) for fault in (*_scale(one, each), *_tails(one, each))]
    for one in seen:
        alone = share / len(seen)
        faults += (*_coordinates(one, alone), *_repeats(one, alone), *_neighbours(one, alone, first_steps))
    weakest = min(seen, key=lambda one: one.numbers)
    return NoiseAudit(
        parameters=len(seen),
        steps=whole.steps,
        numbers=whole.numbers,
        false_alarm=false_alarm,
        faults=(*faults, *_between_parameters(seen, share)),
        weakest=weakest.name,
        scale=(_smallest(weakest.numbers, each), _smallest(whole.numbers, each)),
        cut=(_least_maximum(weakest.numbers, each), _least_maximum(whole.numbers, each)),
        first_steps=first_steps,
    )


def _log_chance(mean: float, count: int) -> float:
    """The logarithm of a bound of P(the mean of so many squares lies as far to its side of 1), Chernoff's."""
    return -math.inf if mean <= 0 else -count * (mean - 1 - math.log(mean)) / 2


def _odd(mean: float, count: int, alpha: float) -> bool:
    """Whether a mean of squares lies where right noise puts it with probability alpha at most, on both sides."""
    return _log_chance(mean, count) < math.log(alpha / 2)


def _scale(one: ParameterNoise, alpha: float) -> Iterator[str]:
    mean = one.squares / one.numbers
    if _odd(mean, one.numbers, alpha):
        yield f"{one.name}: the noise has {100 * math.sqrt(mean):.2f}% of its scale"


def _coordinates(one: ParameterNoise, alpha: float) -> Iterator[str]:
    mean = one.least / one.steps
    if mean < 1 and _log_chance(mean, one.steps) < math.log(alpha / one.coordinates):
        yield f"{one.name}: in one coordinate the noise has {100 * math.sqrt(mean):.2f}% of its scale"


def _tails(one: ParameterNoise, alpha: float) -> Iterator[str]:
    """Of the largest magnitude: half of alpha to either side."""
    beyond = 2 * math.exp(float(log_ndtr(-one.largest)))
    below = -math.inf if beyond >= 1 else one.numbers * math.log1p(-beyond)
    what = f"{one.name}: the largest of {one.numbers:,} values is {one.largest:.2f} standard deviations"
    if below < math.log(alpha / 2):
        yield f"{what}, and {_down(_least_maximum(one.numbers, alpha))} is the least that right noise has"
    elif one.numbers * beyond < alpha / 2:
        yield f"{what}, which right noise does not reach"


def _least_maximum(count: int, alpha: float) -> float:
    """t with P(the largest of so many magnitudes <= t) = alpha / 2."""
    return -float(ndtri_exp(math.log(-math.expm1(math.log(alpha / 2) / count) / 2)))


def _repeats(one: ParameterNoise, alpha: float) -> Iterator[str]:
    """Windows of numbers that come again, in any other steps of any run.

    A number lies within e of another, whatever that is, with probability at most e sqrt(2 / pi); in two windows of the
    same run that overlap, each number is new where those before it are given, so k of them do with the k-th power.
    """
    kept = one.kept[:, :, :WINDOW]
    long = -(-WINDOW // kept.shape[2])
    if kept.shape[1] < long:
        return
    windows = np.lib.stride_tricks.sliding_window_view(kept, long, axis=1)  # type: ignore[call-overload]
    points = windows.reshape(-1, kept.shape[2] * long)
    pairs = len(points) * (len(points) - 1) / 2
    near = math.sqrt(math.pi / 2) * (alpha / pairs) ** (1 / points.shape[1])
    if _two_within(points, near):
        yield f"{one.name}: the noise of one step comes again in another"


def _two_within(points: np.ndarray, near: float) -> bool:
    """Whether two of these points (n, k) differ by at most this in every coordinate."""
    column = int(points.std(0).argmax())
    ordered = points[points[:, column].argsort()]
    for apart in range(1, len(points)):
        close = np.flatnonzero(ordered[apart:, column] - ordered[:-apart, column] <= near)
        if not close.size:
            return False  # nor are any that lie farther apart
        if (np.abs(ordered[close + apart] - ordered[close]) <= near).all(1).any():
            return True
    return False


def _neighbours(one: ParameterNoise, alpha: float, first_steps: bool) -> Iterator[str]:
    """Steps with the next one, and with the same step of the other run: each with an alpha of its own."""
    kept, even = one.kept, one.kept.shape[1] // 2 * 2
    names = ("two runs", "two runs") if first_steps else ("two steps in a row", "the same step of two runs")
    sides = (kept[:, 0:even:2], kept[:, 1:even:2]), (kept[0], kept[1])
    for what, (first, second) in zip(names, sides, strict=True):
        if first.size and _odd(mean := float(np.square(first - second).mean()) / 2, first.size, alpha):
            yield f"{one.name}: the noise of {what} has a correlation of {1 - mean:.2f}"


def _between_parameters(seen: Sequence[ParameterNoise], alpha: float) -> Iterator[str]:
    """The first coordinate of each parameter with that of each other one, over all steps."""
    first = np.stack([one.kept[:, :, 0].ravel() for one in seen])
    products = first @ first.T
    count, pairs = first.shape[1], len(seen) * (len(seen) - 1) // 2
    for (place, one), (other, another) in combinations(enumerate(seen), 2):
        mean = float(products[place, place] + products[other, other] - 2 * products[place, other]) / (2 * count)
        if _odd(mean, count, alpha / pairs):
            yield f"{one.name} and {another.name}: their noise has a correlation of {1 - mean:.2f}"


def _smallest(count: int, alpha: float) -> float | None:
    """The largest factor on the noise of so many numbers that is noticed in nine of ten repetitions."""
    unlucky = 2 * float(gammaincinv(count / 2, NINE_OF_TEN)) / count
    return smallest_fault(lambda factor: factor**2 * unlucky < 1 and _odd(factor**2 * unlucky, count, alpha))


def _down(value: float) -> str:
    return f"{math.floor(100 * value) / 100:.2f}"
