"""What is asked for of a plan: budget and sizes, who takes part and by what noise, and what one promise covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sfumato._choices import asked, left_out
from sfumato.privacy.planning import requested

if TYPE_CHECKING:
    from sfumato.privacy import PrivacyPlan
    from sfumato.privacy.unit import Unit

STANDARD, SECURE = "standard", "secure"
NOISES = (STANDARD, SECURE)
"""How noise is drawn and added."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a plan is made of, and by what clock it goes, as far as they are asked for."""

    epsilon: float | None = left_out("EPSILON", "3")
    """The privacy budget."""
    delta: float | None = left_out("DELTA", "at most 1e-5 and 1/(10 N)")
    """The chance at which the bound may fail."""
    noise_multiplier: float | None = left_out("SIGMA", "the least that meets epsilon")
    """Standard deviation of the noise over the clipping norm."""
    batch_size: int | None = left_out("B")
    """Expected number of examples in a step, of users where these are drawn; as many as N means full-batch steps."""
    steps: int | None = left_out("T")
    """Number of training steps."""
    max_norm: float | None = left_out(by_default="1")
    """C, the norm to which the gradient of each example, or of each user, is clipped."""
    start: str | None = left_out("TIME", "")
    """When step 0 begins, where each record's own time stamp decides its step: 2026-01-31, or a number."""
    period: str | None = left_out("DURATION", "")
    """How much time each step then covers: a number of weeks, days, hours, minutes or seconds, such as 1d, 12h, 30m."""


@dataclass(frozen=True, kw_only=True)
class Pair(asked(requested.Pair, without=requested.OF_PARTICIPATIONS["drifting"])):
    """Participation and mechanism, as far as they are asked for."""

    participation: str | None = left_out("poisson|full-batch|fixed-order|cyclic|truncated")
    """Who takes part in a step: drawn anew (poisson, truncated), all, bins in turn, or drawn from groups in turn."""

    def request(self, examples: int, *, momentum: float | None = None) -> requested.Request:
        """Both as `PrivacyPlan.calibrate` takes them, the noise the best for heavy-ball SGD with the schedule that is
        asked for beside them.

        Args:
            momentum: in place of the one that is asked for, or is the rule's.
        """
        names = (one.name for one in fields(PairOfRecords if isinstance(self, PairOfRecords) else Pair))
        pair: dict[str, Any] = {name: getattr(self, name) for name in names}
        own: float | None = getattr(self, "momentum", None)
        if momentum is None:
            heavy_ball = getattr(self, "optimizer", None) in (None, "momentum")
            momentum = 0.0 if not heavy_ball else 0.9 if own is None else own
        rates = rates_of(getattr(self, "schedule", None), getattr(self, "warmup", None))
        return requested.requested(examples=examples, momentum=momentum, rates=rates, **pair)


@dataclass(frozen=True, kw_only=True)
class PairOfRecords(asked(requested.Pair), Pair):
    """The same where single records take part, which may be of two groups."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """What one promise covers, as far as it is asked for."""

    unit: str | None = left_out("example|user", "example")
    """What one promise covers: each single record (example), or all that is kept of each person (user)."""
    per_user: int | None = left_out("G", "by rule; all, where users are drawn")
    """Of users: how many records of each are kept at most."""
    drawn: str | None = left_out("examples|users", "the one with less noise over the signal")
    """Of users: what takes part in a step by itself, each of their records or each user with all that is kept."""


@dataclass(frozen=True, kw_only=True)
class NoiseMade:
    """How noise is made, as far as it is asked for."""

    noise: str | None = left_out("standard|secure", "standard")
    """Drawn and added as floating-point numbers (standard); or exactly, on a public grid, by a cryptographic generator,
    so that the promise holds for the numbers that a machine really computes (secure)."""


def planned(asked: Any, population: int, unit: Unit, request: requested.Request, **given: Any) -> PrivacyPlan:
    """The plan of a request: what is None of batch size, steps, noise and epsilon follows from the others.

    Args:
        asked: what holds these and `delta`, which follows a rule where it is None.
        population: how many records or users are drawn from.
        given: what is taken in place of what `asked` holds.

    Errors: `SfumatoError` where not exactly one of the four is None, and where no plan meets the others.
    """
    from sfumato.privacy import PrivacyPlan
    from sfumato.privacy.plan import default_delta

    numbers = ("batch_size", "steps", "noise_multiplier", "epsilon", "max_norm")
    return PrivacyPlan.calibrate(
        examples=population,
        unit=unit,
        delta=default_delta(unit.count(population)) if asked.delta is None else asked.delta,
        **{**{name: getattr(asked, name) for name in numbers}, **given},
        **request._asdict(),
    )


def rates_of(schedule: str | None, warmup: int | None) -> Callable[[int], tuple[float, ...]] | None:
    """Of a number of steps, the factor of the learning rate in each; None for a constant one."""
    if schedule in (None, "constant") and not warmup:
        return None
    from sfumato import optim

    def rates(steps: int) -> tuple[float, ...]:
        factor = optim.schedule(schedule or "constant", steps=steps, warmup=min(warmup or 0, steps - 1))
        return tuple(map(factor, range(steps)))

    return rates
