"""A run's job from its own record: for `train RUN` and `finish RUN`; and the end of a run before its last step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato.data import Source, open_source
from sfumato.experiment import as_recipe, users
from sfumato.experiment.settings import Settings
from sfumato.observers.observer import Rows
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan
from sfumato.randomness import owner_key
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, sweep
from sfumato.runs.run import Run, read
from sfumato.training import pretraining
from sfumato.training.conclusion.finish import conclude
from sfumato.training.job import PrivateJob, PublicJob, PublicTraining, is_public
from sfumato.training.loop import take_none
from sfumato.training.own.code import Loss, OwnCode
from sfumato.training.own.optimizers import Makes
from sfumato.training.parts import registry
from sfumato.training.preparation import resume
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.start import Start
from sfumato.training.run import finished, refuse_finished


def ended(path: str) -> Run | None:
    """The outcome of a run that had come to its end but for the last moments, which neither key nor data are needed
    for; None for any other."""
    run = RunDirectory(path)
    return read(run) if run.complete() else None


def public_job(path: str, *, trust_code: bool) -> tuple[PublicJob, RunDirectory]:
    """The same for a run of `sfumato pretrain`."""
    run = RunDirectory(path)
    if not is_public(run):
        raise SfumatoError(f"{path} holds a private run", f"resume it with sfumato train {path}")
    record = _unfinished(run)
    training = PublicTraining.from_dict(record)
    if training.settings.norms.normalisation is not None:
        raise SfumatoError(
            f"the run in {path} is one of normalisation {training.settings.norms.normalisation}",
            "give the command that began it again, with its `directory`: it goes on",
        )
    source = source_of(path, record, trust_code=trust_code)
    return pretraining.prepare(source, training, start=Start.of(run, request=record["request"])), run


def job(
    path: str,
    *,
    trust_code: bool,
    named: str | None = None,
    own: OwnCode = OwnCode(),  # noqa: B008 - frozen
    source: Any = None,
) -> tuple[PrivateJob, RunDirectory]:
    """Read the data and build the model that the run in `path` began with.

    Args:
        trust_code, named: whether a function by which the record names code may be called, or its name.
        own: the objects that the run began with.
        source: its data, where they were given from Python in place of a spelling.
    """
    run = RunDirectory(path)
    run.require()
    if is_public(run):
        verb = "embed" if "embedding" in run.read_json(names.SETTINGS) else "pretrain"
        raise SfumatoError(
            f"{path} was trained without privacy", f"resume it with sfumato {verb} {path}, if it is not finished"
        )
    record = _unfinished(run)
    with run.as_written():
        plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
        settings = Settings.from_dict(record["settings"])
        refuse_searched(record, path)
        known: dict[str, Any] = {"trust_code": trust_code, "named": named, "own": own, "source": source}
        source = users.kept_for(source_of(path, record, **known), plan)
        facts = Circumstances.from_dict(record["circumstances"])
        start = Start.of(run, request=record["request"], search=facts.search)
        options = registry.recorded(record, path)
    return prepare(own, source, plan, settings, start, **options), run


def refuse_searched(record: Mapping[str, Any], path: str) -> None:
    """Refuse to go on with a run whose data a search has divided."""
    if set(record["request"]) - {"source", as_recipe.OPTIONS}:
        remedy = "give the command of the search again: it goes on"
        raise SfumatoError(f"the run in {path} is part of a search", remedy)


def _unfinished(run: RunDirectory) -> Mapping[str, Any]:
    """The record of an unfinished training of a classifier."""
    refuse_finished(run)
    run.refuse_own_loop("run its code again, which goes on, or call `finish()` there")
    record = run.read_json(names.SETTINGS)
    if "embedding" in record:
        raise SfumatoError(f"{run.path} holds a training of embeddings", f"resume it with sfumato embed {run.path}")
    return record


def source_of(
    path: str,
    record: Mapping[str, Any],
    *,
    trust_code: bool = True,
    named: str | None = None,
    own: OwnCode = OwnCode(),  # noqa: B008 - frozen
    source: Any = None,
) -> Source:
    """The source that a run's record names, read again; refused where data or code were objects and are not given.

    Args:
        trust_code, named, own, source: as for `job`.
    """
    request: dict[str, Any] = record["request"].get("source", {})
    _refuse_missing(path, record, own, source=source is not None or bool(request))
    if not trust_code:
        remedy = "if you trust that code, give `trust_code`, or name it: `model={}`"
        models.trusted(record["settings"]["model"], named, where=f"the run in {path}", remedy=remedy)
    if source is None:
        return open_source(**request, owner_key=owner_key())
    return (
        source if isinstance(source, Source) else open_source(source, owner_key=owner_key(), **_declared(path, record))
    )


def _declared(path: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run has declared of data from Python: the numbers of its plan, but for those that it has read."""
    plan = PrivacyPlan.from_dict(RunDirectory(path).read_json(names.PLAN))
    declared = dict(zip(("examples", "users"), users.declared_by(plan), strict=True))
    read = record["circumstances"]["read"]
    return {"zoom": record["settings"]["zoom"]} | {name: one for name, one in declared.items() if name not in read}


