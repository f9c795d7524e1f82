"""Training without privacy, on public data: the start of private fine-tuning, and the figure to compare it with.

A type of its own: nothing here takes a plan, writes a ledger or adds noise, and what comes of it says that it promises
nothing. Source: De et al. 2022, appendix C.3 (pre-training).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato._choices import choices_of
from sfumato._files import write
from sfumato.averaging import EMA
from sfumato.data import Source, SourceSpec, parse
from sfumato.experiment import defaults
from sfumato.experiment.keywords import settings_of
from sfumato.experiment.settings import Performance, Settings
from sfumato.observers.notebook import shown
from sfumato.observers.observer import Observer, Rows, Shown
from sfumato.observers.progress import Progress, Silence, read_source
from sfumato.privacy import NoPromise
from sfumato.randomness import RunKey, owner_key
from sfumato.report import Facts, page
from sfumato.runs import directory as names
from sfumato.runs import pins
from sfumato.runs.card import card
from sfumato.runs.checkpoint import Checkpoint, to_bytes
from sfumato.runs.directory import RunDirectory, sweep
from sfumato.runs.heading import Heading
from sfumato.runs.owner import public_records, sentences
from sfumato.runs.run import Measured
from sfumato.training.conclusion import finish, run_page
from sfumato.training.descent import beginning_of_average, check_choices, optimizer_for
from sfumato.training.job import PUBLIC, PublicJob, PublicTraining
from sfumato.training.kind import Kind
from sfumato.training.loop import Outcome, take_steps, weights_of
from sfumato.training.measure import Measure
from sfumato.training.preparation import beforehand
from sfumato.training.preparation.building import build, transform_for
from sfumato.training.preparation.origins import origins
from sfumato.training.preparation.prepare import check_machine, first_key, own_threads, settled_on
from sfumato.training.preparation.start import Machine, Start, recorded_key, recorded_performance
from sfumato.training.scorer import scorer_of
from sfumato.training.steps import PublicSteps

MICRO_BATCH = 256
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


def decide(given: Mapping[str, Any], source: Source) -> tuple[PublicTraining, list[str]]:
    """How to train: what was asked for by name, the rest by rule; and why the rest is what it is.

    Args:
        given: fields of `Settings`, `steps`, `batch_size` and `max_norm`; None, or absent, for what follows a rule.
    """
    examples, batch_size = len(source.train), given.get("batch_size")
    if batch_size is None:
        batch_size = min(defaults.PUBLIC_BATCH, examples)
    rules = defaults.public_rules(
        examples,
        batch_size,
        given=given,
        size=source.size,
        channels=source.channels,
        cached=source.cached_views,
        texts=source.tokens is not None,
        multilabel=source.multilabel,
    )
    values = {name: rule.value for name, rule in rules.items()}
    values |= {name: value for name, value in given.items() if value is not None}
    settings = Settings(**{name: values[name] for name in choices_of(Settings) if name in values})
    training = PublicTraining(
        settings=settings, steps=values["steps"], batch_size=batch_size, max_norm=given.get("max_norm")
    )
    return training, defaults.reasons(rules, given)


def refuse_at_once(given: Mapping[str, Any], spec: SourceSpec) -> None:
    """Refuse, before any data are read, what none could be trained by, or not the source of this spelling."""
    settings = beforehand.settings_of(given)
    steps = given.get("steps")
    PublicTraining(
        settings=settings,
        steps=1 if steps is None else steps,
        batch_size=1 if given.get("batch_size") is None else given["batch_size"],
    )
    beforehand.check_settings(settings, steps=steps, model=given.get("model"), spec=spec)
    if not spec.is_public:
        refuse_private(parse(spec.spec)[0])


def job_of(
    spec: SourceSpec,
    given: Mapping[str, Any],
    run: RunDirectory,
    *,
    device: str | None,
    threads: int | None,
    notes: Sequence[str],
    progress: Progress,
) -> PublicJob:
    """Everything up to the first step of a training in this directory, with the reasons reported where it begins."""
    refuse_at_once(given, spec)
    check_machine(Machine(device=device, threads=threads))
    source = read_source(spec, progress)
    training, reasons = decide(given, source)
    job = prepare(
        source,
        training,
        device=device,
        threads=threads,
        recorded=recorded_performance(run),
        key=recorded_key(run),
        request={"source": spec.record()},
    )
    if not run.exists:
        for line in (*notes, *reasons):
            progress.report(line)
    return job


def refuse_private(kind: str) -> None:
    """Refuse data of this kind of source that are not declared public."""
    raise SfumatoError(
        f"training without privacy needs public data, and this {kind} source is private",
        "declare it public (`public=True`) if it is; train private data with sfumato train",
    )


def prepare(
    source: Source,
    training: PublicTraining,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    **others: Any,
) -> PublicJob:
    """Everything up to the first step. Refuses data that are not declared public."""
    if not source.public:
        refuse_private(source.kind)
    if training.batch_size > len(source.train):
        raise SfumatoError(
            f"batch_size must not exceed the number of examples, got {training.batch_size} of {len(source.train)}",
            "give a smaller one",
        )
    start = Start.given(start, others)
    device, threads = settled_on(start)
    settings = training.settings
    key = start.unfinished.key or first_key(settings, PUBLIC)
    module = build(model, source, settings, key).to(device)
    source.images_for(settings.views)
    check_choices(module, settings, steps=training.steps)
    return PublicJob(
        module=module,
        source=source,
        settings=settings,
        steps=training.steps,
        batch_size=training.batch_size,
        max_norm=training.max_norm,
        performance=Performance(device=device, threads=threads, micro_batch=MICRO_BATCH),
        transform=transform_for(module, source, settings),
        key=key,
        functions={"function": pins.model_digest(module, source.form.synthetic(2))},
        origins=origins(source, settings),
        request=start.context.request,
    )


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


@own_threads()
def pretrain(
    model: str | nn.Module,
    source: str | Source,
    *,
    directory: str | os.PathLike[str],
    steps: int,
    batch_size: int,
    max_norm: float | None = None,
    settings: Settings | None = None,
    public: bool = False,
    averaging: EMA | None = EMA(),  # noqa: B008 - frozen
    device: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
    **choices: Any,
) -> PublicRun:
    """Train without privacy, on public data; an unfinished run in `directory` is resumed.

    Args:
        model: a name (see `sfumato.models`) or a module of one's own, which stays as it is: a copy is trained.
        source: a spelling such as "torchvision:CIFAR100", or an opened `Source`.
        directory: the run directory. `sfumato.train(..., pretrained=directory)` fine-tunes its averaged weights; with
            `pretrained_weights="last"` the last ones, which lie beside them.
        steps, batch_size: how long, and how many examples in a step.
        max_norm: to which norm a step's mean gradient is clipped; None for no clipping.
        settings: the choices that shape the model.
        public: the owner's declaration that the records of a source named by its spelling are public.
        averaging: the weights' moving average, or None for the last weights; with aggregate="uta", which releases the
            mean of the last weights, leave it out.
        device, threads: performance.
        progress: where to report to.
        observers: further ones who look on.
        choices: fields of `Settings` in place of `settings`.

    **Guarantee.** None. Private data are refused.
    """
    own = isinstance(model, nn.Module)
    if isinstance(source, str):
        zoom = settings.augmentation.zoom if settings is not None else choices.get("zoom") or 1.0
        spec = SourceSpec(spec=source, public=True if public else None, zoom=zoom)
        chosen = settings_of(settings, "module" if own else model, averaging, choices)
        refuse_at_once({**chosen.flat(), "steps": steps, "batch_size": batch_size}, spec)
        check_machine(Machine(device=device, threads=threads))
        source = spec.open(owner_key())
    settings = settings_of(settings, "module" if own else model, averaging, choices, source)
    run = RunDirectory(directory)
    job = prepare(
        source,
        PublicTraining(settings=settings, steps=steps, batch_size=batch_size, max_norm=max_norm),
        model=model if own else None,
        device=device,
        threads=threads,
        recorded=recorded_performance(run),
        key=recorded_key(run),
    )
    return execute(job, run.path, progress=shown(progress), observers=observers)
