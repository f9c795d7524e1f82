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
from sfumato.training.job import EMBEDDING, ROUND, PrivateJob, PublicTraining, is_public
from sfumato.training.preparation import clients as clients_preparation
from sfumato.training.preparation import resume
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.start import RunOptions, Start
from sfumato.training.run import refuse_finished, result_of


def load_if_complete(path: str) -> Run | None:
    """The outcome of a run that only had to be marked as finished, which needs neither key nor data; else None."""
    run = RunDirectory(path)
    if not run.complete():
        return None
    run.refuse_custom_loop(f"it is finished: check it with sfumato verify {path}")
    return read(run)


def job_from_record(
    path: str,
    *,
    made_with: str | None = None,
    trust_code: bool = False,
    model: nn.Module | str | None = None,
    source: Any = None,
) -> tuple[Any, RunDirectory]:
    """The job of an unfinished run, whose data are read and whose model is built as when it began.

    Args:
        made_with: the verb that the run must have been made with: train, embed or pretrain; None for any.
        trust_code: permission to call the function that the record names as its model.
        model: the name of that function, or the user's own module that the run began with.
        source: its data, if they were given from Python and not by a spelling.
    """
    run = RunDirectory(path)
    run.require()
    run.refuse_custom_loop("run its code again, which resumes it, or call `finish()` there")
    record, public = run.read_json(names.SETTINGS), is_public(run)
    verb = names.verb_of(record)
    if made_with not in (None, verb):
        problem = f"the run in {path} was made with sfumato {verb}, not with sfumato {made_with}"
        raise SfumatoError(problem, f"resume it with sfumato {verb} {path}, if it is not finished")
    refuse_finished(run)
    with run.format_errors():
        _refuse_unrecorded(record, path)
        settings = Settings.from_dict(record["settings"])
        if not trust_code:
            remedy = "if you trust that code, give `trust_code`, or name it: `model={}`"
            named, where = model if isinstance(model, str) else None, f"the run in {path}"
            models.check_trusted(record["settings"]["model"], named, where=where, remedy=remedy)
        own = model if isinstance(model, nn.Module) else None
        source = source_of(path, record, own_model=own is not None, source=source)
        search = None if public else Circumstances.from_dict(record["circumstances"]).search
        start = Start.for_run(run, request=record["request"], search=search)
        if verb == "pretrain":
            return pretraining.prepare(source, PublicTraining.from_dict(record), start=start), run
        clients = Clients.from_dict(record[EMBEDDING]) if verb == "embed" else None
        if clients is not None and public:
            rounds = NoiselessRounds(**record[ROUND]) if ROUND in record else None
            source = source if rounds is None else users.cap_records(source, rounds.per_user)
            without_plan = PublicDecision(settings, clients, record["batch_size"], record["steps"], [], rounds)
            return clients_preparation.prepare(source, without_plan, model=own, start=start), run
        plan, options = PrivacyPlan.from_dict(run.read_json(names.PLAN)), vars(RunOptions.from_record(record))
        source = users.cap_for_plan(source, plan)
    if clients is None:
        return prepare(own, source, plan, settings, start, **options), run
    decided = EmbeddingDecision(plan, settings, clients, [])
    return clients_preparation.prepare(source, decided, model=own, start=start, **options), run


def _refuse_unrecorded(record: Mapping[str, Any], path: str) -> None:
    """Refuse a run that its record alone cannot resume: one of a search, and pre-training with public examples."""
    if set(record["request"]) - {"source", to_recipe.OPTIONS}:
        remedy = "give the command of the search again, which resumes it"
        raise SfumatoError(f"the run in {path} is part of a search", remedy)
    normalisation = record["settings"].get("normalisation")
    if normalisation is not None and "circumstances" not in record:
        remedy = "give the original command again, with its `directory`, which resumes it"
        raise SfumatoError(f"the run in {path} has normalisation {normalisation}", remedy)


def source_of(
    path: str,
    record: Mapping[str, Any],
    *,
    own_model: bool = False,
    source: Any = None,
) -> Source:
    """Reads the source that a run's record names. Refuses if data or model were objects that are not given.

    Args:
        own_model: whether the user's own module is given.
        source: the run's data, if they were given from Python and not by a spelling.
    """
    request: dict[str, Any] = record["request"].get("source", {})
    _refuse_missing(path, record, own_model=own_model, source=source is not None or bool(request))
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
    if is_public(RunDirectory(place)):
        raise SfumatoError(f"{place} was trained without privacy", f"resume it with its own verb and {place}")
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
