"""The search for the one unknown that a budget allows: the least noise, the most steps, or the largest batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.clipping import Clipping, QuantileClipping
from sfumato.privacy.loss import COARSE_GRID, FINE_GRID
from sfumato.privacy.mechanism import Mechanism
from sfumato.privacy.participation import Participation, participation_for
from sfumato.privacy.planning.by_name import OptimalToeplitz

MOST_NOISE = 1e7
MAX_STEPS = 10_000_000
TURNS_AHEAD = 3
"""The number of further turns that are examined beyond the largest number found."""


def least_within(
    spent: Callable[[float, float], float],
    target: float,
    *,
    what: str,
    remedy: str,
    tolerance: float = 1e-4,
    lowest: float = 0.02,
    guess: float = 1.0,
) -> float:
    """The least value, rounded up to four decimals, that spends at most the target. Larger values spend less.

    Bisects the logarithm on a coarse grid, whose epsilon is never too small, then takes a few steps on the fine grid.
    The secant method first finds a narrow bracket, so the answer of nearly every bisection step is known in advance.

    Args:
        spent: epsilon of a value on a grid.
        what: the name of the value and its budget, for the error if nothing meets the target.
        remedy: the remedy of that error.
        tolerance: the relative precision of the search on the coarse grid.
        lowest: the smallest value that is tried.
        guess: a value that spends about the target. It affects only the number of tries.

    **Guarantee.** `spent(value, FINE_GRID) <= target` was computed for the returned value.
    """
    none = SfumatoError(f"no {what}", remedy)
    enough = _Bracket(lambda value: spent(value, COARSE_GRID), target)
    enough.narrow(max(guess, lowest), lowest)
    high = 1.0
    while not enough(high):
        high *= 2
        if high > MOST_NOISE:
            raise none
    low = high / 2
    while low > lowest and enough(low):
        low, high = low / 2, low
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    value = math.ceil(min(_on_fine_grid(spent, target, high), high) * 1e4) / 1e4
    result = _first_enough(lambda value: spent(value, FINE_GRID) <= target, value)
    if result is None:
        raise none
    return result


def _first_enough(enough: Callable[[float], bool], start: float) -> float | None:
    """The first of a ladder of values, each of four decimals, that is enough, by growing strides and bisection.

    The ladder's spacing is 1e-4, or 1e-5 of its start if that is more. None if no value up to `MOST_NOISE` is enough.
    At a small delta, where rounding matters, the coarse grid's answer may be a hundred steps from the fine grid's.
    """
    step = max(start * 1e-5, 1e-4)
    value_at = lambda place: math.ceil((start + place * step) * 1e4 - 1e-6) / 1e4  # noqa: E731
    low, high = -1, 0
    while not enough(value_at(high)):
        low, high = high, 2 * high + 1
        if value_at(high) > MOST_NOISE:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(value_at(middle)) else (middle, high)
    return value_at(high)


class _Bracket:
    """Knows which values spend at most the target if larger values spend less. Evaluates only inside its bracket."""

    def __init__(self, spent: Callable[[float], float], target: float):
        self.spent, self.target = spent, target
        self.low, self.high = 0.0, math.inf  # the largest known to spend too much; the least known not to

    def __call__(self, value: float) -> bool:
        if self.low < value < self.high:
            self.evaluate(value)
        return value >= self.high

    def evaluate(self, value: float) -> float:
        """What a value inside the bracket spends. The value becomes one end of the bracket."""
        cost = self.spent(value)
        self.low, self.high = (self.low, value) if cost <= self.target else (value, self.high)
        return cost

    def narrow(self, value: float, lowest: float) -> None:
        """Narrow the bracket as far as a few tries can, starting from this value."""
        slope, before = -1.2, None  # on the log-log scale
        for _ in range(_TRIES):
            cost = self.evaluate(value)
            if not 0 < cost < math.inf or self.high <= self.low * (1 + 3 * _NARROW):
                return
            if before is not None:
                fall = math.log(cost) - math.log(before[1])  # math.log of the quotient could overflow
                slope = min(max(fall / math.log(value / before[0]), -8.0), -0.25)
            before = value, cost
            step = (math.log(self.target) - math.log(cost)) / slope
            step += _NARROW if cost > self.target else -_NARROW  # slightly past the root, to find the other end
            value *= math.exp(min(max(step, -2.0), 2.0))
            if not max(self.low, lowest) < value < min(self.high, MOST_NOISE):
                return


_TRIES, _NARROW = 8, 1e-5


def _on_fine_grid(spent: Callable[[float, float], float], target: float, high: float) -> float:
    """A slightly smaller value that the fine grid allows. Extrapolates epsilon as a power of the value."""
    coarse, wider = spent(high, COARSE_GRID), spent(high * 1.02, COARSE_GRID)
    if not 0 < wider < coarse:
        return high
    power = math.log(coarse / wider) / math.log(1.02)
    return high * (max(spent(high, FINE_GRID), 0.5 * target) / target) ** (1 / power)


def largest_within(
    spent: Callable[[int], float],
    target: float,
    limit: int,
    guess: float,
    *,
    beyond: Callable[[int], Iterable[int]] | None = None,
) -> int:
    """The largest n from 1 to the limit with spent(n) at most the target, to one in ten thousand; 0 if there is none.

    Epsilon is close to a power of n, so the secant method in logarithms needs few tries. Bisection is the fallback.

    Args:
        beyond: given the number found, larger numbers to try as well, the largest first, if epsilon may fall up to
            them.

    **Guarantee.** `spent` was computed for the returned number. The tries only decide which numbers are evaluated.
    """
    low, high = 0, limit + 1
    tried: list[tuple[float, float]] = []  # (log n, log epsilon)
    while high - low > (width := max(1, low // 10_000)):
        if len(tried) % 8 == 7 and high <= limit:
            guess = math.sqrt(max(low, 1) * high)
        count = min(max(math.floor(guess), low + width), high - width)
        cost = spent(count)
        low, high = (count, high) if cost <= target else (low, count)
        tried.append((math.log(count), math.log(min(max(cost, 1e-300), 1e300))))
        guess = _secant(tried[-2:], math.log(target))
    later = beyond(low) if low and beyond is not None else ()
    return next((count for count in later if low < count <= limit and spent(count) <= target), low)


def ends_of_turns(steps: int, turn: int) -> list[int]:
    """The ends of the next few turns after this many steps, and the step before each of them, the last first.

    Epsilon jumps at the start of another participation. Up to there it may fall, if the noise is optimised for the
    exact number of steps.

    >>> ends_of_turns(20, turn=13)
    [52, 51, 39, 38, 26, 25]
    """
    first = steps // turn + 1
    return [turn * which - before for which in range(first + TURNS_AHEAD - 1, first - 1, -1) for before in (0, 1)]


def batches_of_whole_rounds(bins: int, *, steps: int, population: int) -> list[int]:
    """The largest batches whose steps are (nearly) whole rounds, for the rounds of this many bins or a few more.

    Epsilon jumps at the start of another round, and falls as more of its bins take part.

    >>> batches_of_whole_rounds(12, steps=12, population=120)
    [59, 39, 23, 10]
    """
    rounds = -(-steps // bins)
    needed = [-(-steps // which) for which in range(rounds + TURNS_AHEAD, rounds - 1, -1)]
    return [population if least == 1 else (population - 1) // (least - 1) for least in needed]


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu: the sensitivity at which Gaussian noise of standard deviation 1 is exactly (epsilon, delta)-private."""
    import dp_accounting

    return 1 / float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def _secant(tried: list[tuple[float, float]], goal: float) -> float:
    """Where the line through the last two tries, in logarithms, meets the goal; at most eight times the last try.

    With a single try the slope is taken as 0.6. It lies between 0.5, for small privacy losses, and 1.
    """
    count, cost = tried[-1]
    slope = 0.6
    if len(tried) == 2 and tried[0][0] != count:
        slope = min(max((cost - tried[0][1]) / (count - tried[0][0]), 0.2), 5.0)
    return math.exp(min(count + (goal - cost) / slope, count + math.log(8.0)))


