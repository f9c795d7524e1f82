"""The end of a run: evaluation, statement, page, model, the ledger's last line, done marker, key deletion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato._files import write, writing
from sfumato.data import Preparation, Source
from sfumato.experiment.settings import Settings
from sfumato.privacy import Ledger, PrivateSelection, Statement
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import METADATA, backbone_of, to_bytes
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.training.conclusion.run_page import report
from sfumato.training.job import PrivateJob
from sfumato.training.loop import Outcome
from sfumato.training.measure import Measure
from sfumato.training.parts.part import Ending
from sfumato.training.preparation import resume
from sfumato.training.preparation.origins import trained_on
from sfumato.training.scorer import scorer_of


def conclude(
    job: PrivateJob,
    run: RunDirectory,
    ledger: Ledger,
    outcome: Outcome,
    *,
    scorer: Measure | None = None,
    selection: PrivateSelection | None = None,
) -> Statement:
    """Write what the run leaves behind. Killed at any point and called again, it writes the same bytes again.

    Args:
        scorer: what the run was measured by; by default a classifier's (`scorer_of`).
        selection: the private selection that the run has won, which its statement then speaks for.
    """
    if job.candidate and selection is None:
        raise SfumatoError(
            f"the run in {run.path} is a candidate of a private selection, whose promise alone covers it",
            "give the command of the search again",
        )
    released = models.renewed(job.module, outcome.weights)
    scorer = scorer or scorer_of(job)
    early = outcome.step < job.plan.steps
    ending = Ending(
        source=job.source,
        plan=job.plan,
        settings=job.settings,
        transform=job.transform,
        module=job.module,
        device=job.performance.device,
        run=run,
        ledger=ledger,
        key=resume.key_if_any(run, ledger),
        step=outcome.step,
        released=released,
        outputs=scorer.outputs(released) if outcome.outputs is None else outcome.outputs,
        scorer=scorer,
        circumstances=replace(job.circumstances, steps_taken=outcome.step if early else None),
    )
    for part in job.parts:
        part.end(ending)
    statement = Statement(plan=job.plan, circumstances=ending.circumstances, selection=selection)
    outputs, temperature = ending.outputs, ending.temperature
    result = scorer.evaluation(released, outputs if temperature is None else outputs / temperature)
    run.write_json(names.EVALUATION, result | ending.evaluation, private=True)
    run.write_json(names.STATEMENT, statement.to_dict())
    write(run / names.REPORT, report(run).encode(), private=True)
    further = job.of_model if temperature is None else {**job.of_model, "temperature": temperature}
    about = model_metadata(job.settings, job.source, job.transform, statement.to_dict(), **further)
    weights = on_backbone(job.source, job.settings, job.released(released))
    write(run / names.MODEL, to_bytes(weights, about))
    _close(ledger, run, outcome.step, ending.bound)
    write(run / names.DONE, b"")
    run.clean()
    return statement


def _close(ledger: Ledger, run: RunDirectory, steps: int, bound: Mapping[str, Any]) -> None:
    """The ledger's last line, written once: it binds the model file, the statement, and what parts have to bind."""
    last = {
        "steps_taken": steps,
        "model": file_hash(run / names.MODEL),
        "statement": file_hash(run / names.STATEMENT),
        **bound,
    }
    ends = [entry for entry in ledger.entries if entry.kind == "end"]
    if not ends:
        ledger.append("end", last)
    elif dict(ends[-1].body) != last:
        raise SfumatoError(
            f"the ledger of {run.path} ends with another model than this run computes", "restore the run from a copy"
        )
    with writing(ledger.path):
        ledger.sync()


def on_backbone(source: Source, settings: Settings, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the model to release: a head that was trained on a cache stands on the cache's backbone."""
    if source.cache is None or source.cache.contents.backbone is None or settings.model == "module":
        return weights
    return {f"backbone.{name}": value for name, value in backbone_of(source.cache).items()} | weights


def model_metadata(
    settings: Settings,
    source: Source,
    transform: Preparation,
    statement: Mapping[str, Any],
    **further: Any,
) -> dict[str, str]:
    """What the model file says of itself: how to build and feed the model, its statement, and (under the owner's key)
    what stands behind it that was trained on without privacy."""
    own = {source.stored_digest} if statement["epsilon"] is None else set()
    cache = None if source.cache is None else source.cache.contents
    about: dict[str, Any] = {
        "format": models.FORMAT,
        "model": settings.model,
        "classes": list(source.classes),
        **({"channels": source.channels, "size": source.size} if source.tokens is None else {}),
        "transform": transform.to_dict(),
        "loss": settings.objective.loss,
        "statement": dict(statement),
        "trained_on": sorted(own.union(trained_on(source, settings))),
        "test_fraction": source.test_fraction,
    }
    if source.user_from is not None:
        about["user_from"] = source.user_from
    if settings.norms.normalisation is not None:
        about["normalisation"] = settings.norms.normalisation
    about |= further
    if cache is not None:
        about["features"] = {name: getattr(cache, name) for name in ("width", "digest", "backbone")}
        if cache.transform is not None and settings.model != "module":
            about["transform"] = dict(cache.transform)
    return {METADATA: json.dumps(about, sort_keys=True)}
