"""A run without privacy: begun or resumed, its steps taken, and what it leaves behind. It has no ledger."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.observers.observer import Observer, Rows, Shown
from sfumato.observers.progress import Progress, Silence
from sfumato.privacy import NoPromise
from sfumato.randomness import RunKey
from sfumato.report import Facts, page
from sfumato.runs import directory as names
from sfumato.runs import pins
from sfumato.runs.checkpoint import Checkpoint, to_bytes
from sfumato.runs.directory import RunDirectory, sweep
from sfumato.runs.heading import Heading
from sfumato.runs.owner import public_records, sentences
from sfumato.runs.run import Measured, card
from sfumato.training.conclusion import finish, run_page
from sfumato.training.descent import beginning_of_average, optimizer_for
from sfumato.training.job import PUBLIC, PublicJob, PublicTraining
from sfumato.training.kind import Kind
from sfumato.training.loop import Outcome, take_steps, weights_of
from sfumato.training.measure import Measure
from sfumato.training.scorer import scorer_of
from sfumato.training.steps import PublicSteps

LAST = "last"
"""What a model file says of its weights where these are not averaged."""
CLASSIFIER = Kind(steps=PublicSteps, scorer=scorer_of)


@dataclass(frozen=True, kw_only=True)
class PublicRun(Measured):
    """A finished public training: where its files are, and how well it does on the test split."""

    directory: Path
    statement: NoPromise
    seconds: float
    steps: int

    def __repr__(self) -> str:
        measured = ", ".join(f"{name} {value}" for name, value in self.measured)
        return f"PublicRun({str(self.directory)!r}: {measured}, without privacy)"

    def _repr_html_(self) -> str:
        return card(str(self.directory), [*self.measured, ("steps", f"{self.steps:,}")], self.statement.sentence)


def execute(
    job: PublicJob,
    directory: str | os.PathLike[str],
    *,
    kind: Kind = CLASSIFIER,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
) -> PublicRun:
    """Begin or resume a public training in this directory, take its steps, and write what comes of it."""
    progress, run = progress or Silence(), RunDirectory(directory)
    run.complete()
    if run.finished:
        raise SfumatoError(f"the run in {run.path} is finished", "give another `directory` to train anew")
    if run.exists:
        compare(job, run)
        progress.report(f"resuming the unfinished run in {run.path}")
    else:
        if (warning := sentences.called_public(job.source)) is not None:
            progress.report(warning)
        public_records.remember(job.source)
        with run.creating() as fresh:
            identity, optimizer = secrets.token_hex(32), optimizer_for(job.module, job.settings.descent)
            fresh.write_json(names.SETTINGS, job.record(identity), private=True)
            job.key.save(fresh / names.RUN_KEY)
            start = Checkpoint.of(0, job.module, beginning_of_average(job), optimizer, run=identity)
            start.save(fresh / names.CHECKPOINT)
    checkpoint = Checkpoint.load(run / names.CHECKPOINT)
    checkpoint.require_run(run.identity)
    sweep(run.path)
    key, told = RunKey.load(run / names.RUN_KEY), progress
    steps, scorer = kind.steps(job, key, told), kind.scorer(job, told)
    looking_on = (Rows(run), Shown(progress, "training without privacy"), *observers)
    outcome = take_steps(job, run, steps, checkpoint, scorer=scorer, observers=looking_on)
    return _conclude(job, run, outcome, scorer)


def compare(job: PublicJob, run: RunDirectory) -> None:
    """Refuse to go on with a run as anything but what it was, naming the difference."""
    recorded = run.read_json(names.SETTINGS)
    present = job.record(recorded.get("run", ""))
    if recorded.get("kind") != PUBLIC:
        raise SfumatoError(
            f"{run.path} holds a private run", "resume it with sfumato train, or give another `directory`"
        )
    remedy, where = "give what the run began with, or another `directory`", str(run.path)
    for part in ("data", "transform", "performance", "origin", *job.further):
        pins.compare(part, recorded.get(part, {}), present[part], remedy=remedy, where=where)
    pins.compare_environment(recorded.get("environment", {}), present["environment"], remedy=remedy, where=where)
    pins.compare_model(recorded, present, where=where)
    pins.compare(
        "settings",
        *({**one["settings"], **_lengths(one)} for one in (recorded, present)),
        remedy="give the options that the run began with, or another `directory`",
        where=str(run.path),
    )


def _lengths(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's record says of its steps."""
    given = {"steps": record["steps"], "batch size": record["batch_size"]}
    return given | ({"clipping norm": record["max_norm"]} if "max_norm" in record else {})


def _conclude(job: PublicJob, run: RunDirectory, outcome: Outcome, scorer: Measure) -> PublicRun:
    statement = job.statement
    result = scorer.evaluation(outcome.weights, outcome.outputs)
    run.write_json(names.EVALUATION, result)
    run.write_json(names.STATEMENT, statement.to_dict())
    write(run / names.REPORT, report(run).encode())
    averaged = job.settings.averages.aggregate or ("ema" if job.settings.averages.ema else None)
    _write_weights(job, run / names.MODEL, outcome.weights, averaged or LAST)
    if averaged is not None:
        _write_weights(job, run / names.LAST_WEIGHTS, weights_of(job.module), LAST)
    write(run / names.DONE, b"")
    run.clean()
    return PublicRun(
        directory=run.path,
        statement=statement,
        figures=result,
        seconds=outcome.seconds,
        steps=job.steps,
    )


def _write_weights(job: PublicJob, path: Path, weights: Mapping[str, Tensor], what: str) -> None:
    """A model file that says which weights it holds: averaged ones, or the last."""
    said = {**job.of_model, "weights": what}
    about = finish.model_metadata(job.settings, job.source, job.transform, job.statement.to_dict(), **said)
    write(path, to_bytes(finish.on_backbone(job.source, job.settings, job.released(dict(weights))), about))


def is_public(run: RunDirectory) -> bool:
    """Whether a run directory holds public training."""
    return run.exists and run.read_json(names.SETTINGS).get("kind") == PUBLIC


def report(run: RunDirectory, *, public: bool = False) -> str:
    """The run's page, from its files."""
    record = run.read_json(names.SETTINGS)
    training, heading = PublicTraining.from_dict(record), Heading.read(run)
    named = f"{record['data']['kind']}, {training.settings.model}"
    return page(
        Facts(
            title=f"{heading.title or named}: without privacy",
            owner=heading.private,
            statement=run.read_json(names.STATEMENT),
            plan={"privacy": "none", **_lengths(record)},
            environment=record["environment"] | {k: v for k, v in record["performance"].items() if k != "ways"},
            settings=run_page.settings_shown(record)
            if "embedding" in record
            else run_page.presentable(record["settings"]) | run_page.backbone_shown(record),
            metrics=run.rows(),
            evaluation=run_page.evaluation_of(run),
            public_test=True,
        ),
        public=public,
    )
