"""Training without privacy on public data, for pre-training before private fine-tuning and for comparison.

Nothing here takes a plan, writes a ledger or adds noise, and the statement says that there is no guarantee. Source: De
et al. 2022, appendix C.3 (pre-training).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from sfumato._checks import SfumatoError
from sfumato._choices import choices_of
from sfumato.averaging import EMA
from sfumato.data import Source, SourceSpec, parse
from sfumato.experiment import defaults
from sfumato.experiment.defaults import fixed_features
from sfumato.experiment.from_keywords import settings_of
from sfumato.experiment.settings import Settings
from sfumato.experiment.to_recipe import request_of
from sfumato.observers.progress import Progress, default_progress, open_with_progress
from sfumato.randomness import RunKey, owner_key
from sfumato.runs.directory import EVALUATION, RunDirectory
from sfumato.training import launch
from sfumato.training.job import MICRO_BATCH, PublicJob, PublicTraining
from sfumato.training.preparation.building import build, origins
from sfumato.training.preparation.prepare import check_machine, common_setup, own_threads
from sfumato.training.preparation.sources import open_data
from sfumato.training.preparation.start import Machine, Start
from sfumato.training.run import PublicRun, execute, execute_in_workers
from sfumato.training.steps import PUBLIC, refuse_running_statistics
from sfumato.training.trial import Trial

_LENGTH = ("steps", "batch_size", "max_norm", "agc")
MODEL_OPTIONS = (
    *("model", "pretrained", "pretrained_weights", "head", "head_deviation", "head_bias", "loss", "trainable"),
    "seed",
)
"""Choices that a private run shares with one without privacy; the others follow its own rules."""


def refuse_private(kind: str) -> NoReturn:
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
    """Prepares everything up to the first step. Refuses data that are not declared public."""
    if not source.public:
        refuse_private(source.kind)
    if training.batch_size > len(source.train):
        raise SfumatoError(
            f"batch_size must not exceed the number of examples, got {training.batch_size} of {len(source.train)}",
            "give a smaller one",
        )
    settings, start = training.settings, Start.given(start, others)
    source.images_for(settings.views)

    def built(key: RunKey) -> nn.Module:
        return build(model, source, settings, key)

    known = common_setup(
        source,
        settings,
        start,
        built,
        kind=PUBLIC,
        steps=training.steps,
        micro_batch=micro_batch(start, training.batch_size),
    )
    refuse_running_statistics(known["module"], launch.current_workers())
    return PublicJob(
        **known,
        batch_size=training.batch_size,
        origins=origins(source, settings),
        max_norm=training.max_norm,
        agc=training.agc,
    )


def micro_batch(start: Start, batch_size: int) -> int:
    """The micro-batch size: as requested, as recorded, or small enough to give every worker one."""
    if start.machine.micro_batch is not None:
        return start.machine.micro_batch
    recorded = start.facts.recorded
    return recorded.micro_batch if recorded else min(MICRO_BATCH, -(-batch_size // launch.current_workers().count))


def decide(given: Mapping[str, Any], source: Source) -> tuple[PublicTraining, list[str]]:
    """The training: given choices, and defaults for the rest. Also returns the reasons for the defaults.

    Args:
        given: fields of `Settings`, `steps`, `batch_size`, `max_norm` and `agc`; None or absent for the default.
    """
    examples, batch_size = len(source.train), given.get("batch_size")
    if batch_size is None:
        batch_size = min(defaults.PUBLIC_BATCH, examples)
    rules = defaults.public_rules(examples, batch_size, defaults.Records.of(source), given)
    values = {name: rule.value for name, rule in rules.items()}
    values |= {name: value for name, value in given.items() if value is not None}
    settings = Settings(**{name: values[name] for name in choices_of(Settings) if name in values})
    training = PublicTraining(
        settings=settings,
        steps=values["steps"],
        batch_size=batch_size,
        max_norm=given.get("max_norm"),
        agc=given.get("agc"),
    )
    return training, defaults.reasons(rules, given)


def refuse_early(given: Mapping[str, Any], spec: SourceSpec) -> None:
    """Refuse, before any data are read, choices that are impossible for all data or for this source."""
    settings = Settings.provisional(given)
    steps = given.get("steps")
    PublicTraining(
        settings=settings,
        steps=1 if steps is None else steps,
        batch_size=1 if given.get("batch_size") is None else given["batch_size"],
    )
    settings.check_steps(steps)
    settings.check_source(spec, given.get("model"))
    if not spec.is_public:
        refuse_private(parse(spec.spec)[0])


def job_of(
    spec: SourceSpec,
    given: Mapping[str, Any],
    run: RunDirectory,
    machine: Machine,
    *,
    notes: Sequence[str],
    progress: Progress,
) -> PublicJob:
    """Prepares a run in this directory; reports the reasons for defaults if it is a new one."""
    refuse_early(given, spec)
    check_machine(machine)
    source = open_with_progress(spec, progress)
    training, reasons = decide(given, source)
    asked = {name: given.get(name) for name in (*choices_of(Settings), *_LENGTH, "seed")}
    request = request_of(spec, asked, machine)
    job = prepare(source, training, start=Start.for_run(run, machine=machine, request=request))
    if not run.exists:
        for line in (*notes, *reasons):
            progress.report(line)
    return job


@own_threads()
def pretrain(
    model: str | nn.Module,
    source: Any,
    *,
    directory: str | os.PathLike[str],
    steps: int,
    batch_size: int,
    settings: Settings | None = None,
    averaging: EMA | None = EMA(),  # noqa: B008 - frozen
    progress: Progress | None = None,
    **choices: Any,
) -> PublicRun:
    """Train without privacy, on public data; an unfinished run in `directory` is resumed. Processes of torchrun take
    the steps together.

    Args:
        model: a name (see `sfumato.models`) or your own module, of which a copy is trained.
        source: a spelling such as "torchvision:CIFAR100", an opened `Source`, or data from Python (`open_source`).
        directory: the run directory. `sfumato.train(..., pretrained=directory)` fine-tunes its averaged weights, or
            with `pretrained_weights="last"` the last ones.
        steps, batch_size: number of steps, and of examples in a step.
        settings: the settings of model and training.
        averaging: the weights' moving average, or None for the last weights; with aggregate="uta", which releases the
            mean of the last weights, leave it out.
        progress: where to report progress.
        choices: fields of `Settings` in place of `settings`, and

            max_norm: L2 norm to which a step's mean gradient is clipped; None for no clipping.

            agc: largest norm of each unit's mean gradient relative to its weights' (adaptive gradient clipping).

            public: the owner's declaration that the records of a source named by its spelling are public.

            device, threads, micro_batch: performance.

            observers: additional observers.

    **Guarantee.** None. Private data are refused.
    """
    machine = Machine(**{name: choices.pop(name, None) for name in ("device", "threads", "micro_batch")})
    public, observers = choices.pop("public", False), choices.pop("observers", ())
    length: dict[str, Any] = {"steps": steps, "batch_size": batch_size}
    length |= {name: choices.pop(name, None) for name in ("max_norm", "agc")}
    own, name = (model, "module") if isinstance(model, nn.Module) else (None, model)
    zoom = settings.augmentation.zoom if settings is not None else choices.get("zoom") or 1.0
    source = open_data(source, public=True if public else None, zoom=zoom)
    if isinstance(source, str):
        spec = SourceSpec(spec=source, public=True if public else None, zoom=zoom)
        refuse_early({**settings_of(settings, name, averaging, choices).flat(), **length}, spec)
        check_machine(machine)
        source = spec.open(owner_key())
    settings = settings_of(settings, name, averaging, choices, source)
    run = RunDirectory(directory)
    training = PublicTraining(settings=settings, **length)

    def job() -> PublicJob:
        return prepare(source, training, model=own, start=Start.for_run(run, machine=machine))

    return execute_in_workers(job, run, progress=default_progress(progress), observers=observers)


def nonprivate_accuracy(trial: Trial, model: str, place: Path, progress: Progress) -> float:
    """The accuracy of a private trial's model trained without privacy, in this place, by the rules of sfumato pretrain.

    Args:
        model: its name, that of the rule where the trial chose none.
    """
    run = RunDirectory(place)
    if not run.finished:
        if not run.exists:
            run.require_free()
        spec = replace(trial.spec, examples=None, zoom=None)
        given = {name: getattr(trial.experiment, name) for name in MODEL_OPTIONS} | {"model": model}
        if (fixed := fixed_features(model)) is not None:  # a head on fixed features, as on those of a cache
            given |= {"learning_rate": fixed.public_rate, "schedule": "cosine", "shift": 0, "flip": False}
        machine = replace(trial.machine, micro_batch=None)
        execute(job_of(spec, given, run, machine, notes=trial.notes, progress=progress), run, progress=progress)
    return run.read_json(EVALUATION)["accuracy"]