FIRST_STEPS = 1000
"""The step count whose optimised noise gives a first estimate of how many steps a budget allows."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A plan in which one of batch size, steps and noise multiplier may be missing.

    Args:
        make: builds the plan from what the calibration finds. The other arguments are those of
            `PrivacyPlan.calibrate`.
    """

    make: Callable[..., Any]
    examples: int
    delta: float
    batch_size: int | None
    steps: int | None
    noise_multiplier: float | None
    clipping: Clipping
    participation: Participation | None
    mechanism: Mechanism | OptimalToeplitz
    accountant: str

    def plan(self, **values: Any) -> Any:
        """The plan, with the missing number in `found`."""
        if values:
            return replace(self, **values).plan()
        participation = participation_for(population=self.examples, batch_size=self.batch_size, rule=self.participation)  # type: ignore[arg-type]
        steps = positive_integer(steps=self.steps, remedy="give the number of training steps")
        noise = self.mechanism.adapted(participation, self.examples, steps)
        return self.make(
            participation=participation,
            mechanism=replace(noise, noise_multiplier=self.noise_multiplier),
            steps=steps,
            clipping=self.clipping.adapted(participation.expected_batch_size(self.examples)),
        )

    def calibrate(self, target: Any) -> Any:
        """The plan whose missing number is the best that meets the target (`planning.target.Target`)."""
        if self.noise_multiplier is None:
            return self._least_noise(target)
        return self._most_steps(target) if self.steps is None else self._largest_batch(target)

    def _least_noise(self, target: Any) -> Any:
        plan = self.plan(noise_multiplier=1.0)
        with_noise = cache(plan.with_noise)
        noise_multiplier = least_within(
            lambda sigma, grid: target.cost(with_noise(sigma), accountant=self.accountant, grid=grid),
            target.limit,
            guess=_noise_like(plan, target.mu(self.delta)),
            what=f"noise multiplier below 1e7 reaches {target} at delta {self.delta:g}",
            remedy=f"give a larger {target.name} or delta, or fewer steps"
            + (", or more count_noise" if isinstance(self.clipping, QuantileClipping) else ""),
        )
        return with_noise(noise_multiplier)

    def _most_steps(self, target: Any) -> Any:
        single_step = self.plan(steps=1)
        fixed = isinstance(self.mechanism, Mechanism)
        limit = MAX_STEPS if isinstance(self.mechanism, Mechanism) else self.mechanism.longest
        most = (single_step if fixed else self.plan(steps=min(FIRST_STEPS, limit))).most_steps(
            target, accountant=self.accountant
        )
        if most and not fixed:  # the noise differs for each number of steps
            turn = single_step.participation.gap(self.examples)
            ends = None if turn is None else partial(ends_of_turns, turn=turn)
            cost = self._cost_by("steps", target)
            most = largest_within(cost, target.limit, limit, guess=most, beyond=ends)
        return self.plan(steps=self._at_least_one(most, single_step, target, "step"))

    def _largest_batch(self, target: Any) -> Any:
        rule, steps = self.participation, self.steps or 1
        limit = self.examples if rule is None else rule.largest_batch(self.examples)

        def whole_rounds(batch: int) -> list[int]:
            turn = self.plan(batch_size=batch).participation.gap(self.examples)
            return [] if turn is None else batches_of_whole_rounds(turn, steps=steps, population=self.examples)

        cost = self._cost_by("batch_size", target)
        most = largest_within(cost, target.limit, limit, math.sqrt(self.examples), beyond=whole_rounds)
        return self.plan(batch_size=self._at_least_one(most, self.plan(batch_size=1), target, "example in a batch"))

    def _at_least_one(self, most: int, single_step: Any, target: Any, what: str) -> int:
        if most < 1:
            cost = target.cost(single_step, accountant=self.accountant)
            raise SfumatoError(
                f"{target} is already exceeded by one {what} ({cost:.3g})", f"give more noise or a larger {target.name}"
            )
        return most

    def _cost_by(self, number: str, target: Any) -> Callable[[int], float]:
        """The plan's cost as a function of the missing number."""
        return lambda value: target.cost(self.plan(**{number: value}), accountant=self.accountant)


def _noise_like(plan: Any, mu: float) -> float:
    """Roughly the noise multiplier at which the steps cost as much as one Gaussian release of sensitivity mu."""
    sigma = 1.0
    for _ in range(4):
        like = plan.theorem.equivalent_steps(plan.with_noise(sigma), mu)
        sigma = min(max(sigma * math.sqrt(plan.steps / max(like, 1e-300)), sigma / 3, 0.1), sigma * 1e3, MOST_NOISE)
    return sigma
