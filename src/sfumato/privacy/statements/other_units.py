"""The guarantee for units other than the run's: a person with several records, or a whole group of users."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.loss import COARSE_GRID, FINE_GRID, Loss, Part
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.theorems.composed_gaussian import OneGaussian
from sfumato.privacy.theorems.mixture_of_gaussians import MixedGaussians
from sfumato.privacy.theorems.poisson_gaussian import PoissonGaussian
from sfumato.privacy.unit import Example, User

_TRIES = 60


@dataclass(frozen=True, kw_only=True)
class PersonEpsilon:
    """The guarantee for a person with several images, from a run whose unit is an example.

    Args:
        images: k, the number of the person's examples.
        epsilon: by a theorem about all of them together; None if there is none.
        by_multiplication: by group privacy, from the run's epsilon for one example alone; never below a tight figure.
    """

    images: int
    epsilon: float | None
    by_multiplication: float


def per_person(plan: PrivacyPlan, images: int, delta: float | None = None) -> PersonEpsilon:
    """Both figures, at delta (by default the plan's), for a person with this many images in this run."""
    tight, by_multiplication = person_epsilon(plan, images, delta), group_privacy(plan, images, delta)
    return PersonEpsilon(images=images, epsilon=tight, by_multiplication=by_multiplication)


def person_epsilon(
    plan: PrivacyPlan, images: int, delta: float | None = None, *, grid: float = FINE_GRID
) -> float | None:
    """Epsilon at delta (by default the plan's) for a person with k images; None if no theorem here covers it.

    **Guarantee.** For all k examples added, removed or zeroed out, under the plan's adjacency:

    - Poisson sampling with independent noise: the mixture of Gaussians with G = k.
    - Without sampling (full batches, a fixed order): one Gaussian of k times the sensitivity S. Whatever steps the k
      examples take part in, their effect is a sum of k vectors of norm at most S (in units of C). This is exact for
      full batches and an upper bound for a fixed order.

    Cyclic and truncated sampling have no such theorem; use `group_privacy` there.
    """
    _refuse_other_units(plan, images)
    if images == 1:
        return plan.epsilon(delta, grid=grid)
    part: Part
    (single,) = plan.loss.parts
    if isinstance(single, OneGaussian):
        part = OneGaussian(precision=images**2 * single.precision)
    elif type(plan.theorem) is PoissonGaussian:
        sigma, q = plan.theorem.relative_noise(plan), plan.sampling_probability
        part = MixedGaussians(sigma=sigma, probability=q, records=images, steps=plan.steps)
    else:
        return None
    together = Loss(unit=plan.unit, adjacency=plan.adjacency, parts=(part,))
    return together.epsilon(plan.delta if delta is None else delta, grid=grid)


def group_privacy(plan: PrivacyPlan, images: int, delta: float | None = None) -> float:
    """Epsilon at delta for k examples by group privacy, which needs only the run's guarantee for one example.

    **Guarantee.** (k e, (e^(k e) - 1) / (e^e - 1) d) holds for every (e, d) that holds for one example (Vadhan 2017,
    lemma 2.2). The result is the least k e found whose second figure, computed at that e, is at most delta. Infinite
    if none was found.
    """
    _refuse_other_units(plan, images)
    target, loss = plan.delta if delta is None else delta, plan.loss
    if images == 1:
        return plan.epsilon(target)

    def enough(epsilon: float) -> bool:
        logarithm = images * epsilon + math.log(-math.expm1(-images * epsilon)) - math.log(math.expm1(epsilon))
        at_one = loss.delta(epsilon)
        return at_one <= 0 or math.log(at_one) + logarithm <= math.log(target)

    high = max(plan.epsilon(target), 1e-6)
    while not enough(high):
        high *= 1.5
        if images * high > 700:
            return math.inf
    low = 0.0
    for _ in range(_TRIES):
        middle = (low + high) / 2
        low, high = (low, middle) if middle and enough(middle) else (middle, high)
        if high - low < 1e-5 * high:
            break
    return images * high


def person_guarantee(plan: PrivacyPlan, images: int) -> tuple[int, float]:
    """A number of images and the epsilon of a person with that many: by a theorem, otherwise by group privacy.

    **Guarantee.** An upper bound: see `person_epsilon` and `group_privacy`.
    """
    images = min(images, plan.population)
    tight = person_epsilon(plan, images, grid=COARSE_GRID)
    return images, group_privacy(plan, images) if tight is None else tight


def group_epsilon(plan: PrivacyPlan, delta: float | None = None) -> float | None:
    """Epsilon for a whole group of users (a virtual client) at delta (by default the plan's); None without groups.

    **Guarantee.** For all users of one group together added, removed or zeroed out, under the plan's adjacency. It
    holds only if groups are fixed, public and sampled as wholes (`User.grouped`): then one coin decides whether the
    group takes part, and without the group the sum loses one clipped vector, of norm C. One user of the group moves the
    sum by up to 2 C, because the group's vector becomes a different one. So only the whole group has sensitivity C, and
    its smaller epsilon is no bound for a part of it. Users who are assigned to clients anew in every step, or sampled
    one by one, do not form such a group.
    """
    if not (isinstance(plan.unit, User) and plan.unit.grouped):
        return None
    return replace(plan, unit=User(at_most=plan.unit.at_most)).epsilon(delta)


def _refuse_other_units(plan: PrivacyPlan, images: int) -> None:
    if not isinstance(plan.unit, Example):
        raise SfumatoError(
            f"the plan's unit is a {plan.unit.name}, and so is its epsilon", "use a plan whose unit is an example"
        )
    positive_integer(most=plan.population, images=images, remedy="give how many of the examples are the person's")
