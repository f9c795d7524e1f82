"""Training without privacy, on public data: the start of private fine-tuning, and the figure to compare it with.

A type of its own with a loop of its own: nothing here takes a plan, writes a ledger or adds noise, and what comes of it
says that it promises nothing. Source: De et al. 2022, appendix C.3 (pre-training).
"""

from __future__ import annotations

import copy
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import optim
from sfumato._checks import SfumatoError, positive_integer
from sfumato._files import write
from sfumato.averaging import EMA
from sfumato.data import AsStored, Source, Transform, open_source
from sfumato.privacy import NoPromise
from sfumato.randomness import DiceKey, owner_key
from sfumato.report import Facts, page
from sfumato.training import directory as names
from sfumato.training import evaluate, finish, pins, public_records
from sfumato.training.checkpoint import Checkpoint, to_bytes
from sfumato.training.directory import RunDirectory, sweep
from sfumato.training.inputs import viewed
from sfumato.training.loop import CHECKPOINT_SECONDS, check_choices, evaluation_steps, optimizer_for, set_rate
from sfumato.training.losses import LOSSES
from sfumato.training.prepare import build, choose_device, default_threads, origins, transform_for
from sfumato.training.progress import Progress, Silence
from sfumato.training.run import recorded_key, recorded_performance
from sfumato.training.settings import Performance, Settings

KIND = "public training"
MICRO_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class PublicTraining:
    """How a model is trained without privacy.

    Args:
        settings: the same choices as for private training.
        steps: number of steps.
        batch_size: examples in a step: epochs are shuffled and cut into batches of this size.
    """

    settings: Settings
    steps: int
    batch_size: int

    def __post_init__(self) -> None:
        positive_integer("steps", self.steps, remedy="give the number of training steps")
        positive_integer("batch_size", self.batch_size, remedy="give the number of examples in a step")

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return {"settings": self.settings.to_dict(), "steps": self.steps, "batch_size": self.batch_size}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PublicTraining:
        """The training that `to_dict` wrote."""
        return cls(settings=Settings.from_dict(data["settings"]), steps=data["steps"], batch_size=data["batch_size"])


