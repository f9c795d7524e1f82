"""A requested private training of a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato._choices import nearest
from sfumato.data import Source, SourceSpec
from sfumato.experiment.drift import second_group
from sfumato.experiment.experiment import Decision, Experiment
from sfumato.randomness import RunKey
from sfumato.runs.owner.codes import refuse_trained_on
from sfumato.search.space import FIXED
from sfumato.training.job import PrivateJob
from sfumato.training.parts.options import OPTIONS, RunOptions
from sfumato.training.preparation.building import build, pretraining_digests
from sfumato.training.preparation.prepare import check_machine, prepare
from sfumato.training.preparation.start import Machine, Start
from sfumato.training.preparation.trial import AnyTrial
from sfumato.training.weights import check_choices


@dataclass(frozen=True, kw_only=True)
class Trial(AnyTrial):
    """A requested private training, as plain data that can be sent to other processes.

    >>> from sfumato.experiment import Experiment
    >>> Trial(experiment=Experiment(epsilon=3.0), source="digits").spec.record()
    {'spec': 'digits'}

    Args:
        experiment: the chosen options. The others follow by rule.
        source: the source's name, or a `SourceSpec` with declarations.
        device, threads, micro_batch, precision: performance settings, which don't affect the guarantee.
        options: fields of `RunOptions`, by name.
        notes: further notes to report when the run starts.
        earlier_search: the search that chose these options, whose cost then counts too.
    """

    fixed = FIXED

    experiment: Experiment
    source: str | SourceSpec
    micro_batch: int | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        for name in self.options:
            if name not in OPTIONS:
                near = nearest(name, OPTIONS)
                remedy = f"did you mean {near}" if near else f"there are {', '.join(OPTIONS)}"
                raise SfumatoError(f"options has the unknown name {name!r}", remedy)

    @property
    def spec(self) -> SourceSpec:
        """The source with its declarations. A source that is given by name gets the experiment's zoom."""
        if isinstance(self.source, SourceSpec):
            return self.source
        return SourceSpec(spec=self.source, zoom=self.experiment.zoom)

    @property
    def machine(self) -> Machine:
        """The machine's settings."""
        return Machine(device=self.device, threads=self.threads, micro_batch=self.micro_batch, precision=self.precision)

    def refuse_early(self) -> None:
        """Refuse impossible options before any data are read."""
        check_machine(self.machine)
        self.experiment.check_source(self.spec)
        RunOptions(**self.options).check(public=self.spec.is_public)

    def select_records(self, source: Source) -> Source:
        """The source, reduced to the number of records per user that the experiment keeps."""
        return self.experiment.select_records(source)

    def decide(self, source: Source) -> Decision:
        """The plan and the settings for this source."""
        return self.experiment.decide(source)

    def check_trainable(self, decided: Decision, source: Source) -> None:
        """Refuse options with which no run on this source can be trained. Builds the model, and spends nothing."""
        plan, settings = decided.plan, decided.settings
        source.images_for(settings.views)
        second_group(source, plan)
        refuse_trained_on(source, pretraining_digests(source, settings))
        check_choices(build(None, source, settings, RunKey.from_seed(0)), settings, steps=plan.steps)

    def prepare_job(self, decided: Decision, source: Source, start: Start, **options: Any) -> PrivateJob:
        """The job of one run, with the options of its parts."""
        return prepare(None, source, decided.plan, decided.settings, start, **options)
