"""The end of a run: evaluation, statement, report, model, the ledger's last line, done marker, key deletion."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato._files import write, writing
from sfumato.data import Preparation, Source
from sfumato.evaluation import accuracy
from sfumato.experiment.settings import Settings
from sfumato.models.losses import exclusive
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan, PrivateSelection, Quantile, Statement, User, detections
from sfumato.privacy.statements.other_units import of_person
from sfumato.report import (
    RATES,
    Attack,
    EmbeddingEvaluation,
    Evaluation,
    Facts,
    MultilabelEvaluation,
    Published,
    page,
)
from sfumato.runs import directory as names
from sfumato.runs import kept
from sfumato.runs.checkpoint import METADATA, backbone_of, read_safetensors, to_bytes
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.runs.figures import published
from sfumato.runs.figures.noisy_figures import NoisyFigures
from sfumato.runs.heading import Heading
from sfumato.runs.owner import uses
from sfumato.training.job import PrivateJob
from sfumato.training.loop import Measure, Outcome
from sfumato.training.parts.over_steps import over_steps
from sfumato.training.parts.published import released as release
from sfumato.training.preparation import resume
from sfumato.training.preparation.origins import trained_on
from sfumato.training.scorer import Scorer, scorer_of

PERSONS = (2, 5, 10)
"""For persons with so many images a page gives epsilon, where the promise is for single ones."""
OF_CLASSIFIERS = (
    *("head", "loss", "class_prevalence", "pretrained_rate"),
    *("views", "shift", "flip", "zoom", "crop_area"),
)
"""Settings that a training of embeddings has no use for."""


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
    early = outcome.step < job.plan.steps
    released = models.renewed(job.module, outcome.weights)
    lying = kept.files(run)
    reached = tuple(step for step in job.circumstances.kept if step <= outcome.step and step in lying)
    kept.drop_others(run, reached)
    scorer = scorer or scorer_of(job)
    outputs = scorer.outputs(released) if outcome.outputs is None else outcome.outputs
    temperature, figures = _calibrated(job, run, ledger, outcome.step, released, scorer)
    facts = replace(
        job.circumstances,
        steps_taken=outcome.step if early else None,
        kept=reached,
        figures=None if figures is None else figures.table,
    )
    statement = Statement(plan=job.plan, circumstances=facts, selection=selection)
    result = scorer.evaluation(released, outputs if temperature is None else outputs / temperature)
    if reached and isinstance(scorer, Scorer) and exclusive(job.settings.objective.loss):
        result |= _over_steps(job, run, scorer, released, outputs, reached)
    run.write_json(names.EVALUATION, result, private=True)
    run.write_json(names.STATEMENT, statement.to_dict())
    write(run / names.REPORT, report(run).encode(), private=True)
    further = job.of_model if temperature is None else {**job.of_model, "temperature": temperature}
    about = model_metadata(job.settings, job.source, job.transform, statement.to_dict(), **further)
    weights = on_backbone(job.source, job.settings, job.released(released))
    write(run / names.MODEL, to_bytes(weights, about))
    _close(ledger, run, outcome.step, reached)
    write(run / names.DONE, b"")
    run.clean()
    return statement


def _calibrated(
    job: PrivateJob, run: RunDirectory, ledger: Ledger, step: int, released: Mapping[str, Tensor], scorer: Measure
) -> tuple[float | None, NoisyFigures | None]:
    """The temperature of the model that is released, and its published figures, where these were asked for."""
    temperature, table, loss = None, job.circumstances.figures, job.settings.objective.loss
    if job.calibration is not None:
        temperature = job.calibration.temperature(
            job.module, released, job.transform, loss=loss, device=job.performance.device
        )
    if table is None or not isinstance(scorer, Scorer):
        return temperature, None
    figures = release(
        table,
        run,
        ledger,
        step,
        scorer.outputs_alone(released),
        torch.from_numpy(job.source.test.labels),
        classes=job.source.classes,
        loss=loss,
        temperature=temperature,
        key=resume.key_if_any(run, ledger),
    )
    return (figures.temperature if figures and table.temperature else temperature), figures


def _over_steps(
    job: PrivateJob,
    run: RunDirectory,
    scorer: Scorer,
    released: Mapping[str, Tensor],
    outputs: Tensor,
    reached: Collection[int],
) -> dict[str, Any]:
    """How much accuracy and scores vary over the weights that the run kept, for its page."""
    each = {step: read_safetensors(kept.place(run, step))[0] for step in sorted(reached)}
    found = over_steps(job, scorer, released, outputs, each)
    return {} if found is None else {"over_steps": asdict(found)}


def _close(ledger: Ledger, run: RunDirectory, steps: int, reached: Collection[int]) -> None:
    """The ledger's last line, written once: it binds the model file and the statement."""
    last = {
        "steps_taken": steps,
        "model": file_hash(run / names.MODEL),
        "statement": file_hash(run / names.STATEMENT),
        **({"kept": kept.hashes(run, reached)} if reached else {}),
        **({published.ENTRY: file_hash(run / names.FIGURES)} if published.recorded(ledger.entries) else {}),
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


def report(run: RunDirectory, *, public: bool = False) -> str:
    """The run's page, from its files."""
    record = run.read_json(names.SETTINGS)
    statement = run.read_json(names.STATEMENT)
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    facts = Circumstances.from_dict(record["circumstances"])
    choices, heading = dict(record["settings"]), Heading.read(run)
    promised = _promised(statement, plan)
    return page(
        Facts(
            title=heading.title or f"{record['data']['kind']}, {choices['model']}",
            # The page has an attacker's curve in place of the statement's own bounds, which are weaker.
            statement=statement | {"plain": promised.remarks},
            attack=_attack(promised),
            owner=heading.private,
            together=[] if facts.data_public or public else _together(record, plan),
            plan=plan_table(plan, record.get("clock", {})),
            environment=record["environment"] | {k: v for k, v in record["performance"].items() if k != "ways"},
            settings=settings_shown(record),
            metrics=run.rows(),
            evaluation=evaluation_of(run),
            public_test=facts.test_public,
            published=None if promised.circumstances.figures is None else published_of(run),
            **_persons(record, plan),
        ),
        public=public,
    )


def _promised(written: Mapping[str, Any], plan: PrivacyPlan) -> Statement:
    """The statement as it follows from what the run has written down."""
    selection = PrivateSelection.from_dict(written["selection"]) if "selection" in written else None
    return Statement(plan=plan, circumstances=Circumstances.from_dict(written["circumstances"]), selection=selection)


def _attack(promised: Statement) -> Attack:
    """What an attacker can find out at most."""
    return Attack(
        detections=detections(promised.selection or promised.plan, RATES),
        delta=promised.plan.delta,
        subject=promised.covered,
        others=promised.words.others,
        question=promised.words.used,
    )


def _together(record: Mapping[str, Any], plan: PrivacyPlan) -> list[str]:
    """What all runs of the owner's on these data come to by now: private, as their number is."""
    data, places = record["data"], uses.places_of(record)
    materials = [data[name] for name in ("material", "pixels") if data.get(name)]
    try:
        known = {"places": places, "users": record.get("assignment", "")}
        used, odd = uses.plans(materials, **known), uses.named_otherwise(materials, **known)
        released = uses.figures(materials, places=places)
    except SfumatoError as error:
        return [f"What your runs on these data cost together is not known: {error.problem}."]
    apart = [f"{uses.told_apart(odd, 'other')}."] if odd else []
    return [*uses.sentences(used, plan), *apart, *uses.of_figures(released)]


def settings_shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's record has to say of the model and its training."""
    choices = presentable(dict(record["settings"]))
    clients: dict[str, Any] = dict(record.get("embedding", {}))
    if not clients:
        return images_shown(record) | choices | backbone_shown(record)
    own, local = {name: choices[name] for name in choices if name not in OF_CLASSIFIERS}, clients.pop("local", {})
    renamed = {"count": "clients", "far": "false accept rate"}
    own |= {renamed.get(name, name): value for name, value in clients.items()}
    return own | {f"client {name.replace('_', ' ')}": value for name, value in local.items() if value is not None}


def images_shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """How large the images were that the model saw, for its page: a fact that is declared, or named as read."""
    data, tokens = record["data"], record["circumstances"].get("tokens")
    if tokens or data.get("features") or not data.get("size"):
        return {}
    colours = "grey" if data["channels"] == 1 else "colour"
    return {"images": f"middle squares at {data['size']} x {data['size']} pixels, {colours}"}


def evaluation_of(run: RunDirectory) -> Evaluation | MultilabelEvaluation | EmbeddingEvaluation | None:
    """How a run did, as it has written down; None where that is not known yet."""
    if not (run / names.EVALUATION).exists():
        return None
    data = run.read_json(names.EVALUATION)
    if "labels" in data:
        return MultilabelEvaluation.from_dict(data)
    return EmbeddingEvaluation.from_dict(data) if "recall" in data else accuracy.from_dict(data)


def published_of(run: RunDirectory) -> Published | None:
    """The figures that a run has published, for its page; None where it has not."""
    found = published.read(run)
    if found is None:
        return None
    return Published(
        epsilon=found.table.epsilon,
        records=found.records,
        accuracy=found.accuracy,
        per_class=found.per_class,
        auc=found.auc,
        majority=found.majority,
        roc={name: found.roc(name) for name in found.auc},
        error=found.calibration_error,
        bands=found.reliability,
        temperature=found.temperature,
    )


def _persons(record: Mapping[str, Any], plan: PrivacyPlan) -> dict[str, Any]:
    """What a run of single examples promises persons with several, where the data say whose each one is."""
    most = record.get("most_of_one_user")
    if most is None:
        return {}
    counts = [count for count in PERSONS if count <= plan.population]
    return {"persons": [of_person(plan, count) for count in counts], "most_of_one": of_person(plan, most)}


def person_with_most(directory: Path) -> tuple[int, float] | None:
    """How many images the person with the most has in a run of single examples, and that person's epsilon: private."""
    run = RunDirectory(directory)
    most = run.read_json(names.SETTINGS).get("most_of_one_user")
    return None if most is None else of_person(PrivacyPlan.from_dict(run.read_json(names.PLAN)), most)


def _drawn(plan: PrivacyPlan) -> str:
    """What coins are tossed for."""
    if plan.unit.drawn == "examples":
        return "examples"
    return "groups" if isinstance(plan.unit, User) and plan.unit.grouped else "users"


def plan_table(plan: PrivacyPlan, clock: Mapping[str, str]) -> dict[str, Any]:
    """The plan's numbers, the derived ones among them.

    Args:
        clock: by which each record's own time stamp decides its step, as it was declared; empty where none does.
    """
    of_users: dict[str, Any] = {}
    if isinstance(plan.unit, User):
        kept = "all" if plan.unit.at_most is None else plan.unit.at_most
        of_users = {"users": plan.users, "examples per user, at most": kept, "drawn": plan.unit.drawn}
    return {
        "unit": plan.unit.name,
        **of_users,
        "adjacency": plan.adjacency,
        f"{_drawn(plan)} N": plan.population,
        "participation": plan.participation.name,
        **plan.participation.facts(plan.population),
        **clock,
        "steps T": plan.steps,
        "expected epochs": plan.expected_epochs,
        "mechanism": plan.mechanism.name,
        "noise multiplier": plan.noise_multiplier,
        **({} if plan.mechanism.independent else {"copies kept by the noise": plan.mechanism.buffers(plan.steps)}),
        **_clipping(plan),
        "delta": plan.delta,
        "fingerprint": plan.fingerprint,
    }


def _clipping(plan: PrivacyPlan) -> dict[str, Any]:
    clipping = plan.clipping
    if not isinstance(clipping, Quantile):
        return {"clipping norm C": plan.max_norm}
    return {
        "clipping norm C, at first": plan.max_norm,
        "C follows the quantile": clipping.quantile,
        "noise in the count below C": clipping.count_noise,
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
    if "public_data" in shown:
        shown["public_data"] = "a public source"
    if "seed" in shown:
        shown["seed"] = "chosen by the user"
    return shown
