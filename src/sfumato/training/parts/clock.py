"""What a declared fact decides for each record: the step, by its own time stamp; the group of a drift; and by the
declared shares of classes how much an example weighs, and to which the scores of a model in use are moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Clock, Source
from sfumato.experiment.drift import facts_read, second_group
from sfumato.models.shares import answer_weights, declared, in_order, refuse_of_users, weights_of
from sfumato.privacy import Circumstances, FixedOrder, PrivacyPlan
from sfumato.randomness import goes_by_time
from sfumato.runs.reading import checked
from sfumato.training.parts.part import Asked, Early, Ending, Part


@dataclass(frozen=True, kw_only=True)
class ByTime(Part):
    """The step that each record's own time stamp decides, where the plan goes by time; and records in no step.

    Args:
        clock: as it was declared; None where the plan does not go by time.
        times: int64 (N,), `steps_by_time`.
    """

    options = ("clock",)
    clock: Clock | None
    times: np.ndarray | None = field(repr=False)

    @classmethod
    def check(cls, early: Early) -> None:
        """Refuse a clock without a plan by time, and the other way round."""
        check_clock(early.options.get("clock"), by_time=early.by_time)

    @classmethod
    def of(cls, asked: Asked) -> ByTime:
        """By the declared clock."""
        clock = asked.options.get("clock")
        return cls(clock=clock, times=steps_by_time(asked.source, asked.plan, clock))

    @classmethod
    def recorded(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The clock of a run's record."""
        return {"clock": Clock(**record["clock"])} if record["clock"] else {}

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """The times."""
        return {} if self.times is None else {"times": self.times}

    @property
    def keyed(self) -> dict[str, dict[str, Any]]:
        """The clock; nothing in its place where there is none."""
        return {"clock": {} if self.clock is None else self.clock.to_dict()}

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """How many records lie in no step."""
        if (note := without_a_step(source, plan, self.times)) is not None:
            yield note


def check_clock(clock: Clock | None, *, by_time: bool) -> None:
    """Refuse a plan by time without a clock, and a clock that no plan goes by."""
    if clock is not None and not by_time:
        raise SfumatoError(
            f"start {clock.start} and period {clock.period} are given, and the plan does not go by time",
            "leave both out, or give `order=time`",
        )
    if clock is None and by_time:
        raise SfumatoError(
            "the plan goes by the records' time stamps, and no start and period say which step each belongs to",
            "declare both, such as `start=2026-01-01` and `period=1d`",
        )


def steps_by_time(source: Source, plan: PrivacyPlan, clock: Clock | None) -> np.ndarray | None:
    """The step int64 (N,) of each training record; None for a plan that does not go by time.

    **Guarantee.** Each record's step is a function of its own time stamp and of the declared clock (`Clock`).

    Errors: `SfumatoError` for a plan by time without a clock or time stamps, and for a clock that no plan goes by.
    """
    check_clock(clock, by_time=goes_by_time(plan))
    if clock is None:
        return None
    if source.train.times is None and source.cache is not None:
        raise SfumatoError(
            "the plan goes by the records' time stamps, and a cache of features keeps none",
            "train on the images, or by another order",
        )
    if source.train.times is None:
        raise SfumatoError(
            "the plan goes by the records' time stamps, and the source has none",
            "give a csv with the column time, or an npz with the array time_train, or go by another order",
        )
    steps = clock.steps_of(source.train.times)
    if not _within(steps, plan).any():
        raise SfumatoError(
            f"none of the records' time stamps lies within the {plan.steps} steps from {clock.start} on, of "
            f"{clock.period} each",
            "declare the `start` and the `period` of these data",
        )
    return steps


def without_a_step(source: Source, plan: PrivacyPlan, times: np.ndarray | None) -> str | None:
    """What to say, to the owner alone, of training records that lie in no step of the plan; None where all may.

    Args:
        times: the step of each record, as `steps_by_time` gives it.

    **Guarantee.** The number is a private figure: it belongs to the terminal, and into no file.
    """
    records, rule = len(source.train) if times is None else len(times), plan.participation
    if not isinstance(rule, FixedOrder) or rule.assignment == "random":
        return None
    if times is None:
        within = min(records, rule.batch_size * min(plan.steps, rule.bins(plan.population)))
    else:
        within = int(_within(times, plan).sum())
    if within == records:
        return None
    return (
        f"note: {records - within} of the {records} training records lie in no step of the plan, and nothing is learnt "
        "from them (a figure of private data: keep it to yourself)"
    )


def _within(times: np.ndarray, plan: PrivacyPlan) -> np.ndarray:
    return (times >= 0) & (times < plan.steps)


