"""The trade-off within one budget: how many steps each noise multiplier allows, and the signal over the noise.

For a budget (epsilon, delta), N examples and a batch size B, the noise multiplier sigma and the number of steps T
determine each other: more noise allows more steps. The pairs that spend the whole budget form the frontier (De et al.
2022, section 5).

The rules of thumb come from De et al. 2022 (arXiv 2204.13650, section 5). They were found on one data set with one
network: CIFAR-10, WRN-16-4 trained from scratch with SGD, 45,000 examples, (8, 1e-5)-DP by Renyi DP. They concern
accuracy, never the guarantee, and may not hold elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError, fraction, number, positive, within
from sfumato.privacy.calibration import MAX_STEPS, gaussian_mu
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.planning.remarks import costs

EPSILON = 8.0
STEPS = 2500
"""About the best number of steps at that budget and batch size 4096 (figure 6(b)). It is roughly constant for large
batches (figure 7(a))."""
MODERATE_BATCH = 2048
"""The moderate batch size that section 5 recommends if compute is limited."""


def steps_by_rule(epsilon: float, batch_size: int, examples: int) -> int:
    """T = 2500 epsilon / 8 for large batches. Those below 2048 (or N) get as many epochs as a batch of that size.

    The first part follows figure 6(b) and section 4.2. The second is read off figure 7(b); the text does not state its
    values.

    >>> [steps_by_rule(8.0, batch_size, 50_000) for batch_size in (16_384, 4096, 2048, 1024)]
    [2500, 2500, 2500, 5000]
    >>> steps_by_rule(1.0, 4096, 50_000), steps_by_rule(8.0, 1000, 1000)
    (312, 2500)
    """
    small = min(MODERATE_BATCH, examples) / batch_size
    return max(1, round(STEPS * epsilon / EPSILON * max(1.0, small)))


def batch_by_rule(examples: int, epsilon: float, epochs: float) -> float:
    """The batch size whose steps by rule take this many epochs, but at least the moderate one: max(E N / T, 2048).

    >>> batch_by_rule(50_000, 8.0, 150), batch_by_rule(50_000, 8.0, 20)
    (3000.0, 2048.0)
    """
    return max(epochs * examples / steps_by_rule(epsilon, examples, examples), float(MODERATE_BATCH))


FLAT = 0.95
"""A frontier counts as flat from this share of the full-batch limit on."""
ENOUGH = 60
"""The fewest steps to give the optimizer, although fewer would need less noise. The defaults take as many."""
_FEWEST, _MOST, _MOST_EPOCHS, _MOST_OF_ALL = 30, 30_000, 1_000, 200_000
_FEW_POINTS = 7


@dataclass(frozen=True, kw_only=True)
class Point:
    """A plan that spends the budget, and its signal over the noise.

    A sum of clipped gradients has norm at most C for each participant, so B C for the expected batch. The noise has
    standard deviation sigma C in every direction, and norm close to sigma C sqrt(d) over d parameters. The signal is
    that bound. It is reached only if all gradients have norm at least C and the same direction, so it compares plans,
    not trainings.

    Args:
        plan: the plan.
        rule: "steps" for the rule of thumb of De et al. 2022, "epochs" for the most steps within the allowed compute,
            None for a point of the grid.

    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=2500, noise_multiplier=4.0, delta=1e-5)
    >>> point = Point(plan=plan)
    >>> point.signal_to_noise_step, point.signal_to_noise_run
    (1024.0, 51200.0)
    """

    plan: PrivacyPlan
    rule: str | None = None

    @property
    def signal_to_noise_step(self) -> float:
        """B / sigma: the largest possible signal of one step over the noise in its direction."""
        return self.plan.expected_batch_size / self.plan.noise_multiplier

    @property
    def signal_to_noise_run(self) -> float:
        """B sqrt(T) / sigma: T steps in one direction add up to T B C, and their noise to sqrt(T) sigma C."""
        return self.signal_to_noise_step * math.sqrt(self.plan.steps)


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The points of one batch size, in order of increasing noise multiplier.

    Args:
        epsilon: the budget.
        limit: N mu, the signal-to-noise ratio of a full-batch run of any length with this budget. mu is the
            sensitivity at which Gaussian noise of standard deviation 1 is exactly (epsilon, delta)-private. Sampled
            batches approach the limit as sigma grows: by the central limit of `Theorem.equivalent_steps`,
            B sqrt(T) / sigma tends to N mu.
        points: increasing in noise multiplier and steps.

    **Guarantee.** For each point that `frontier` returns, `point.plan.epsilon() <= epsilon` at the requested delta,
    certified on the fine grid.
    """

    epsilon: float
    limit: float
    points: tuple[Point, ...]

    def share(self, point: Point) -> float:
        """The point's signal-to-noise ratio over the run, as a share of the full-batch limit."""
        return point.signal_to_noise_run / self.limit

    @property
    def plateau(self) -> Point | None:
        """The first point at 95% of the limit: more noise and steps gain little. None if no point reaches it.

        Also None for full batches, because every point has the limit.
        """
        if self.points[0].plan.sampling_probability == 1:
            return None
        return next((point for point in self.points if self.share(point) >= FLAT), None)

    @property
    def recommended(self) -> Point:
        """The point to take: the most steps within the allowed compute, or else the rule's steps.

        With full batches, more steps do not raise the signal. So a point with fewer steps is taken if there is one: the
        one with the fewest, but at least sixty.
        """
        marked = {point.rule: point for point in self.points}
        taken = marked.get("epochs") or marked["steps"]
        if taken.plan.sampling_probability < 1:
            return taken
        enough = (point for point in self.points if point.plan.steps >= ENOUGH and self.share(point) >= FLAT)
        return min(taken, next(enough, taken), key=lambda point: point.plan.steps)

    def to_dict(self) -> dict[str, Any]:
        """The points as plain data: each plan's numbers, its signal-to-noise ratios, and why it stands out."""
        plan = self.recommended.plan
        return {
            "batch_size": plan.expected_batch_size,
            "participation": plan.participation.name,
            "sampling_probability": plan.sampling_probability,
            "limit": self.limit,
            "points": [
                {
                    "noise_multiplier": point.plan.noise_multiplier,
                    "steps": point.plan.steps,
                    "expected_epochs": point.plan.expected_epochs,
                    "gradients": point.plan.expected_batch_size * point.plan.steps,
                    **costs(point.plan),
                    "signal_to_noise_step": point.signal_to_noise_step,
                    "signal_to_noise_run": point.signal_to_noise_run,
                    "share_of_limit": self.share(point),
                    "rule": point.rule,
                    "flat": point is self.plateau,
                    "take": point is self.recommended,
                }
                for point in self.points
            ],
        }


