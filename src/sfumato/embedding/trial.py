"""One training of embeddings as it is asked for: what to train, on which data, and where to compute."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.data import Source, SourceSpec, by_user
from sfumato.embedding import around
from sfumato.embedding.choices import WITH_NOISE
from sfumato.embedding.experiment import Decided, EmbeddingExperiment
from sfumato.embedding.job import AnyJob, DpsgdJob, WhiteningJob
from sfumato.embedding.method import forecast
from sfumato.embedding.noiseless import Unpromised
from sfumato.embedding.prepare import check_scored, decide, prepare
from sfumato.experiment import users
from sfumato.privacy.planning import remarks
from sfumato.training.parts import budgeted
from sfumato.training.preparation.prepare import check_machine
from sfumato.training.preparation.start import Start
from sfumato.training.preparation.trial import AnyTrial


@dataclass(frozen=True, kw_only=True)
class EmbeddingTrial(AnyTrial):
    """A training of embeddings as it is asked for, which `sfumato.search` repeats and varies like a `Trial`.

    Args:
        experiment: what was chosen; the rest follows by rule.
        source: with its declarations; the classes of its test part may be others.
        device, threads: performance; they don't change the promise.
        options: budget, audit and keep, as `embed` takes them, by name.
        notes: what else is reported when its run begins.
        earlier_search: the search that these choices came from, which then counts as well.
    """

    experiment: EmbeddingExperiment
    source: SourceSpec

    @property
    def spec(self) -> SourceSpec:
        """The source; the test part may have classes of its own."""
        return replace(self.source, open_set=True)

    @property
    def varied(self) -> tuple[str, ...]:
        """The fields of the experiment that a search may vary: not what is measured, nor which records there are."""
        fixed = ("seed", "per_user", "start", "period", "noise", "far")
        return tuple(one.name for one in fields(EmbeddingExperiment) if one.name not in fixed)

    def kept(self, source: Source) -> Source:
        """With as many records of each user as are asked for. Refuses a source without classes."""
        source = users.kept(source, self.experiment.per_user)
        source.require_classes("a training of embeddings")
        return source

    def units_of(self, source: Source) -> int:
        """How many users the promise is for."""
        return source.users or source.examples

    def decide(self, source: Source) -> Decided | Unpromised:
        """What is decided for this source, and why."""
        return decide(self.experiment, source)

    def decided(self, source: Source) -> Decided:
        """Plan, settings and clients for this source. Refuses methods without a plan."""
        found = self.decide(source)
        if not isinstance(found, Decided):
            raise SfumatoError(
                f"method {found.clients.method} has no plan, and a search compares what plans come to",
                f"take method {' or '.join(WITH_NOISE)}",
            )
        return found

    def prepared(self, decided: Decided | Unpromised, source: Source, start: Start, **options: Any) -> AnyJob:
        """The job of one run, by what was decided, with these parts around it."""
        return prepare(source, decided, start=start, **options)

    def remarks(self, job: AnyJob, decided: Decided | Unpromised) -> list[str]:
        """What is to be said of a plan for these users and this model."""
        return notes_of(job, decided)

    def check_trainable(self, decided: Decided, source: Source) -> None:
        """Refuse what no run on this source could have; builds the model, and spends nothing."""
        try:
            check_scored(source)
        except SfumatoError as error:
            few = error.problem.replace("test part", "validation part")
            raise SfumatoError(few, "hold out a larger share of the people (`validation`)") from None
        self.prepared(decided, source, Start(machine=self.machine), keep=0)

    def refuse_figures(self) -> None:
        """Nothing is refused: a training of embeddings publishes no figures."""

    def refuse_at_once(self) -> None:
        """Refuse what its choices alone decide to be impossible, before any data are read."""
        self.experiment.refuse_at_once(self.spec)
        budgeted.check(self.options.get("budget"), public=self.spec.is_public, seed=self.experiment.seed)
        around.check(self.options, self.experiment.chosen)
        check_machine(self.machine)


def job_of(
    experiment: EmbeddingExperiment,
    source: Source,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    **options: Any,
) -> tuple[AnyJob, list[str]]:
    """Everything up to the first round, and why what was left out is what it is."""
    decided = decide(experiment, source)
    job = prepare(source, decided, model=model, start=start, **options)
    return job, [*decided.reasons, *notes_of(job, decided)]


def notes_of(job: AnyJob, decided: Decided | Unpromised) -> list[str]:
    """What is to be said of a plan for these users and this model."""
    reasons: list[str] = []
    if not isinstance(decided, Decided):
        return reasons
    plan = decided.plan
    held = len(by_user(job.source.train)[1])
    if not 0.8 * held <= (plan.users or 0) <= 1.25 * held:
        reasons.append(
            f"note: {plan.users} users are declared, and the data hold {held}; the promise holds as stated, but rounds "
            "have fewer or more users than planned, and are divided by the same number all the same"
        )
    if isinstance(job, WhiteningJob):
        return reasons
    vectors = plan.expected_batch_size if isinstance(job, DpsgdJob) else decided.clients.count
    parameters = sum(one.numel() for one in job.module.parameters() if one.requires_grad)
    if (weak := remarks.buried(plan, clients=vectors, parameters=parameters)) is not None:
        reasons.append(f"note: {weak}")
        found = forecast(plan.epsilon(), plan.delta, plan.units)
        reasons.append(f"note: {found.words}; where model, rounds and clients are left out, that decides")
    return reasons
