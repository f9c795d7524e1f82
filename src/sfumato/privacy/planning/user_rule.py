"""Whether to draw a user's records or the user: which leaves less noise over the signal, at the same promise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.privacy.plan import PrivacyPlan, default_delta
from sfumato.privacy.unit import User, users_like


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One way of drawing.

    Args:
        drawn: "examples" or "users".
        plan: with the least noise that the promise allows.
        orthogonal: noise over signal in a step where a user's gradients are orthogonal but for what all users have in
            common (cosine 0), in units of 1 / s.
        parallel: the same where they all agree (cosine 1).
    """

    drawn: Literal["examples", "users"]
    plan: PrivacyPlan
    orthogonal: float
    parallel: float

    @property
    def between(self) -> float:
        """Their geometric mean, by which the rule picks."""
        return math.sqrt(self.orthogonal * self.parallel)


@dataclass(frozen=True, kw_only=True)
class UserRule:
    """Both ways at one promise, and the one to take."""

    examples: Drawing
    users: Drawing

    @property
    def taken(self) -> Drawing:
        """The one with less noise over signal, by the geometric mean over both cosines."""
        return min((self.examples, self.users), key=lambda row: row.between)

    @property
    def sure(self) -> bool:
        """Whether it is the better one at either cosine."""
        rows = (self.examples, self.users)
        return all(self.taken.orthogonal <= row.orthogonal and self.taken.parallel <= row.parallel for row in rows)

    def rows(self) -> list[dict[str, Any]]:
        """Both as plain data, with their noise multipliers and batch sizes."""
        return [
            {
                "drawn": row.drawn,
                "epsilon": row.plan.epsilon(),
                "noise_multiplier": row.plan.noise_multiplier,
                "batch_size": row.plan.expected_batch_size,
                "orthogonal": row.orthogonal,
                "parallel": row.parallel,
                "between": row.between,
                "taken": row is self.taken,
            }
            for row in (self.examples, self.users)
        ]


def user_rule(
    *,
    users: int,
    records: int,
    gradients: int,
    steps: int,
    epsilon: float,
    delta: float | None = None,
    population: int | None = None,
) -> UserRule:
    """Both ways of drawing at the same promise for users and the same gradients to compute, each with the least noise.

    A record's clipped gradient has norm C and a component of s C in the direction that all records have in common. B
    gradients a step are B records that are drawn by themselves, or M = B / g users with g records each:

        drawn      cosine 1             cosine 0
        examples   sigma_e / (B s)      sigma_e / (B s)
        users      sigma_u / (M s)      sigma_u / (M sqrt(g) s)

    A user's mean of g gradients that agree is as long as one; of orthogonal ones it is sqrt(g) times shorter, its
    common component is not, and clipping to a norm that fits it brings it back to C, the common component sqrt(g) times
    larger: that assumes that C is chosen for such means. Records that are drawn by themselves are assumed to come from
    different users, as they mostly do where q is small. Which cosine holds for some data is not looked at: it would be
    a private fact. So the rule goes by the geometric mean of both.

    Args:
        users: N.
        records: G, at most so many are kept of each user.
        gradients: B, to compute in a step, in expectation.
        delta: by rule where it is None (`default_delta` of N).
        population: the number of kept records of all users; by default N G. Over N, rounded, it is g. As many users are
            drawn as have B of these records (`users_like`).

    Errors: `SfumatoError` where no noise meets the promise, or where B gradients are less than one user's.
    """
    remedy = "give a whole number of at least 1"
    for name, value in (("users", users), ("records", records), ("gradients", gradients), ("steps", steps)):
        positive_integer(name, value, remedy=remedy)
    positive("epsilon", epsilon, remedy="give the privacy budget, a number such as 3")
    kept = users * records if population is None else population
    each = max(1, round(kept / users))
    if round(gradients / each) < 1:
        raise SfumatoError(
            f"gradients must be at least the {each} of one user, got {gradients}", "give more, or fewer of each user"
        )
    shared = {"steps": steps, "epsilon": epsilon, "delta": default_delta(users) if delta is None else delta}
    by_examples = PrivacyPlan.calibrate(
        examples=kept,
        batch_size=min(gradients, kept),
        unit=User(drawn="examples", at_most=records, users=users),
        **shared,
    )
    by_users = PrivacyPlan.calibrate(
        examples=users,
        batch_size=users_like(gradients, records=kept, users=users),
        unit=User(drawn="users", at_most=records),
        **shared,
    )
    of_examples = by_examples.noise_multiplier / by_examples.expected_batch_size
    of_users = by_users.noise_multiplier / by_users.expected_batch_size
    return UserRule(
        examples=Drawing(drawn="examples", plan=by_examples, orthogonal=of_examples, parallel=of_examples),
        users=Drawing(drawn="users", plan=by_users, orthogonal=of_users / math.sqrt(each), parallel=of_users),
    )