def frontier(
    *,
    examples: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    noise_multipliers: Sequence[float] | None = None,
    epochs: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Frontier:
    """The frontier of one batch size, with the points that a rule marks.

    Args:
        examples: N.
        batch_size: B, the expected number of examples in a step; N means full-batch steps.
        epsilon: the budget, at `delta`.
        noise_multipliers: the grid. None for powers of the square root of two that allow between thirty and 30,000
            steps (or 1,000 epochs, if that is more).
        epochs: the allowed compute, B T / N. If the rule's steps exceed it, the most steps that fit are marked.
        on_progress: called with the number of finished points and the number of all points.

    **Guarantee.** No point's epsilon exceeds the budget. Each plan comes from `PrivacyPlan.calibrate`, with the most
    steps for a noise multiplier or the least noise for a number of steps.

    Errors: `SfumatoError` if a value is out of range, or if a noise multiplier of the grid does not allow a single
    step.
    """
    positive(epsilon=epsilon, remedy="give the privacy budget, a number such as 3")
    fraction(delta=delta, remedy="give a number such as 1e-5, well below 1/N")
    fixed = {"examples": examples, "batch_size": batch_size, "delta": delta}
    single_step, mu = PrivacyPlan.calibrate(**fixed, steps=1, noise_multiplier=1.0), gaussian_mu(epsilon, delta)
    for sigma in noise_multipliers or ():  # the range in which the accountant has been tested
        remedy = "give numbers such as 1 2 4 8"
        within(0.1, 10_000, noise_multiplier=number(noise_multiplier=sigma, remedy=remedy), remedy=remedy)
    grid = _grid(single_step, mu) if noise_multipliers is None else map(float, noise_multipliers)
    wanted: list[tuple[str | None, dict[str, Any]]] = [
        *((rule, {"steps": steps}) for rule, steps in _rule_points(single_step, epsilon, epochs)),
        *((None, {"noise_multiplier": sigma}) for sigma in sorted(grid, reverse=True)),
    ]
    points: dict[tuple[float, int], Point] = {}
    for done, (rule, given) in enumerate(wanted):
        if on_progress is not None:
            on_progress(done, len(wanted))
        plan = PrivacyPlan.calibrate(**fixed, **given, epsilon=epsilon)
        if noise_multipliers is None and rule is None and plan.steps < _FEWEST:
            break  # the rest of the grid has less noise and allows fewer steps
        points.setdefault((plan.noise_multiplier, plan.steps), Point(plan=plan, rule=rule))
    return Frontier(epsilon=epsilon, limit=examples * mu, points=tuple(points[key] for key in sorted(points)))


def recommended_point(frontiers: Sequence[Frontier], epochs: float | None = None) -> Point:
    """The point to take among several batch sizes: the largest one's, or that of the one that fits the epochs best."""
    if epochs is None:
        return max((each.recommended for each in frontiers), key=lambda point: point.plan.expected_batch_size)
    ideal = batch_by_rule(frontiers[0].recommended.plan.population, frontiers[0].epsilon, epochs)
    return min(
        (each.recommended for each in frontiers),
        key=lambda point: abs(math.log(point.plan.expected_batch_size / ideal)),
    )


def _rule_points(plan: PrivacyPlan, epsilon: float, epochs: float | None) -> list[tuple[str, int]]:
    """The points that a rule marks: the name of the rule, and the number of steps."""
    batch, population = plan.expected_batch_size, plan.population
    by_rule = min(steps_by_rule(epsilon, batch, population), MAX_STEPS)
    marked = [("steps", by_rule)]
    if epochs is not None:
        fit = math.floor(positive(epochs=epochs, remedy="give a number such as 100") * population / batch)
        if fit < 1:
            raise SfumatoError(
                f"epochs must allow at least one step, got {epochs:g} for batches of {batch} of {population}",
                "give more epochs or a smaller batch",
            )
        if fit < by_rule:
            marked.append(("epochs", fit))
    return marked


def _grid(plan: PrivacyPlan, mu: float) -> tuple[float, ...]:
    """Powers of the square root of two, to three digits, that allow a reasonable number of steps.

    If they are few, powers of the fourth root. This happens for small batches, where steps grow fast with the noise.
    """
    most = min(max(_MOST, _MOST_EPOCHS / plan.sampling_probability), _MOST_OF_ALL)

    def powers(part: int) -> tuple[float, ...]:
        grid = (float(f"{2 ** (power / part):.3g}") for power in range(-4 * part, 30 * part))
        return tuple(
            sigma for sigma in grid if _FEWEST <= plan.theorem.equivalent_steps(plan.with_noise(sigma), mu) <= most
        )

    return powers(2) if len(powers(2)) >= _FEW_POINTS else powers(4)
