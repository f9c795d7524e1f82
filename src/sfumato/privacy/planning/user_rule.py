"""Whether to sample records or users: which has less noise over the signal for the same guarantee to users."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.plan import PrivacyPlan, default_delta
from sfumato.privacy.planning.target import options_of, target_of
from sfumato.privacy.unit import User, users_for_gradients


@dataclass(frozen=True, kw_only=True)
class SamplingOption:
    """One way of sampling.

    Args:
        drawn: what is sampled, "examples" or "users".
        plan: the plan with the least noise that the guarantee allows.
        orthogonal: noise over signal in one step, in units of 1 / s, if a user's gradients are orthogonal except for
            the component that all users share (cosine 0).
        parallel: the same if a user's gradients all agree (cosine 1).
    """

    drawn: Literal["examples", "users"]
    plan: PrivacyPlan
    orthogonal: float
    parallel: float

    @property
    def mean_noise(self) -> float:
        """The geometric mean of both, which the rule compares."""
        return math.sqrt(self.orthogonal * self.parallel)


@dataclass(frozen=True, kw_only=True)
class UserRule:
    """Both ways of sampling for one guarantee, and the better one."""

    examples: SamplingOption
    users: SamplingOption

    @property
    def better(self) -> SamplingOption:
        """The option with less noise over signal, by the geometric mean over both cosines."""
        return min((self.examples, self.users), key=lambda row: row.mean_noise)

    @property
    def is_certain(self) -> bool:
        """Whether the better option is no worse at either cosine."""
        rows = (self.examples, self.users)
        return all(self.better.orthogonal <= row.orthogonal and self.better.parallel <= row.parallel for row in rows)

    def rows(self) -> list[dict[str, Any]]:
        """Both options as plain data, with their noise multipliers and batch sizes."""
        return [
            {
                "drawn": row.drawn,
                "epsilon": row.plan.epsilon(),
                "noise_multiplier": row.plan.noise_multiplier,
                "batch_size": row.plan.expected_batch_size,
                "orthogonal": row.orthogonal,
                "parallel": row.parallel,
                "between": row.mean_noise,
                "taken": row is self.better,
            }
            for row in (self.examples, self.users)
        ]


def user_rule(
    *,
    users: int,
    records: int,
    gradients: int,
    steps: int,
    epsilon: float | None = None,
    mu: float | None = None,
    attack_risk: str | None = None,
    delta: float | None = None,
    population: int | None = None,
) -> UserRule:
    """Both ways of sampling for the same guarantee to users and the same number of gradients, with the least noise.

    A record's clipped gradient has norm C and a component of s C in the direction that all records share. The B
    gradients of a step come from B records that are sampled independently, or from M = B / g users with g records each:

        drawn      cosine 1             cosine 0
        examples   sigma_e / (B s)      sigma_e / (B s)
        users      sigma_u / (M s)      sigma_u / (M sqrt(g) s)

    If a user's g gradients agree, their mean is as long as one of them. If they are orthogonal, the mean is sqrt(g)
    times shorter, but its shared component is not. Clipping to a norm that fits brings the mean back to C, and
    makes the shared component sqrt(g) times larger. This assumes that C is chosen for such means. Records that are
    sampled independently are assumed to come from different users, as most do if q is small. Which cosine holds for the
    data is not examined, because it would be a private fact. So the rule compares the geometric mean of both.

    Args:
        users: N.
        records: G, the most records kept of each user.
        gradients: B, the expected number of gradients to compute in a step.
        delta: None for the default (`default_delta` of N).
        population: the number of kept records of all users; by default N G. Divided by N and rounded, it is g. The
            number of sampled users is the number that holds B of these records (`users_for_gradients`).
        epsilon, mu, attack_risk: the guarantee, as one of these.

    Errors: `SfumatoError` if no noise meets epsilon, or if B gradients are fewer than one user's.
    """
    remedy = "give a whole number of at least 1"
    for name, value in (("users", users), ("records", records), ("gradients", gradients), ("steps", steps)):
        positive_integer(name, value, remedy=remedy)
    target = options_of(target_of(epsilon, mu, attack_risk))
    if target == options_of(None):
        raise SfumatoError("epsilon is missing", "give the privacy budget, a number such as 3")
    kept = users * records if population is None else population
    each = max(1, round(kept / users))
    if round(gradients / each) < 1:
        raise SfumatoError(
            f"gradients must be at least the {each} of one user, got {gradients}",
            "give more gradients, or fewer records per user",
        )
    shared = {"steps": steps, "delta": default_delta(users) if delta is None else delta, **target}
    by_examples = PrivacyPlan.calibrate(
        examples=kept,
        batch_size=min(gradients, kept),
        unit=User(drawn="examples", at_most=records, users=users),
        **shared,
    )
    by_users = PrivacyPlan.calibrate(
        examples=users,
        batch_size=users_for_gradients(gradients, records=kept, users=users),
        unit=User(drawn="users", at_most=records),
        **shared,
    )
    of_examples = by_examples.noise_multiplier / by_examples.expected_batch_size
    of_users = by_users.noise_multiplier / by_users.expected_batch_size
    return UserRule(
        examples=SamplingOption(drawn="examples", plan=by_examples, orthogonal=of_examples, parallel=of_examples),
        users=SamplingOption(drawn="users", plan=by_users, orthogonal=of_users / math.sqrt(each), parallel=of_users),
    )
