"""The job of a run from its record, for `train RUN` and `finish RUN`, and ending a run early."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato.data import Source, open_source
from sfumato.experiment import to_recipe, users
from sfumato.experiment.client_choices import Clients, NoiselessRounds
from sfumato.experiment.clients import EmbeddingDecision, PublicDecision
from sfumato.experiment.settings import Settings
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan
from sfumato.randomness import owner_key
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, remove_temporary
from sfumato.runs.run import Run, read
from sfumato.training import pretraining
from sfumato.training.conclusion.finish import conclude_early
from sfumato.training.job import EMBEDDING, ROUND, PrivateJob, PublicJob, PublicTraining, is_public
from sfumato.training.parts.options import RunOptions
from sfumato.training.preparation import clients as clients_preparation
from sfumato.training.preparation import resume
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.start import Start
from sfumato.training.run import refuse_finished, result_of


def load_if_complete(path: str) -> Run | None:
    """The outcome of a run that only had to be marked as finished, which needs neither key nor data; else None."""
    run = RunDirectory(path)
    return read(run) if run.complete() else None


def public_job_from_record(path: str, *, trust_code: bool) -> tuple[PublicJob, RunDirectory]:
    """The job of a run of `sfumato pretrain`."""
    run = RunDirectory(path)
    if not is_public(run):
        raise SfumatoError(f"{path} holds a private run", f"resume it with sfumato train {path}")
    record = _unfinished(run)
    training = PublicTraining.from_dict(record)
    if training.settings.norms.normalisation is not None:
        raise SfumatoError(
            f"the run in {path} has normalisation {training.settings.norms.normalisation}",
            "give the original command again, with its `directory`, which resumes it",
        )
    source = source_of(path, record, trust_code=trust_code)
    return pretraining.prepare(source, training, start=Start.for_run(run, request=record["request"])), run


def job_from_record(
    path: str,
    *,
    trust_code: bool,
    model: nn.Module | str | None = None,
    source: Any = None,
) -> tuple[PrivateJob, RunDirectory]:
    """Reads the data and builds the model that the run in `path` began with.

    Args:
        trust_code: permission to call the function that the record names as its model.
        model: the name of that function, or the user's own module that the run began with.
        source: its data, if they were given from Python and not by a spelling.
    """
    run = RunDirectory(path)
    run.require()
    if is_public(run):
        verb = "embed" if EMBEDDING in run.read_json(names.SETTINGS) else "pretrain"
        raise SfumatoError(
            f"{path} was trained without privacy", f"resume it with sfumato {verb} {path}, if it is not finished"
        )
    record = _unfinished(run)
    with run.format_errors():
        plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
        settings = Settings.from_dict(record["settings"])
        refuse_searched(record, path)
        known: dict[str, Any] = {"trust_code": trust_code, "model": model, "source": source}
        source = users.cap_for_plan(source_of(path, record, **known), plan)
        facts = Circumstances.from_dict(record["circumstances"])
        start = Start.for_run(run, request=record["request"], search=facts.search)
        options = RunOptions.from_record(record)
    own = model if isinstance(model, nn.Module) else None
    return prepare(own, source, plan, settings, start, **vars(options)), run


def embedding_job_from_record(path: str) -> tuple[PrivateJob | PublicJob, RunDirectory]:
    """The job of an unfinished training of embeddings, private or not."""
    run = RunDirectory(path)
    run.require()
    record = run.read_json(names.SETTINGS)
    if EMBEDDING not in record:
        raise SfumatoError(f"{path} holds no training of embeddings", f"resume it with sfumato train {path}")
    public = is_public(run)
    if not public:
        refuse_finished(run)
    refuse_searched(record, path)
    search = None if public else Circumstances.from_dict(record["circumstances"]).search
    start = Start.for_run(run, request=record["request"], search=search)
    source = source_of(path, record)
    settings, clients = Settings.from_dict(record["settings"]), Clients.from_dict(record[EMBEDDING])
    if public:
        rounds = NoiselessRounds(**record[ROUND]) if ROUND in record else None
        source = source if rounds is None else users.cap_records(source, rounds.per_user)
        decided = PublicDecision(settings, clients, record["batch_size"], record["steps"], [], rounds)
        return clients_preparation.prepare(source, decided, start=start), run
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    decided, options = EmbeddingDecision(plan, settings, clients, []), vars(RunOptions.from_record(record))
    return clients_preparation.prepare(users.cap_for_plan(source, plan), decided, start=start, **options), run


def refuse_searched(record: Mapping[str, Any], path: str) -> None:
    """Refuse to resume a run that is part of a search."""
    if set(record["request"]) - {"source", to_recipe.OPTIONS}:
        remedy = "give the command of the search again, which resumes it"
        raise SfumatoError(f"the run in {path} is part of a search", remedy)


def _unfinished(run: RunDirectory) -> Mapping[str, Any]:
    """The record of an unfinished training of a classifier."""
    refuse_finished(run)
    run.refuse_custom_loop("run its code again, which resumes it, or call `finish()` there")
    record = run.read_json(names.SETTINGS)
    if EMBEDDING in record:
        raise SfumatoError(f"{run.path} holds a run of embeddings", f"resume it with sfumato embed {run.path}")
    return record


def source_of(
    path: str,
    record: Mapping[str, Any],
    *,
    trust_code: bool = True,
    model: nn.Module | str | None = None,
    source: Any = None,
) -> Source:
    """Reads the source that a run's record names. Refuses if data or model were objects that are not given.

    Args:
        trust_code, model, source: as for `job_from_record`.
    """
    request: dict[str, Any] = record["request"].get("source", {})
    _refuse_missing(path, record, own_model=isinstance(model, nn.Module), source=source is not None or bool(request))
    if not trust_code:
        remedy = "if you trust that code, give `trust_code`, or name it: `model={}`"
        named, where = model if isinstance(model, str) else None, f"the run in {path}"
        models.check_trusted(record["settings"]["model"], named, where=where, remedy=remedy)
    if source is None:
        return open_source(**request, owner_key=owner_key())
    return (
        source if isinstance(source, Source) else open_source(source, owner_key=owner_key(), **_declared(path, record))
    )


def _declared(path: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The declarations of data from Python: the counts in the plan, except those counted from the data."""
    plan = PrivacyPlan.from_dict(RunDirectory(path).read_json(names.PLAN))
    declared = dict(zip(("examples", "users"), users.declared_numbers(plan), strict=True))
    read = record["circumstances"]["read"]
    return {"zoom": record["settings"]["zoom"]} | {name: one for name, one in declared.items() if name not in read}


