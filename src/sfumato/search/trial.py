"""One training as it is asked for: what to train, on which data, and where to compute. What a search makes many of."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar

from sfumato._checks import SfumatoError
from sfumato._choices import nearest
from sfumato.data import Source, SourceSpec
from sfumato.experiment.as_recipe import request_of
from sfumato.experiment.drift import second_group
from sfumato.experiment.experiment import Decided, Experiment
from sfumato.observers.observer import Observer
from sfumato.observers.progress import Progress, read_source
from sfumato.privacy import Search
from sfumato.randomness import RunKey, owner_key
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner.public_records import refuse_trained_on
from sfumato.runs.run import Run, read
from sfumato.search.space import VARIED
from sfumato.training.descent import check_choices
from sfumato.training.job import PrivateJob
from sfumato.training.parts.clock import steps_by_time
from sfumato.training.parts.registry import OPTIONS
from sfumato.training.preparation import beforehand, resume
from sfumato.training.preparation.building import build
from sfumato.training.preparation.origins import trained_on
from sfumato.training.preparation.prepare import check_machine, own_threads, prepare
from sfumato.training.preparation.start import Machine, Start
from sfumato.training.run import execute

P = ParamSpec("P")
T = TypeVar("T")
EarlierSearch = Callable[[Source], Search | None]
"""The search, if any, that an experiment's settings came from, where it looked at these data and nothing covers it."""
Observers = Callable[[PrivateJob, RunDirectory], Sequence[Observer]]
"""The further observers of a run."""


class AnyTrial(Protocol):
    """A training as it is asked for, of classifiers or embeddings, which can be repeated and varied: a frozen dataclass
    with at least `experiment`, `source`, `device`, `threads`, `options` and `earlier_search`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def experiment(self) -> Any:
        """What was chosen."""
        ...

    @property
    def device(self) -> str | None:
        """Where to compute."""
        ...

    @property
    def threads(self) -> int | None:
        """CPU threads."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """What is wanted of the parts around the run, by name."""
        ...

    @property
    def spec(self) -> SourceSpec:
        """The source with its declarations."""
        ...

    @property
    def machine(self) -> Machine:
        """Where to compute."""
        ...

    @property
    def varied(self) -> tuple[str, ...]:
        """The fields of the experiment that a search may vary."""
        ...

    def opened(self) -> Source:
        """The source, read."""
        ...

    def units_of(self, source: Source) -> int:
        """How many units the promise may be for: examples, or users."""
        ...

    def decided(self, source: Source) -> Any:
        """What is decided for this source: a named tuple with `plan` and `settings`."""
        ...

    def prepared(self, decided: Any, source: Source, start: Start, *, budget: str | None = None) -> Any:
        """The job of one run of a search, by what was decided."""
        ...

    def check_trainable(self, decided: Any, source: Source) -> None:
        """Refuse what no run on this source could have; spends nothing."""
        ...

    def refuse_at_once(self) -> None:
        """Refuse what its choices alone decide to be impossible, before any data are read."""
        ...

    def searched(self, source: Source) -> Search | None:
        """The search that the choices came from, where it looked at these data and nothing covers it."""
        ...

    def refuse_figures(self) -> None:
        """Refuse figures that would cost their epsilon each time."""
        ...

    def trained(
        self, directory: str | os.PathLike[str], progress: Progress, *, observers: Callable[..., Any] | None = None
    ) -> Any:
        """Its run: begun, resumed, or read where it is finished."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trial:
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
    device: str | None = None
    threads: int | None = None
    micro_batch: int | None = None
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    earlier_search: EarlierSearch | None = None

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

    def opened(self) -> Source:
        """The source, read."""
        return self.experiment.kept(self.spec.open(owner_key()))

    def units_of(self, source: Source) -> int:
        """How many units the promise is for: examples, or users."""
        return source.users if self.experiment.unit == "user" and source.users else source.examples

    def decided(self, source: Source) -> Decided:
        """Plan and settings for this source."""
        return self.experiment.decide(source)

    def prepared(self, decided: Decided, source: Source, start: Start, *, budget: str | None = None) -> PrivateJob:
        """The job of one run of a search, by what was decided."""
        around = {"clock": self.experiment.clock, "budget": budget}
        return prepare(None, source, decided.plan, decided.settings, start, keep=0, **around)

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
        beforehand.check(self.experiment, self.spec, self.around)

    @property
    def machine(self) -> Machine:
        """Where to compute."""
        return Machine(device=self.device, threads=self.threads, micro_batch=self.micro_batch, precision=self.precision)

    @property
    def around(self) -> dict[str, Any]:
        """What is wanted of the parts around the run, with the experiment's clock."""
        return {**self.options, "clock": self.experiment.clock}

    def job(self, run: RunDirectory, progress: Progress) -> PrivateJob:
        """Everything up to the first step of a run in this directory."""
        if not run.exists:
            run.require_free()
        self.refuse_at_once()
        source = self.experiment.kept(read_source(self.spec, progress))
        plan, settings, reasons = self.experiment.decide(source)
        earlier = self.searched(source)
        start = Start.of(
            run,
            machine=self.machine,
            request=request_of(self.spec, self.experiment, self.machine, self.options),
            search=earlier and earlier + Search(runs=1, epsilon=plan.epsilon(), delta=plan.delta),
        )
        job = prepare(None, source, plan, settings, start, **self.around)
        if not run.exists:
            for line in (*self.notes, *reasons):
                progress.report(line)
        return job

    def searched(self, source: Source) -> Search | None:
        """The search that the choices came from, where it looked at these data and nothing covers it."""
        return self.earlier_search(source) if self.earlier_search else None

    def trained(
        self, directory: str | os.PathLike[str], progress: Progress, *, observers: Observers | None = None
    ) -> Run:
        """Its run: begun, resumed, or read where it is finished."""
        run = RunDirectory(directory)
        job = self.job(run, progress)
        if run.finished:
            resume.compare(job, run, going_on=False)
            return read(run)
        return execute(job, run, progress=progress, observers=observers(job, run) if observers else ())


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