@dataclass(frozen=True, kw_only=True)
class Drift(Part):
    """The two groups that a plan's participation drifts between.

    Args:
        groups: whether each training record is in the second one, bool (N,).
        read: the facts that were read from the data for it.
    """

    groups: np.ndarray = field(repr=False)
    read: tuple[str, ...]

    @classmethod
    def of(cls, asked: Asked) -> Drift | None:
        """As the plan has it."""
        groups = second_group(asked.source, asked.plan)
        return None if groups is None else cls(groups=groups, read=facts_read(asked.source, asked.plan))

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """The groups."""
        return {"groups": self.groups}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the facts that were read."""
        return replace(facts, read=facts.read + self.read)


@dataclass(frozen=True, kw_only=True)
class ClassShares(Part):
    """Each class's declared share, by whose inverse its examples, or the answers to a label, are weighted
    (`models.shares`)."""

    prevalence: Mapping[str, float]

    @classmethod
    def of(cls, asked: Asked) -> ClassShares | None:
        """As the settings have them."""
        prevalence = asked.settings.objective.class_prevalence
        if prevalence is None:
            return None
        (answer_weights if asked.source.multilabel else weights_of)(prevalence, asked.source.classes)
        if asked.plan.unit.drawn == "users":
            refuse_of_users()
        return cls(prevalence=prevalence)

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """When weights pay."""
        of = "labels" if source.multilabel else "classes"
        line = f"note: weights by `class_prevalence` pay where rare {of} would not be learnt without them"
        if not source.multilabel:  # measured: docs/figures.md
            line += "; they cost accuracy, and where the ranking is good already, a threshold finds as many for nothing"
        yield line

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the shares."""
        return replace(facts, class_prevalence=tuple(self.prevalence.items()))


NAMES = ("prevalence", "training_prevalence")


@dataclass(frozen=True, kw_only=True)
class Prevalence(Part):
    """Shares that are declared, of which the model file keeps what its scores are read by.

    Args:
        prevalence: of each class where the model is to be used; None where that is not declared.
        training_prevalence: in the training data, likewise.
        weighted: whether examples are weighted by the inverse of `class_prevalence`: then scores hold where all classes
            are as frequent, or of several labels both answers to each.

    **Guarantee.** What is declared alone moves the scores; no label is counted. The statement names both.
    """

    options = NAMES
    prevalence: Mapping[str, float] | None
    training_prevalence: Mapping[str, float] | None
    weighted: bool

    @classmethod
    def check(cls, early: Early) -> None:
        """Refuse what is no list of shares."""
        for name in NAMES:
            if (given := early.options.get(name)) is not None:
                shares = declared(given, name)
                if (classes := early.spec.declared.labels.classes) is not None:
                    in_order(shares, classes, name)

    @classmethod
    def of(cls, asked: Asked) -> Prevalence | None:
        """As they are asked for; with weights alone, that scores are those of classes of equal shares."""
        weighted = asked.settings.objective.class_prevalence is not None
        given = {name: value for name in NAMES if (value := asked.options.get(name)) is not None}
        if not given:
            return cls(prevalence=None, training_prevalence=None, weighted=True) if weighted else None
        asked.source.require_classes(f"`{next(iter(given))}`")
        if weighted and "training_prevalence" in given:
            raise SfumatoError(
                "`training_prevalence` and `class_prevalence` are both given, and the latter says the same",
                "leave `training_prevalence` out",
            )
        if "prevalence" in given and "training_prevalence" not in given and not weighted:
            raise SfumatoError(
                "`prevalence` is given, and the classes' shares in the training data are not declared",
                "declare them, such as `training_prevalence` pneumonia=0.74 normal=0.26; or give `prevalence` when the "
                "model is used",
            )
        shares = {name: checked(value, asked.source.classes, name) for name, value in given.items()}
        return cls(
            prevalence=shares.get("prevalence"),
            training_prevalence=shares.get("training_prevalence"),
            weighted=weighted,
        )

    @classmethod
    def recorded(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The shares that the run began with."""
        return dict(record.get("prevalence", {}))

    @property
    def _declared(self) -> dict[str, Any]:
        return {name: dict(value) for name in NAMES if (value := getattr(self, name)) is not None}

    @property
    def pins(self) -> dict[str, dict[str, Any]]:
        """The shares."""
        return {"prevalence": self._declared} if self._declared else {}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the shares."""
        return replace(facts, **{name: tuple(value.items()) for name, value in self._declared.items()})

    def end(self, ending: Ending) -> None:
        """Say for which shares scores hold, and to which they are moved."""
        classes = ending.decided.source.classes
        alike = 1 / 2 if ending.decided.source.multilabel else 1 / len(classes)
        shares = dict.fromkeys(classes, alike) if self.weighted else self.training_prevalence
        ending.reading = replace(ending.reading, shares=shares, prevalence=self.prevalence)
