"""Training embeddings from Python, and a run's job from its own record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.data import Source, SourceSpec, by_user
from sfumato.embedding import canary_users
from sfumato.embedding.choices import AT_FEATURES, KIND, UNTRAINED, Clients
from sfumato.embedding.experiment import Decided, EmbeddingExperiment
from sfumato.embedding.job import AnyJob, DpsgdJob, WhiteningJob
from sfumato.embedding.method import forecast
from sfumato.embedding.noiseless import NoiselessRounds, Unpromised
from sfumato.embedding.prepare import decide, prepare
from sfumato.experiment import users
from sfumato.experiment.as_recipe import request_of
from sfumato.experiment.keywords import of_fields
from sfumato.experiment.settings import Settings
from sfumato.observers.notebook import shown
from sfumato.observers.observer import Observer
from sfumato.observers.progress import Progress
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.planning import remarks
from sfumato.randomness import owner_key
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.run import Run
from sfumato.training.job import is_public
from sfumato.training.parts import budgeted
from sfumato.training.preparation.prepare import check_machine, own_threads
from sfumato.training.preparation.recorded import source_of
from sfumato.training.preparation.sources import opened
from sfumato.training.preparation.start import Machine, Start
from sfumato.training.run import PublicRun, execute, refuse_finished


@own_threads()
def embed(
    source: Any,
    *,
    directory: str | os.PathLike[str],
    model: str | nn.Module | None = None,
    budget: str | None = None,
    audit: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
    **choices: Any,
) -> Run | PublicRun:
    """Train an image embedding privately, with a promise for each user; an unfinished run in `directory` is resumed.

    Args:
        source: a spelling such as "npz:faces.npz", an opened `Source`, or data from Python (`open_source`); it must say
            whose record each one is.
        directory: the run directory.
        model: a name, a module of one's own (images (N, C, H, W) to embeddings (N, D), copied), or None for the rule's.
        budget: the name of a budget (`sfumato.set_budget`) that the whole plan is reserved in before the first round.
        audit: how many canary users there are, random directions of which coins put about half into the rounds, for a
            lower bound and an estimate of epsilon (`audit.json`).
        device, threads: performance; they don't change the promise.
        progress: where to report to.
        observers: who else looks on.
        choices: fields of `EmbeddingExperiment`; whatever is left out follows its rules. With `method="central"`, and
            with "fedemb-noiseless" and "fedavg-noiseless", the training is without privacy, on public data alone; with
            "untrained", which few people get by rule, nothing is trained and no private data are used.

    **Guarantee.** The released backbone has the plan's (epsilon, delta) for each single user, with all of their records
    that are kept, with the exceptions that `run.statement.not_covered` lists: see `ClippedUpdates` and `PrivacyPlan`.

    Errors: `SfumatoError`, before anything is spent, for whatever is refused.
    """
    named = model if isinstance(model, str) or model is None else "module"
    experiment = of_fields(EmbeddingExperiment, {"model": named, **choices})
    run, progress, request = RunDirectory(directory), shown(progress), {}
    if isinstance(source, str):
        spec = SourceSpec(spec=source, open_set=True)
        experiment.refuse_at_once(spec)
        budgeted.check(budget, public=spec.is_public)
        canary_users.check(audit, experiment.chosen)
        check_machine(machine := Machine(device=device, threads=threads))
        around = {"budget": budget, "audit": audit}
        source, request = spec.open(owner_key()), request_of(spec, experiment, machine, around)
    source = users.kept(opened(source, open_set=True), experiment.per_user)
    own = model if isinstance(model, nn.Module) else None
    how: dict[str, Any] = {"device": device, "threads": threads, "request": request}
    how |= {"budget": budget, "audit": audit, "observers": observers}
    return begin(experiment, source, run, model=own, progress=progress, **how)


def begin(
    experiment: EmbeddingExperiment,
    source: Source,
    run: RunDirectory,
    *,
    model: nn.Module | None = None,
    budget: str | None = None,
    audit: int | None = None,
    progress: Progress,
    observers: Sequence[Observer] = (),
    **others: Any,
) -> Run | PublicRun:
    """Train as it is asked for, in this directory; the others are fields of `Start`."""
    source.require_classes("a training of embeddings")
    asked: dict[str, Any] = {"budget": budget, "audit": audit}
    job, reasons = job_of(experiment, source, model=model, start=Start.of(run, **others), **asked)
    if not run.exists:
        for line in reasons:
            progress.report(line)
    return execute(job, run, progress=progress, observers=observers)


def job_of(
    experiment: EmbeddingExperiment,
    source: Source,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    budget: str | None = None,
    audit: int | None = None,
) -> tuple[AnyJob, list[str]]:
    """Everything up to the first round, and why what was left out is what it is."""
    decided, reasons = decide(experiment, source)
    job = prepare(source, decided, model=model, start=start, budget=budget, audit=audit)
    if not isinstance(decided, Decided):
        return job, reasons
    plan = decided.plan
    held = len(by_user(source.train)[1])
    if not 0.8 * held <= (plan.users or 0) <= 1.25 * held:
        reasons.append(
            f"note: {plan.users} users are declared, and the data hold {held}; the promise holds as stated, but rounds "
            "have fewer or more users than planned, and are divided by the same number all the same"
        )
    if isinstance(job, WhiteningJob):
        return job, reasons
    vectors = plan.expected_batch_size if isinstance(job, DpsgdJob) else decided.clients.count
    parameters = sum(one.numel() for one in job.module.parameters() if one.requires_grad)
    if (weak := remarks.buried(plan, clients=vectors, parameters=parameters)) is not None:
        reasons.append(f"note: {weak}")
        found = forecast(plan.epsilon(), plan.delta, plan.units)
        reasons.append(f"note: {found.words}; where model, rounds and clients are left out, that decides")
    return job, reasons


def recorded(path: str) -> tuple[AnyJob, RunDirectory]:
    """The job of an unfinished run from its own record, private or not."""
    run = RunDirectory(path)
    run.require()
    record = run.read_json(names.SETTINGS)
    if KIND not in record:
        raise SfumatoError(f"{path} holds no training of embeddings", f"resume it with sfumato train {path}")
    public = is_public(run)
    if not public:
        refuse_finished(run)
    source, start = source_of(path, record), Start.of(run, request=record["request"])
    settings, clients = Settings.from_dict(record["settings"]), record[KIND]
    if clients["method"] in AT_FEATURES:
        asked = EmbeddingExperiment(**{name: clients[name] for name in ("method", "dimension", "far")})
        clients = asked.clients_of(count=1, method=asked.chosen).to_dict()
    if not public:
        plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
        decided, source = Decided(plan, settings, Clients.from_dict(clients), []), users.kept_for(source, plan)
    elif clients["method"] == UNTRAINED:
        decided = Unpromised(settings=settings, clients=Clients.from_dict(clients), batch_size=1, steps=0)
    elif clients["method"] != "central":
        decided = NoiselessRounds.from_record(record)
        source = users.kept(source, decided.per_user)
    else:
        clients = EmbeddingExperiment(dimension=clients["dimension"], far=clients["far"]).clients_of(
            count=1, method="central"
        )
        sizes = {name: record[name] for name in ("steps", "batch_size")}
        decided = Unpromised(settings=settings, clients=clients, **sizes)
    asked: dict[str, Any] = {"budget": budgeted.of_record(record).get("budget")}
    return prepare(source, decided, start=start, audit=canary_users.of_record(record), **asked), run


def is_embedding(run: RunDirectory) -> bool:
    """Whether a run directory holds a private training of embeddings."""
    return run.exists and KIND in run.read_json(names.SETTINGS) and not is_public(run)
