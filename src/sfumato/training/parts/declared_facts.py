"""Parts with declared facts: a clock gives each record's step, a drift its group, and class shares the weights of
examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Clock, Source
from sfumato.experiment.drift import facts_read, second_group
from sfumato.models.shares import answer_weights, class_weights, refuse_for_users
from sfumato.privacy import Circumstances, FixedOrder, PrivacyPlan
from sfumato.randomness import is_time_ordered
from sfumato.training.parts.part import Conclusion, EarlyFacts, Part, RunRequest


@dataclass(frozen=True, kw_only=True)
class ByTime(Part):
    """The step of each record by its time stamp, for plans over time; and the number of records in no step.

    Args:
        clock: the declared clock; None if the plan is not over time.
        times: int64 (N,), `steps_by_time`.
    """

    options = ("clock",)
    clock: Clock | None
    times: np.ndarray | None = field(repr=False)

    @classmethod
    def check(cls, early: EarlyFacts) -> None:
        """Refuse a clock without a plan over time, and vice versa."""
        check_clock(early.options.get("clock"), is_time_ordered=early.is_time_ordered)

    @classmethod
    def from_request(cls, request: RunRequest) -> ByTime:
        """The part for the declared clock."""
        clock = request.options.get("clock")
        return cls(clock=clock, times=steps_by_time(request.source, request.plan, clock))

    @classmethod
    def recorded_options(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The clock of a run's record."""
        return {"clock": Clock(**record["clock"])} if record["clock"] else {}

    @property
    def sampler_inputs(self) -> dict[str, np.ndarray]:
        """The times."""
        return {} if self.times is None else {"times": self.times}

    @property
    def key_facts(self) -> dict[str, dict[str, Any]]:
        """The clock; an empty entry without one."""
        return {"clock": {} if self.clock is None else self.clock.to_dict()}

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """The number of records in no step."""
        if (note := unassigned_note(source, plan, self.times)) is not None:
            yield note


def check_clock(clock: Clock | None, *, is_time_ordered: bool) -> None:
    """Refuse a plan over time without a clock, and a clock for another plan."""
    if clock is not None and not is_time_ordered:
        raise SfumatoError(
            f"start {clock.start} and period {clock.period} are given, but the plan is not over time",
            "leave both out, or give `order=time`",
        )
    if clock is None and is_time_ordered:
        raise SfumatoError(
            "the plan orders records by their time stamps, but no start and period are given",
            "declare both, such as `start=2026-01-01` and `period=1d`",
        )


def steps_by_time(source: Source, plan: PrivacyPlan, clock: Clock | None) -> np.ndarray | None:
    """The step int64 (N,) of each training record; None for a plan that is not over time.

    **Guarantee.** Each record's step is a function of its own time stamp and of the declared clock (`Clock`).

    Errors: `SfumatoError` for a plan over time without a clock or time stamps, and for a clock for another plan.
    """
    check_clock(clock, is_time_ordered=is_time_ordered(plan))
    if clock is None:
        return None
    if source.train.times is None and source.cache is not None:
        raise SfumatoError(
            "the plan orders records by their time stamps, but a cache of features has none",
            "train on the images, or with another order",
        )
    if source.train.times is None:
        raise SfumatoError(
            "the plan orders records by their time stamps, but the source has none",
            "give a csv with the column time, an npz with the array time_train, or another order",
        )
    steps = clock.steps_of(source.train.times)
    if not _is_within(steps, plan).any():
        raise SfumatoError(
            f"none of the records' time stamps lies within the {plan.steps} steps from {clock.start} on, of "
            f"{clock.period} each",
            "declare the `start` and the `period` of these data",
        )
    return steps


def unassigned_note(source: Source, plan: PrivacyPlan, times: np.ndarray | None) -> str | None:
    """A message for the owner about training records in no step of the plan; None if every record can be in one.

    Args:
        times: the step of each record, from `steps_by_time`.

    **Guarantee.** The number is a private figure: it is shown on the terminal and written to no file.
    """
    records, rule = len(source.train) if times is None else len(times), plan.participation
    if not isinstance(rule, FixedOrder) or rule.assignment == "random":
        return None
    if times is None:
        within = min(records, rule.batch_size * min(plan.steps, rule.bins(plan.population)))
    else:
        within = int(_is_within(times, plan).sum())
    if within == records:
        return None
    return (
        f"note: {records - within} of the {records} training records are in no step of the plan and are not used (a "
        "private figure: keep it to yourself)"
    )


def _is_within(times: np.ndarray, plan: PrivacyPlan) -> np.ndarray:
    return (times >= 0) & (times < plan.steps)


@dataclass(frozen=True, kw_only=True)
class Drift(Part):
    """The two groups of a plan with a drift.

    Args:
        groups: whether each training record is in the second group, bool (N,).
        read: the facts read from the data for it.
    """

    groups: np.ndarray = field(repr=False)
    read: tuple[str, ...]

    @classmethod
    def from_request(cls, request: RunRequest) -> Drift | None:
        """The drift of the plan."""
        groups = second_group(request.source, request.plan)
        return None if groups is None else cls(groups=groups, read=facts_read(request.source, request.plan))

    @property
    def sampler_inputs(self) -> dict[str, np.ndarray]:
        """The groups."""
        return {"groups": self.groups}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds the facts that were read."""
        return replace(facts, read=facts.read + self.read)


@dataclass(frozen=True, kw_only=True)
class ClassShares(Part):
    """Declared class shares, whose inverses weight the examples of each class or the answers to each label
    (`models.shares`)."""

    prevalence: Mapping[str, float]

    @classmethod
    def from_request(cls, request: RunRequest) -> ClassShares | None:
        """The class shares of the settings."""
        prevalence = request.settings.objective.class_prevalence
        if prevalence is None:
            return None
        if request.source.next_words:
            request.source.require_classes("`class_prevalence`")
        (answer_weights if request.source.multilabel else class_weights)(prevalence, request.source.classes)
        if request.plan.users is not None:
            refuse_for_users()
        return cls(prevalence=prevalence)

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """Advice on when weights help."""
        of = "labels" if source.multilabel else "classes"
        yield f"note: with weights by `class_prevalence`, rare {of} are recognised more often and others less often"

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds the shares."""
        return replace(facts, class_prevalence=tuple(self.prevalence.items()))

    def end(self, conclusion: Conclusion) -> None:
        """Records the shares that the model's scores are for: with weights, all classes are alike, or of several labels
        both answers to each.

        **Guarantee.** A function of the list of classes; no labels are counted.
        """
        source = conclusion.setup.source
        alike = 1 / 2 if source.multilabel else 1 / len(source.classes)
        conclusion.reading = replace(conclusion.reading, shares=dict.fromkeys(source.classes, alike))