def _refuse_missing(path: str, record: Mapping[str, Any], *, own_model: bool, source: bool) -> None:
    """Refuse if the run's own model or data are not given, or if the run has no own model but one is given."""
    needed = record["settings"]["model"] == "module"
    missing = ["model"] * (needed and not own_model) + ["source"] * (not source)
    if missing:
        raise SfumatoError(
            f"the run in {path} was started from Python with objects that only its own code can build: "
            f"{', '.join(missing)}",
            "run that code again, which resumes the run, or end the run in that code: "
            f"sfumato.finish({path!r}, {', '.join(f'{name}=...' for name in missing)})",
        )
    if own_model and not needed:
        raise SfumatoError(f"the run in {path} was started without your own model", "leave it out")


def finish(
    directory: str | os.PathLike[str],
    *,
    model: nn.Module | str | None = None,
    source: Any = None,
    trust_code: bool = False,
) -> Run:
    """End an unfinished run of `train` or `embed` at its last checkpoint, like `sfumato finish`.

    Args:
        directory: of the run.
        model: for a run of your own module, a module of the same kind; for a run of your own model function, its name,
            "package:function".
        source: the data, if they were given from Python and not by a spelling.
        trust_code: call the model function that the run names, whatever it is.

    **Guarantee.** The statement gives the epsilon of the whole plan, however many steps were taken: stopping early
    saves nothing, since the time of stopping may depend on the data (see `sfumato.Stop`).

    Errors: `SfumatoError` for a finished run, and for a model or data that differ from those the run began with.
    """
    place = str(directory)
    if (done := ended_already(place)) is not None:
        return done
    run = RunDirectory(place)
    if run.exists and EMBEDDING in run.read_json(names.SETTINGS) and not is_public(run):
        job, run = embedding_job_from_record(place)
        assert isinstance(job, PrivateJob)
        return finish_early(job, run)
    return finish_early(*job_from_record(place, trust_code=trust_code, model=model, source=source))


def ended_already(path: str) -> Run | None:
    """The outcome of a run that only had to be marked as finished; else None.

    Errors: `SfumatoError` for a finished run.
    """
    if (done := load_if_complete(path)) is not None:
        return done
    if RunDirectory(path).finished:
        raise SfumatoError(
            f"the run in {path} is finished",
            f"evaluate it (sfumato evaluate {path} SOURCE), write its report (sfumato report {path}) or check it "
            f"(sfumato verify {path})",
        )
    return None


def finish_early(job: PrivateJob, run: RunDirectory) -> Run:
    """End an unfinished run at its last checkpoint. The statement is still that of the whole plan."""
    run.require()
    refuse_finished(run)
    with Ledger(run / names.LEDGER) as ledger:
        remove_temporary(run.path)
        refuse_finished(run)
        resume.compare(job, run, resuming=False)
        return result_of(job, run, *conclude_early(job, run, ledger))
