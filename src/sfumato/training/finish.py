"""The end of a run: evaluation, statement, report, model, the ledger's last line, done marker, key deletion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato._files import write, writing
from sfumato.data import AsStored, Source, Transform
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan, PrivateSelection, Statement
from sfumato.report import Evaluation, Facts, page
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import METADATA, backbone_of, to_bytes
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.training import evaluate
from sfumato.training.job import PrivateJob
from sfumato.training.loop import Outcome
from sfumato.training.origins import trained_on
from sfumato.training.scorer import Scorer
from sfumato.training.settings import Settings


def conclude(
    job: PrivateJob,
    run: RunDirectory,
    ledger: Ledger,
    outcome: Outcome,
    *,
    scorer: Scorer | None = None,
    selection: PrivateSelection | None = None,
) -> Statement:
    """Write what the run leaves behind. Killed at any point and called again, it writes the same bytes again.

    Args:
        scorer: what the run was measured by, where there is one already.
        selection: the private selection that the run has won, which its statement then speaks for.
    """
    if job.candidate and selection is None:
        raise SfumatoError(
            f"the run in {run.path} is a candidate of a private selection, whose promise alone covers it",
            "give the command of the search again",
        )
    early = outcome.step < job.plan.steps
    facts = replace(job.circumstances, steps_taken=outcome.step if early else None)
    statement = Statement(plan=job.plan, circumstances=facts, selection=selection)
    result = (scorer or Scorer(job)).evaluation(outcome.weights, outcome.outputs)
    run.write_json(names.EVALUATION, evaluate.to_dict(result), private=True)
    run.write_json(names.STATEMENT, statement.to_dict())
    write(run / names.REPORT, report(run).encode(), private=True)
    about = model_metadata(job.settings, job.source, job.transform, statement.to_dict())
    write(run / names.MODEL, to_bytes(on_backbone(job.source, job.settings, outcome.weights), about))
    _close(ledger, run, outcome.step)
    write(run / names.DONE, b"")
    run.clean()
    return statement


def _close(ledger: Ledger, run: RunDirectory, steps: int) -> None:
    """The ledger's last line, written once: it binds the model file and the statement."""
    last = {
        "steps_taken": steps,
        "model": file_hash(run / names.MODEL),
        "statement": file_hash(run / names.STATEMENT),
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
    settings: Settings, source: Source, transform: Transform | AsStored, statement: Mapping[str, Any]
) -> dict[str, str]:
    """What the model file says of itself: how to build and feed the model, its statement, and (under the owner's key)
    what stands behind it that was trained on without privacy."""
    own = {source.material} if statement["epsilon"] is None else set()
    cache = None if source.cache is None else source.cache.contents
    about: dict[str, Any] = {
        "format": models.FORMAT,
        "model": settings.model,
        "classes": list(source.classes),
        "channels": source.channels,
        "size": source.size,
        "transform": transform.to_dict(),
        "loss": settings.loss,
        "statement": dict(statement),
        "trained_on": sorted(own.union(trained_on(source, settings))),
        "test_fraction": source.test_fraction,
    }
    if cache is not None:
        about["features"] = {name: getattr(cache, name) for name in ("width", "digest", "backbone")}
        if cache.transform is not None and settings.model != "module":
            about["transform"] = dict(cache.transform)
    return {METADATA: json.dumps(about, sort_keys=True)}


def report(run: RunDirectory, *, public: bool = False) -> str:
    """The run's page, from its files."""
    record = run.read_json(names.SETTINGS)
    statement = run.read_json(names.STATEMENT)
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    facts = Circumstances.from_dict(record["circumstances"])
    choices = dict(record["settings"])
    return page(
        Facts(
            title=f"{record['data']['kind']}, {choices['model']}",
            statement=statement,
            plan=plan_table(plan, record.get("clock", {})),
            environment=record["environment"] | {k: v for k, v in record["performance"].items() if k != "ways"},
            settings=presentable(choices) | backbone_shown(record),
            metrics=run.rows(),
            evaluation=_evaluation(run),
            public_test=facts.test_public,
        ),
        public=public,
    )


def _evaluation(run: RunDirectory) -> Evaluation | None:
    return evaluate.from_dict(run.read_json(names.EVALUATION)) if (run / names.EVALUATION).exists() else None


def plan_table(plan: PrivacyPlan, clock: Mapping[str, str]) -> dict[str, Any]:
    """The plan's numbers, the derived ones among them.

    Args:
        clock: by which each record's own time stamp decides its step, as it was declared; empty where none does.
    """
    return {
        "unit": plan.unit.name,
        "adjacency": plan.adjacency,
        "examples N": plan.population,
        "participation": plan.participation.name,
        **plan.participation.facts(plan.population),
        **clock,
        "steps T": plan.steps,
        "expected epochs": plan.expected_epochs,
        "mechanism": plan.mechanism.name,
        "noise multiplier": plan.noise_multiplier,
        **({} if plan.mechanism.independent else {"copies kept by the noise": plan.mechanism.buffers(plan.steps)}),
        "clipping norm C": plan.max_norm,
        "delta": plan.delta,
        "fingerprint": plan.fingerprint,
    }


def backbone_shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """Whose features a run was trained on, for its page."""
    name = record["data"].get("backbone")
    return {} if name is None else {"features of": name}


def presentable(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a page that may be published: no path, no seed."""
    shown = {name: value for name, value in choices.items() if value is not None}
    if shown.get("pretrained") not in (None, "timm"):
        shown["pretrained"] = "weights from a file"
    if "seed" in shown:
        shown["seed"] = "chosen by the user"
    return shown
