"""A private training of a classifier as it is asked for; what a search makes many of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from sfumato._checks import SfumatoError
from sfumato._choices import nearest
from sfumato.data import Source, SourceSpec
from sfumato.experiment.drift import second_group
from sfumato.experiment.experiment import Decided, Experiment
from sfumato.randomness import RunKey
from sfumato.runs.owner.codes import refuse_trained_on
from sfumato.search.space import VARIED
from sfumato.training.descent import check_choices
from sfumato.training.job import PrivateJob
from sfumato.training.parts.clock import steps_by_time
from sfumato.training.parts.registry import OPTIONS
from sfumato.training.preparation import beforehand
from sfumato.training.preparation.building import build, trained_on
from sfumato.training.preparation.prepare import check_machine, own_threads, prepare
from sfumato.training.preparation.start import Machine, Start
from sfumato.training.preparation.trial import AnyTrial

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Trial(AnyTrial):
    """A private training as it is asked for, as plain data that may go to other processes.

    >>> from sfumato.experiment import Experiment
    >>> Trial(experiment=Experiment(epsilon=3.0), source="digits").spec.record()
    {'spec': 'digits'}

    Args:
        experiment: what was chosen; the rest follows by rule.
        source: by its spelling, or with declarations.
        device, threads, micro_batch, precision: performance; they don't change the promise.
        options: what is wanted of the parts around the run, by name (`registry.OPTIONS`).
        notes: what else is reported when its run begins.
        earlier_search: the search that these choices came from, which then counts as well.
    """

    experiment: Experiment
    source: str | SourceSpec
    micro_batch: int | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        for name in self.options:
            if name not in OPTIONS:
                near = nearest(name, OPTIONS)
                remedy = f"did you mean {near}" if near else f"there are {', '.join(OPTIONS)}"
                raise SfumatoError(f"options has {name!r}, which no run knows", remedy)

    @property
    def varied(self) -> tuple[str, ...]:
        """The fields of the experiment that a search may vary."""
        return VARIED

    def kept(self, source: Source) -> Source:
        """The source with as many records of each user as the experiment keeps."""
        return self.experiment.kept(source)

    def units_of(self, source: Source) -> int:
        """How many units the promise is for: examples, or users."""
        return source.users if self.experiment.unit == "user" and source.users else source.examples

    def decide(self, source: Source) -> Decided:
        """Plan and settings for this source."""
        return self.experiment.decide(source)

    def prepared(self, decided: Decided, source: Source, start: Start, **options: Any) -> PrivateJob:
        """The job of one run, by what was decided, with these parts around it."""
        around = {**options, "clock": self.experiment.clock}
        return prepare(None, source, decided.plan, decided.settings, start, **around)

    def check_trainable(self, decided: Decided, source: Source) -> None:
        """Refuse what no run on this source could have; builds the model, and spends nothing."""
        plan, settings = decided.plan, decided.settings
        source.images_for(settings.views)
        steps_by_time(source, plan, self.experiment.clock)
        second_group(source, plan)
        refuse_trained_on(source, trained_on(source, settings))
        check_choices(build(None, source, settings, RunKey.from_seed(0)), settings, steps=plan.steps)

    def refuse_figures(self) -> None:
        """Refuse to publish figures of each of several trainings, which would cost their epsilon each time, or of
        candidates that nobody may see."""
        if (epsilon := self.options.get("report_epsilon")) is not None:
            raise SfumatoError(
                f"`report_epsilon` is {epsilon:g}, and several runs: the figures of each would cost it",
                "train once with it",
            )

    @property
    def spec(self) -> SourceSpec:
        """The source with its declarations; a mere spelling is read as the experiment's zoom has it."""
        if isinstance(self.source, SourceSpec):
            return self.source
        return SourceSpec(spec=self.source, zoom=self.experiment.zoom)

    def refuse_at_once(self) -> None:
        """Refuse what its choices alone decide to be impossible, before any data are read."""
        check_machine(self.machine)
        beforehand.check(self.experiment, self.spec, {**self.options, "clock": self.experiment.clock})

    @property
    def machine(self) -> Machine:
        """Where to compute."""
        return Machine(device=self.device, threads=self.threads, micro_batch=self.micro_batch, precision=self.precision)


def refuse_embeddings(trial: AnyTrial, what: str) -> None:
    """Refuse a search that goes by right answers for a training of embeddings."""
    if not isinstance(trial, Trial):
        raise SfumatoError(
            f"{what} counts right answers, which embeddings don't give", "search openly: public or uncovered"
        )


def of_trials(search: Callable[P, T]) -> Callable[P, T]:
    """Around a search, whose first argument is a trial: torch has as many threads afterwards as before."""

    @functools.wraps(search)
    def called(trial: Trial, *given: Any, **named: Any) -> Any:
        with own_threads():
            return search(trial, *given, **named)  # type: ignore[call-arg]

    return called  # type: ignore[return-value]