def _refuse_missing(path: str, record: Mapping[str, Any], own: OwnCode, *, source: bool) -> None:
    """Refuse a run whose code or data were objects of the caller's that are not given, or were none that are."""
    needed = {*record["code"], *(["model"] if record["settings"]["model"] == "module" else [])}
    missing = sorted(needed - own.given) + ([] if source else ["source"])
    if missing:
        raise SfumatoError(
            f"the run in {path} was begun from Python with objects that only its own code can build: "
            f"{', '.join(missing)}",
            "run that code again, which resumes the run, or end it there: "
            f"sfumato.finish({path!r}, {', '.join(f'{name}=...' for name in missing)})",
        )
    if others := sorted(own.given - needed):
        raise SfumatoError(f"the run in {path} has no {' or '.join(others)} of its caller's own", "leave it out")


def finish(
    directory: str | os.PathLike[str],
    *,
    model: nn.Module | str | None = None,
    loss: Loss | None = None,
    optimizer: Makes | None = None,
    source: Any = None,
    trust_code: bool = False,
) -> Run:
    """End an unfinished run of `train` with what its last checkpoint holds, as `sfumato finish` does.

    Args:
        directory: of the run.
        model: where the run trains an object of the caller's own, that or its like; where it trains what a function of
            one's own builds, that function's name, as in "package:function".
        loss, optimizer: where they are objects of the caller's own, these or their like.
        source: the data, where the run was given some from Python in place of a spelling.
        trust_code: run the function of one's own that the run names, whatever its name.

    **Guarantee.** The statement gives the epsilon of the whole plan, however many steps were taken: stopping early
    saves nothing, as the moment may have been chosen by looking at the data (`sfumato.Stop` says more).

    Errors: `SfumatoError` for a finished run, and for code or data other than the run began with.
    """
    place = str(directory)
    if (done := ended_already(place)) is not None:
        return done
    own = OwnCode(model=model if isinstance(model, nn.Module) else None, loss=loss, optimizer=optimizer)
    named = model if isinstance(model, str) else None
    return finish_early(*job(place, trust_code=trust_code, named=named, own=own, source=source))


def ended_already(path: str) -> Run | None:
    """The outcome of a run that had come to its end but for the last moments; None for one that had not.

    Errors: `SfumatoError` for a finished run.
    """
    if (done := ended(path)) is not None:
        return done
    if RunDirectory(path).finished:
        raise SfumatoError(
            f"the run in {path} is finished",
            f"measure it (sfumato evaluate {path} SOURCE), write its page (sfumato report {path}) or check it "
            f"(sfumato verify {path})",
        )
    return None


def finish_early(job: PrivateJob, run: RunDirectory) -> Run:
    """End an unfinished run with what its last checkpoint holds. The statement is the whole plan's all the same."""
    run.require()
    refuse_finished(run)
    with Ledger(run / names.LEDGER) as ledger:
        sweep(run.path)
        refuse_finished(run)
        resume.compare(job, run, going_on=False)
        checkpoint = resume.own_checkpoint(run, ledger, resume.paid_steps(ledger, job, run))
        outcome = take_none(job, checkpoint)
        resume.went_on(run, job.record(run.identity), checkpoint.step, checkpoint.step)
        Rows(run).begin(checkpoint.step, job.steps)
        statement = conclude(job, run, ledger, outcome)
    return finished(job, run, statement, outcome)