@dataclass(frozen=True, kw_only=True)
class PublicJob:
    """A public training that is to be: everything decided and checked."""

    module: nn.Module
    source: Source
    training: PublicTraining
    performance: Performance
    transform: Transform | AsStored
    key: DiceKey
    model_digest: str
    origins: tuple[str, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return torch.device(self.performance.device)

    @property
    def statement(self) -> NoPromise:
        """That nothing is promised."""
        return NoPromise(published=self.source.published, origins=self.origins, filtered=self.source.filtered)

    def record(self, run: str) -> dict[str, Any]:
        """What settings.json holds."""
        return {
            "run": run,
            "kind": KIND,
            "request": dict(self.request),
            **self.training.to_dict(),
            "performance": self.performance.to_dict(),
            "environment": pins.environment(),
            "data": {
                "kind": self.source.kind,
                "fingerprint": self.source.fingerprint,
                "features": self.source.features,
                "backbone": self.source.backbone,
                "filtered": self.source.filtered,
                "published": self.source.published,
            },
            "transform": self.transform.to_dict(),
            "model": {"function": self.model_digest},
            "origin": {"of the initial weights": list(self.origins)},
        }


@dataclass(frozen=True, kw_only=True)
class PublicRun:
    """A finished public training: where its files are, and how well it does on the test split."""

    directory: Path
    statement: NoPromise
    accuracy: float
    top5: float | None
    seconds: float
    steps: int


def prepare(
    source: Source,
    training: PublicTraining,
    *,
    model: nn.Module | None = None,
    device: str | None = None,
    threads: int | None = None,
    recorded: Performance | None = None,
    key: DiceKey | None = None,
    request: Mapping[str, Any] | None = None,
) -> PublicJob:
    """Everything up to the first step. Refuses data that are not declared public."""
    if not source.public:
        raise SfumatoError(
            f"training without privacy needs public data, and this {source.kind} source is private",
            "declare it public (`public=True`) if it is; train private data with sfumato train",
        )
    if training.batch_size > len(source.train):
        raise SfumatoError(
            f"batch_size must not exceed the number of examples, got {training.batch_size} of {len(source.train)}",
            "give a smaller one",
        )
    device = choose_device(device or (recorded.device if recorded else None))
    threads = threads or (recorded.threads if recorded else default_threads())
    torch.set_num_threads(positive_integer("threads", threads))
    settings = training.settings
    if key is None:
        key = DiceKey.fresh() if settings.seed is None else DiceKey.from_seed(settings.seed, KIND)
    module = build(model, source, settings, key).to(device)
    source.shown(settings.view_rule)
    check_choices(module, settings, steps=training.steps)
    return PublicJob(
        module=module,
        source=source,
        training=training,
        performance=Performance(device=device, threads=threads, micro_batch=MICRO_BATCH),
        transform=transform_for(module, source, settings),
        key=key,
        model_digest=pins.model_digest(module, source.shape),
        origins=origins(source, settings),
        request=request or {},
    )


def execute(job: PublicJob, directory: str | os.PathLike[str], *, progress: Progress | None = None) -> PublicRun:
    """Begin or resume a public training in this directory, take its steps, and write what comes of it."""
    progress, run = progress or Silence(), RunDirectory(directory)
    run.complete()
    if run.finished:
        raise SfumatoError(f"the run in {run.path} is finished", "give another `directory` to train anew")
    if run.exists:
        compare(job, run)
        progress.say(f"resuming the unfinished run in {run.path}")
    else:
        public_records.remember(job.source)
        with run.creating() as fresh:
            identity, optimizer = secrets.token_hex(32), optimizer_for(job.module, job.training.settings)
            fresh.write_json(names.SETTINGS, job.record(identity), private=True)
            job.key.save(fresh / names.DICE_KEY)
            Checkpoint.of(0, job.module, _trained(job.module), optimizer, run=identity).save(fresh / names.CHECKPOINT)
    sweep(run.path)
    began = time.monotonic()
    average = _take_steps(job, run, progress)
    return _conclude(job, run, average, time.monotonic() - began)


def compare(job: PublicJob, run: RunDirectory) -> None:
    """Refuse to go on with a run as anything but what it was, naming the difference."""
    recorded = run.read_json(names.SETTINGS)
    present = job.record(recorded.get("run", ""))
    if recorded.get("kind") != KIND:
        raise SfumatoError(
            f"{run.path} holds a private run", "resume it with sfumato train, or give another `directory`"
        )
    for part in ("data", "transform", "performance", "model", "origin", "environment"):
        pins.compare(part, recorded[part], present[part], remedy="give what the run began with, or another `directory`")
    pins.compare(
        "settings",
        {**recorded["settings"], "steps": recorded["steps"], "batch size": recorded["batch_size"]},
        {**present["settings"], "steps": present["steps"], "batch size": present["batch_size"]},
        remedy="give the options that the run began with, or another `directory`",
    )


def _take_steps(job: PublicJob, run: RunDirectory, progress: Progress) -> dict[str, Tensor]:
    """All steps that are still to be taken; returns the weights to keep."""
    training, settings, module = job.training, job.training.settings, job.module
    key = DiceKey.load(run / names.DICE_KEY)
    optimizer = optimizer_for(job.module, job.training.settings)
    checkpoint, identity = Checkpoint.load(run / names.CHECKPOINT), run.identity
    checkpoint.require_run(identity)
    average = checkpoint.restore(module, optimizer, job.device)
    run.write_rows([row for row in run.rows() if row["step"] <= checkpoint.step])
    averaging = EMA(settings.ema)
    rate = optim.schedule(settings.schedule, steps=training.steps, warmup=settings.warmup)
    due = evaluation_steps(training.steps)
    progress.begin("training without privacy", training.steps, checkpoint.step)
    saved_at = time.monotonic()
    with torch.random.fork_rng(devices=[job.device] if job.device.type == "cuda" else []):
        for step in range(checkpoint.step, training.steps):
            set_rate(optimizer, settings.learning_rate * rate(step))
            torch.manual_seed(key.seed("model", step))
            loss = _descend(job, optimizer, key, step)
            average = averaging.update(average, _trained(module), step)
            if step + 1 in due:
                result = evaluate.score(
                    _with(module, average), job.source.test, job.transform, job.device, loss=settings.loss
                )
                row = {"step": step + 1, "learning_rate": optimizer.param_groups[0]["lr"]}
                run.append_row(row | {"training_loss": loss} | result.to_dict())
                progress.advance(step + 1, f"test accuracy {result.accuracy:.1%}")
            progress.advance(step + 1)
            if time.monotonic() - saved_at > CHECKPOINT_SECONDS or step + 1 == training.steps:
                Checkpoint.of(step + 1, module, average, optimizer, run=identity).save(run / names.CHECKPOINT)
                saved_at = time.monotonic()
    return {**{name: value.detach() for name, value in module.state_dict().items()}, **average}


def _descend(job: PublicJob, optimizer: torch.optim.Optimizer, key: DiceKey, step: int) -> float:
    """One step of the optimizer along the mean gradient of a batch; returns the batch's mean loss."""
    rule = job.training.settings.view_rule
    records = job.source.shown(rule)
    chosen = _batch(job, key, step)
    dice = rule.draw(key.generator("views", step), len(chosen), size=job.source.size)
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    for start in range(0, len(chosen), MICRO_BATCH):
        rows = chosen[start : start + MICRO_BATCH]
        stored = torch.from_numpy(records.take(rows)).to(job.device)
        if job.source.cache is None:
            stored = viewed(stored, dice[start : start + MICRO_BATCH], job.source, rule, job.transform)
        views = stored[:, -rule.count :].flatten(0, 1)
        targets = torch.from_numpy(records.labels[rows]).to(job.device).repeat_interleave(rule.count)
        loss = LOSSES[job.training.settings.loss](job.module(views), targets) * (len(rows) / len(chosen))
        loss.backward()
        total += loss.item()
    if not np.isfinite(total):
        raise SfumatoError(
            f"the loss is {total} at step {step}: training has diverged",
            "give a smaller learning rate, or some warm-up, and another `directory`",
        )
    optimizer.step()
    return total


def _batch(job: PublicJob, key: DiceKey, step: int) -> np.ndarray:
    """The step's piece of its epoch, which is shuffled by a function of (key, epoch)."""
    size, examples = job.training.batch_size, len(job.source.train)
    epoch, place = divmod(step, examples // size)
    return key.generator("epoch", epoch).permutation(examples)[place * size : (place + 1) * size]


def _conclude(job: PublicJob, run: RunDirectory, weights: dict[str, Tensor], seconds: float) -> PublicRun:
    statement = job.statement
    module = _with(job.module, weights)
    settings = job.training.settings
    result = evaluate.evaluation(
        module, job.source.test, job.transform, job.device, job.source.classes, loss=settings.loss
    )
    run.write_json(names.EVALUATION, evaluate.to_dict(result))
    run.write_json(names.STATEMENT, statement.to_dict())
    write(run / names.REPORT, report(run).encode())
    about = finish.model_metadata(settings, job.source, job.transform, statement.to_dict())
    write(run / names.MODEL, to_bytes(finish.on_backbone(job.source, settings, weights), about))
    write(run / names.DONE, b"")
    run.clean()
    return PublicRun(
        directory=run.path,
        statement=statement,
        accuracy=result.accuracy,
        top5=result.top5,
        seconds=seconds,
        steps=job.training.steps,
    )


def is_public(run: RunDirectory) -> bool:
    """Whether a run directory holds public training."""
    return run.exists and run.read_json(names.SETTINGS).get("kind") == KIND


def report(run: RunDirectory) -> str:
    """The run's page, from its files."""
    record = run.read_json(names.SETTINGS)
    training = PublicTraining.from_dict(record)
    return page(
        Facts(
            title=f"{record['data']['kind']}, {training.settings.model}: without privacy",
            statement=run.read_json(names.STATEMENT),
            plan={"privacy": "none", "steps": training.steps, "batch size": training.batch_size},
            environment=record["environment"] | {k: v for k, v in record["performance"].items() if k != "ways"},
            settings=finish.presentable(record["settings"]) | finish.features_of(record),
            metrics=run.rows(),
            evaluation=evaluate.from_dict(run.read_json(names.EVALUATION)),
            public_test=True,
        )
    )


def _trained(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}


def _with(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the module that has these weights in place of its own."""
    copied = copy.deepcopy(module)
    copied.load_state_dict({**module.state_dict(), **weights})
    return copied


def pretrain(
    model: str | nn.Module,
    source: str | Source,
    *,
    directory: str | os.PathLike[str],
    steps: int,
    batch_size: int,
    learning_rate: float,
    public: bool = False,
    optimizer: str = "momentum",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    schedule: str = "constant",
    warmup: int = 0,
    views: int = 1,
    shift: int = 0,
    flip: bool = False,
    zoom: float = 1.0,
    averaging: EMA | None = EMA(),  # noqa: B008 - frozen
    pretrained: str | None = None,
    head: str = "new",
    head_deviation: float | None = None,
    head_bias: float | None = None,
    loss: str = "softmax",
    pretrained_rate: float = 1.0,
    trainable: Sequence[str] = (),
    seed: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> PublicRun:
    """Train without privacy, on public data; an unfinished run in `directory` is resumed.

    Args:
        model: a name (see `sfumato.models`) or a module of one's own, which stays as it is: a copy is trained.
        source: a spelling such as "torchvision:CIFAR100", or an opened `Source`.
        directory: the run directory. `sfumato.train(..., pretrained=directory)` fine-tunes its averaged weights.
        steps: how many.
        batch_size: examples in a step.
        public: the owner's declaration that the records of a source named by its spelling are public.
        averaging: the weights' moving average, or None for the last weights.
        device: where to compute; None for cuda where there is one.
        threads: of the CPU.
        progress: where to report to.

    All other arguments, from `learning_rate` to `seed`, are those of `Settings`.

    **Guarantee.** None. Private data are refused.
    """
    opened = source
    if isinstance(source, str):
        opened = open_source(source, owner_key=owner_key(), public=True if public else None, zoom=zoom)
    settings = Settings(
        model=model if isinstance(model, str) else "module",
        pretrained=pretrained,
        head=head,
        head_deviation=head_deviation,
        head_bias=head_bias,
        loss=loss,
        pretrained_rate=pretrained_rate,
        trainable=trainable,  # type: ignore[arg-type]
        optimizer=optimizer,
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        schedule=schedule,
        warmup=warmup,
        views=views,
        shift=shift,
        flip=flip,
        zoom=zoom,
        ema=averaging.decay if averaging else 0.0,
        seed=seed,
    )
    run = RunDirectory(directory)
    before = torch.get_num_threads()
    try:
        job = prepare(
            opened,  # type: ignore[arg-type]
            PublicTraining(settings=settings, steps=steps, batch_size=batch_size),
            model=None if isinstance(model, str) else model,
            device=device,
            threads=threads,
            recorded=recorded_performance(run),
            key=recorded_key(run),
        )
        return execute(job, run.path, progress=progress)
    finally:
        torch.set_num_threads(before)
