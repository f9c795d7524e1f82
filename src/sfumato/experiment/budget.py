"""What is asked for of a plan: budget and sizes, who takes part and by what noise, and what one promise covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from sfumato._choices import asked, left_out
from sfumato.privacy.planning import requested

STANDARD, SECURE = "standard", "secure"
NOISES = (STANDARD, SECURE)
"""How noise is drawn and added."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a plan is made of, and by what clock it goes, as far as they are asked for."""

    epsilon: float | None = left_out("EPSILON", "3")
    """Privacy budget."""
    delta: float | None = left_out("DELTA", "a power of ten, at most 1e-5 and 1/(10 N)")
    """Probability with which the epsilon bound may fail."""
    noise_multiplier: float | None = left_out("SIGMA", "the least that meets epsilon")
    """Standard deviation of the noise divided by the clipping norm."""
    batch_size: int | None = left_out("B")
    """B, the expected number of examples in a step, or of users if users are sampled. N means full-batch steps."""
    steps: int | None = left_out("T")
    """Number of training steps."""
    max_norm: float | None = left_out(by_default="1")
    """C, the norm to which the gradient of each example, or of each user, is clipped."""
    start: str | None = left_out("TIME", "")
    """When step 0 begins, if each record's time stamp decides its step: a date such as 2026-01-31, or a number.
    Declared."""
    period: str | None = left_out("DURATION", "")
    """The time that each step then covers: weeks, days, hours, minutes or seconds, such as 1d, 12h or 30m, or a number.
    Declared."""


@dataclass(frozen=True, kw_only=True)
class Pair(asked(requested.Pair, without=requested.OF_PARTICIPATIONS["drifting"])):
    """Participation and mechanism, as far as they are asked for."""

    participation: str | None = left_out("poisson|full-batch|fixed-order|cyclic|truncated")
    """Who takes part in a step: a Poisson sample, all (full-batch), fixed batches in turn (fixed-order), a sample of
    one group after the other (cyclic), or a Poisson sample cut at a fixed size (truncated)."""

    def request(
        self, examples: int, *, momentum: float = 0.0, schedule: str | None = None, warmup: int | None = None
    ) -> requested.Request:
        """Both as `PrivacyPlan.calibrate` takes them, the noise the best for heavy-ball SGD with this schedule."""
        names = (one.name for one in fields(PairOfRecords if isinstance(self, PairOfRecords) else Pair))
        pair: dict[str, Any] = {name: getattr(self, name) for name in names}
        return requested.requested(examples=examples, momentum=momentum, rates=rates_of(schedule, warmup), **pair)


@dataclass(frozen=True, kw_only=True)
class PairOfRecords(asked(requested.Pair), Pair):
    """The same where single records take part, which may be of two groups."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """What one promise covers, as far as it is asked for."""

    unit: str | None = left_out("example|user", "example")
    """What one promise covers: each single record (example), or each person with all of their records (user)."""
    per_user: int | None = left_out("G", "as many as a user has on average, rounded up; all, with --drawn users")
    """G, for --unit user: the most records kept of each user."""
    drawn: str | None = left_out("examples|users", "whichever has less noise relative to the signal")
    """For --unit user: what is sampled in each step, single records (examples) or whole users."""


@dataclass(frozen=True, kw_only=True)
class NoiseMade:
    """How noise is made, as far as it is asked for."""

    noise: str | None = left_out("standard|secure", "standard")
    """How noise is drawn and added: as floating-point numbers (standard), or exactly on a public grid by a
    cryptographic generator (secure), so that the guarantee also covers rounding. secure needs independent noise and a
    fixed clipping norm."""


def rates_of(schedule: str | None, warmup: int | None) -> Callable[[int], tuple[float, ...]] | None:
    """Of a number of steps, the factor of the learning rate in each; None for a constant one."""
    if schedule in (None, "constant") and not warmup:
        return None
    from sfumato import optim

    def rates(steps: int) -> tuple[float, ...]:
        factor = optim.schedule(schedule or "constant", steps=steps, warmup=min(warmup or 0, steps - 1))
        return tuple(map(factor, range(steps)))

    return rates
