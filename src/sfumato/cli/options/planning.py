"""The options of sfumato plan, and what is calibrated and what command follows from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from sfumato.cli.options import spellings
from sfumato.cli.options.choices import PrintsJson
from sfumato.experiment.settings import PairOfRecords, Units

if TYPE_CHECKING:
    from sfumato.privacy import PrivacyPlan
    from sfumato.privacy.unit import Unit


@spellings.spelt
@dataclass(frozen=True, kw_only=True)
class PlanChoices(PrintsJson, Units, PairOfRecords):
    """What a plan is made of, as far as it is given."""

    examples: spellings.Whole = None
    """N, the number of training examples. With --unit user, of those that are kept. (default: --per-user of each
    user)"""
    users: spellings.Whole = None
    """Number of users, for --unit user."""
    batch_size: spellings.Whole = None
    """B, the expected number of examples in a step, or of users if users are sampled. N means full-batch steps.
    (default: found from the others)"""
    steps: spellings.Whole = None
    """Number of training steps. (default: found from the others)"""
    noise_multiplier: spellings.Number = None
    """Standard deviation of the noise divided by the clipping norm. (default: found from the others)"""
    epsilon: spellings.Number = None
    """Privacy budget. (default: found from the others)"""
    delta: spellings.Delta = None
    """Probability with which the epsilon bound may fail."""
    max_norm: float = 1.0
    """Clipping norm. Part of the plan, without effect on epsilon."""
    momentum: spellings.OfMomentum = None
    """Momentum of the optimizer, for which banded and buffered noise is optimised."""
    schedule: spellings.OfSchedule = None
    """Learning rate schedule, for which it is optimised too."""
    start: spellings.Start = None
    """With --order time: when step 0 begins, for the command that trains. No effect on epsilon."""
    period: spellings.Period = None
    """With --order time: the time that each step covers, likewise."""

    def delta_among(self, population: int) -> float:
        """The delta given, or that by rule among so many."""
        from sfumato.privacy.plan import default_delta

        return default_delta(population) if self.delta is None else self.delta

    def calibrated(self, population: int, delta: float, *, unit: Unit | None = None) -> PrivacyPlan:
        """The plan, in which the one that was left out follows from the others."""
        from sfumato.privacy import PrivacyPlan

        momentum = 0.9 if self.momentum is None else self.momentum
        return PrivacyPlan.calibrate(
            examples=population,
            delta=delta,
            batch_size=self.batch_size,
            steps=self.steps,
            noise_multiplier=self.noise_multiplier,
            epsilon=self.epsilon,
            max_norm=self.max_norm,
            **({} if unit is None else {"unit": unit}),
            **self.request(population, momentum=momentum, schedule=self.schedule)._asdict(),
        )

    @property
    def clock(self) -> str:
        """The options of the clock for the command that trains: as given, or to be filled in."""
        return f" --start {self.start or 'TIME'} --period {self.period or 'DURATION'}" if self.order == "time" else ""

    def pair_as_given(self) -> str:
        """The options of the unit and the pair for the command that trains."""
        names = [*(one.name for one in (*fields(Units), *fields(PairOfRecords))), "momentum", "schedule"]
        given = {name.replace("_", "-"): getattr(self, name) for name in names if getattr(self, name) is not None}
        given |= {name: " ".join(value) for name, value in given.items() if isinstance(value, tuple)}
        if self.drift is not None:
            given.setdefault("drift-groups", "NAME")
        return "".join(f" --{name} {value}" for name, value in given.items())
