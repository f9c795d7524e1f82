"""Embedding trainings from Python (`embed`), and as trials that a search repeats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.data import Source, SourceSpec, by_user
from sfumato.experiment import users
from sfumato.experiment.client_choices import FEDEMB_FROM
from sfumato.experiment.clients import EmbeddingDecision, EmbeddingExperiment, PublicDecision
from sfumato.experiment.from_keywords import from_choices
from sfumato.observers.observer import Observer
from sfumato.observers.progress import Progress, default_progress
from sfumato.privacy.planning import remarks
from sfumato.randomness import owner_key
from sfumato.runs.directory import RunDirectory
from sfumato.runs.run import Run
from sfumato.training.job import PrivateJob, PublicJob
from sfumato.training.parts.options import check_budget
from sfumato.training.preparation.clients import check, check_scored, prepare
from sfumato.training.preparation.prepare import check_machine, own_threads
from sfumato.training.preparation.sources import open_data
from sfumato.training.preparation.start import Start
from sfumato.training.preparation.trial import AnyTrial
from sfumato.training.run import PublicRun, execute


@dataclass(frozen=True, kw_only=True)
class EmbeddingTrial(AnyTrial):
    """A requested embedding training, which `sfumato.search` can repeat and vary like a `Trial`.

    Args:
        experiment: the chosen options. The others follow by rule.
        source: the source with its declarations. Its test part may have other classes.
        device, threads: performance settings, which don't affect the guarantee.
        options: budget and keep of `embed`, by name.
        notes: further notes to report when the run starts.
        earlier_search: the search that chose these options, which then counts too.
    """

    fixed = ("seed", "per_user", "noise", "far")

    experiment: EmbeddingExperiment
    source: SourceSpec

    @property
    def spec(self) -> SourceSpec:
        """The source, whose test part may have other classes."""
        return replace(self.source, open_set=True)

    def select_records(self, source: Source) -> Source:
        """The source with `per_user` records of each user. Refuses a source without classes."""
        source = users.cap_records(source, self.experiment.per_user)
        source.require_classes("a training of embeddings")
        return source

    def decide(self, source: Source) -> EmbeddingDecision | PublicDecision:
        """The settings for this source, with reasons."""
        return self.experiment.decide(source)

    def prepare_job(
        self, decided: EmbeddingDecision | PublicDecision, source: Source, start: Start, **options: Any
    ) -> PrivateJob | PublicJob:
        """The job of one run, with these options of its parts."""
        return prepare(source, decided, start=start, **options)

    def remarks(self, job: PrivateJob | PublicJob, decided: EmbeddingDecision | PublicDecision) -> list[str]:
        """Notes about the plan for these users and this model."""
        return notes_of(job)

    def check_trainable(self, decided: EmbeddingDecision, source: Source) -> None:
        """Refuse options with which no run on this source could be trained. Builds the model, and spends nothing."""
        try:
            check_scored(source)
        except SfumatoError as error:
            few = error.problem.replace("test part", "validation part")
            raise SfumatoError(few, "hold out a larger share of the people (`validation`)") from None
        self.prepare_job(decided, source, Start(machine=self.machine), keep=0)

    def refuse_early(self) -> None:
        """Refuse impossible options before any data are read."""
        self.experiment.refuse_early(self.spec)
        check_budget(self.options.get("budget"), public=self.spec.is_public, seed=self.experiment.seed)
        check(self.options, self.experiment.chosen)
        check_machine(self.machine)


def notes_of(job: PrivateJob | PublicJob) -> list[str]:
    """Notes about the plan for these users and this model; none without a plan."""
    if isinstance(job, PublicJob):
        return []
    plan, notes = job.plan, []
    counted = len(by_user(job.source.train)[1])
    if users.is_far(plan.users or 0, counted):
        notes.append(
            f"note: {plan.users} users are declared, but the data hold {counted}; the guarantee holds as stated, but "
            "rounds have fewer or more users than planned, while sums are divided by the planned number"
        )
    vectors = job.client_count or plan.expected_batch_size
    parameters = sum(value.numel() for value in job.module.parameters() if value.requires_grad)
    if (weak := remarks.drowned_updates_note(plan, clients=vectors, parameters=parameters)) is not None:
        notes.append(f"note: {weak}")
        notes.append(
            f"note: a network is worth its budget from {FEDEMB_FROM:,} people on, which decides the method where no "
            "option for model, rounds or clients is given"
        )
    return notes


@own_threads()
def embed(
    source: Any,
    *,
    directory: str | os.PathLike[str],
    model: str | nn.Module | None = None,
    budget: str | None = None,
    keep: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
    copy: bool = False,
    **choices: Any,
) -> Run | PublicRun:
    """Train an image embedding privately, with a guarantee for each user; an unfinished run in `directory` is resumed.

    Args:
        source: a spelling such as "npz:faces.npz", an opened `Source`, or data from Python (`open_source`). It must
            assign each record to a user.
        directory: the run directory.
        model: a name, a module (images (N, C, H, W) to embeddings (N, D); it is copied), or None for the default.
        budget: the name of a budget (`sfumato.set_budget`) in which to reserve the whole plan before the first round.
        keep: the number of weights of single rounds that are kept for `sfumato.aggregate`; None for the default, 0 for
            none.
        device, threads: performance settings, which don't affect the guarantee.
        progress: where to report progress.
        observers: further observers of the run.
        copy: as for `sfumato.train`.
        choices: fields of `EmbeddingExperiment`. Those that are left out follow its rules. With `method="central"`,
            "fedemb-noiseless" or "fedavg-noiseless" the training is without privacy, on public data alone. With
            "untrained", the rule's choice for few people, nothing is trained and no private data are used.

    **Guarantee.** The released backbone has the plan's (epsilon, delta) for each single user, with all of their records
    that are kept, with the exceptions that `run.statement.not_covered` lists: see `ClippedUpdates` and `PrivacyPlan`.

    Errors: `SfumatoError` for anything that is refused, before anything is spent.
    """
    named = model if isinstance(model, str) or model is None else "module"
    experiment = from_choices(EmbeddingExperiment, {"model": named, **choices})
    run, progress, request = RunDirectory(directory), default_progress(progress), {}
    options: dict[str, Any] = {"budget": budget, "keep": keep}
    if isinstance(source, str):
        spec = SourceSpec(spec=source)
        trial = EmbeddingTrial(experiment=experiment, source=spec, device=device, threads=threads, options=options)
        trial.refuse_early()
        source, request = trial.spec.open(owner_key()), trial.request
    source = users.cap_records(open_data(source, open_set=True), experiment.per_user)
    source.require_classes("a training of embeddings")
    decided, start = experiment.decide(source), Start.for_run(run, device=device, threads=threads, request=request)
    module = model if isinstance(model, nn.Module) else None
    job = prepare(source, decided, model=module, start=start, **options)
    if not run.exists:
        for line in (*decided.reasons, *notes_of(job)):
            progress.report(line)
    return execute(job, run, progress=progress, observers=observers, copy=copy)
