"""A run's job from its own record: for `train RUN` and `finish RUN`."""

from __future__ import annotations

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato.data import open_source
from sfumato.experiment import users
from sfumato.experiment.settings import Settings
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.randomness import owner_key
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.run import Run, read
from sfumato.training.job import PrivateJob, PublicJob, PublicTraining
from sfumato.training.parts import registry
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.start import Start
from sfumato.training.public import preparing, running
from sfumato.training.run import refuse_finished


def ended(path: str) -> Run | None:
    """The outcome of a run that had come to its end but for the last moments, which neither key nor data are needed
    for; None for any other."""
    run = RunDirectory(path)
    return read(run) if run.complete() else None


def public_job(path: str, *, trust_code: bool) -> tuple[PublicJob, RunDirectory]:
    """The same for a run of `sfumato pretrain`."""
    run = RunDirectory(path)
    if not running.is_public(run):
        raise SfumatoError(f"{path} holds a private run", f"resume it with sfumato train {path}")
    if run.finished:
        raise SfumatoError(f"the run in {path} is finished", "give a source and another `directory` to train anew")
    record = run.read_json(names.SETTINGS)
    if "embedding" in record:
        raise SfumatoError(f"{path} holds a training of embeddings", f"resume it with sfumato embed {path}")
    if "source" not in record["request"]:
        raise SfumatoError(f"the run in {path} was begun from Python", "run that code again; it resumes the run")
    training = PublicTraining.from_dict(record)
    if training.settings.norms.normalisation is not None:
        raise SfumatoError(
            f"the run in {path} is one of normalisation {training.settings.norms.normalisation}",
            "give the command that began it again, with its `directory`: it goes on",
        )
    _trusted(training.settings, path, trust_code=trust_code)
    job = preparing.prepare(
        open_source(**record["request"]["source"], owner_key=owner_key()),
        training,
        start=Start.of(run, request=record["request"]),
    )
    return job, run


def job(path: str, *, trust_code: bool) -> tuple[PrivateJob, RunDirectory]:
    """Read the data and build the model that the run in `path` began with."""
    run = RunDirectory(path)
    run.require()
    record = run.read_json(names.SETTINGS)
    if running.is_public(run):
        verb = "embed" if "embedding" in record else "pretrain"
        raise SfumatoError(
            f"{path} was trained without privacy", f"resume it with sfumato {verb} {path}, if it is not finished"
        )
    refuse_finished(run)
    if "embedding" in record:
        raise SfumatoError(f"{path} holds a training of embeddings", f"resume it with sfumato embed {path}")
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    settings = Settings.from_dict(record["settings"])
    request = record["request"]
    if set(request) - {"source"}:
        raise SfumatoError(f"the run in {path} is part of a search", "give the command of the search again: it goes on")
    if "source" not in request or settings.model == "module":
        raise SfumatoError(
            f"the run in {path} was begun from Python with objects that only its own code can build",
            "run that code again; it resumes the run",
        )
    _trusted(settings, path, trust_code=trust_code)
    source = users.kept_for(open_source(**request["source"], owner_key=owner_key()), plan)
    facts = Circumstances.from_dict(record["circumstances"])
    start = Start.of(run, request=request, search=facts.search)
    return prepare(None, source, plan, settings, start, **registry.recorded(record, path)), run


def _trusted(settings: Settings, path: str, *, trust_code: bool) -> None:
    """Refuse a model by which the record names code, unless the user trusts that."""
    if not trust_code:
        remedy = "if you trust that code, give `trust_code`, or name it: `model={}`"
        models.trusted(settings.model, None, where=f"the run in {path}", remedy=remedy)
