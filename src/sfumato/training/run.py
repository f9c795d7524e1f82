"""Training from Python: begin, resume, finish, and load what came of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sfumato import models
from sfumato._checks import SfumatoError, parse_json
from sfumato.averaging import EMA
from sfumato.data import TEST_FRACTION, AsStored, Picture, Source, Transform, open_source, preparation
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan, PrivateSelection, Statement
from sfumato.randomness import DiceKey, owner_key
from sfumato.training import directory as names
from sfumato.training import finish, loop, public_records, uses
from sfumato.training.checkpoint import METADATA, read_safetensors
from sfumato.training.directory import RunDirectory, sweep
from sfumato.training.loop import Job
from sfumato.training.losses import probabilities
from sfumato.training.prepare import prepare, trained_on
from sfumato.training.progress import Progress, Silence
from sfumato.training.settings import Performance, Settings


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A trained model with what belongs to it.

    Args:
        module: in evaluation mode, on the CPU.
        transform: from images to its inputs: `transform.read(path)` or `transform(uint8 array (N, H, W, C))`.
        classes: the names of its outputs.
        statement: what its training promised, as in statement.json.
        loss: the name of the loss that it was trained by, which says what its logits mean.
        features: of a head that was trained on a cache: the width and the digest of its backbone's features.
        test_fraction: the share of the test part, where the keyed hash split the records that it was trained on.
    """

    module: nn.Module
    transform: Transform | AsStored
    classes: tuple[str, ...]
    statement: Mapping[str, Any]
    loss: str = "softmax"
    features: Mapping[str, Any] | None = None
    test_fraction: float = TEST_FRACTION

    def on(self, source: Source) -> tuple[nn.Module, Transform | AsStored]:
        """The module and the preparation for the records of this source, images or features.

        Errors: `SfumatoError` for other classes than the model's, and for features that it was not trained on.
        """
        for label, (there, here) in enumerate(zip_longest(source.classes, self.classes, fillvalue="no class")):
            if there != here:
                raise SfumatoError(
                    f"label {label} of the source means {there!r}, and of the model {here!r}",
                    "give a source with the classes of the model, in their order (`classes`)",
                )
        if source.cache is None:
            return self.module, self.transform
        contents = source.cache.contents
        known = self.features or {}
        if (known.get("width"), known.get("digest")) != (contents.width, contents.digest):
            raise SfumatoError(
                f"the features in {source.cache.path} are not of the backbone that the model was trained on",
                "give those of the same backbone, or images",
            )
        if isinstance(self.module, models.OnBackbone):
            return self.module.on_features(), AsStored(width=contents.width)
        return self.module, AsStored(width=contents.width)

    def predict(self, images: Picture | Sequence[Picture], *, batch: int = 64) -> torch.Tensor:
        """Probabilities (N, classes), on the CPU, of one image or of several.

        Args:
            images: paths, bytes, open binary files, images of Pillow, or arrays: whatever `transform.read` takes; or
                one array (N, H, W, C).
            batch: so many at a time.
        """
        listed: list[Any] = [images] if _is_one(images) else list(images)  # type: ignore[arg-type]
        device = next((parameter.device for parameter in self.module.parameters()), torch.device("cpu"))
        parts = []
        with torch.inference_mode():
            for start in range(0, len(listed), batch):
                inputs = torch.stack([self.transform.read(image) for image in listed[start : start + batch]])
                parts.append(probabilities(self.module(inputs.to(device)), self.loss).cpu())
        return torch.cat(parts) if parts else torch.zeros(0, len(self.classes))


def _is_one(images: Picture | Sequence[Picture]) -> bool:
    """Whether this is a single image, and no list of them."""
    if isinstance(images, np.ndarray):
        return images.ndim == 2 or (images.ndim == 3 and images.shape[2] in (1, 3))
    return isinstance(images, (str, os.PathLike, bytes)) or not isinstance(images, Iterable) or hasattr(images, "read")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run.

    Args:
        directory: where its files are.
        statement: what it promised.
        accuracy: on the test split; a private figure unless the data are public.
        top5: how often the right class is among the five likeliest there, private likewise; None with five classes or
            fewer.
        seconds: time spent on training in this process.
        steps: how many steps were taken.
        kind: of the source: "digits", "folder", ...
        uses: how many runs of this owner, this one among them, have used the data; 0 for public data.
        together: (epsilon, delta) of all of them by composition; None where this run is the only one.
    """

    directory: Path
    statement: Statement
    accuracy: float
    top5: float | None
    seconds: float
    steps: int = 0
    kind: str = ""
    uses: int = 0
    together: tuple[float, float] | None = None

    def load(self, model: nn.Module | str | None = None) -> Loaded:
        """The trained model; give the module itself where the run trained an object of your own, or the name of the
        function that built it."""
        return load(self.directory, model=model)


def train(
    model: str | nn.Module,
    source: str | Source,
    plan: PrivacyPlan,
    *,
    directory: str | os.PathLike[str],
    learning_rate: float,
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
    micro_batch: int | None = None,
    progress: Progress | None = None,
) -> Run:
    """Train privately by a plan; an unfinished run in `directory` is resumed.

    Args:
        model: a name (see `sfumato.models`) or a module of one's own, which stays as it is: a copy is trained.
        source: a spelling such as "folder:pictures", or an opened `Source`.
        plan: everything that decides epsilon; its `examples` must be the source's.
        directory: the run directory.
        averaging: the weights' moving average, or None for the last weights.
        device: where to compute; None for cuda where there is one.
        threads: of the CPU. Like the device and `micro_batch` they don't change the promise.
        micro_batch: examples that are in memory at a time.
        progress: where to report to.

    All other arguments, from `learning_rate` to `seed`, are those of `Settings`.

    **Guarantee.** The released model has the plan's (epsilon, delta) for the plan's unit and adjacency, with the
    exceptions that `run.statement.not_covered` lists. See `PrivateStep` and `PrivacyPlan`.

    Errors: `SfumatoError`, before anything is spent, for whatever is refused.
    """
    if isinstance(source, str):
        source = open_source(source, owner_key=owner_key(), examples=plan.examples, zoom=zoom)
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
            None if isinstance(model, str) else model,
            source,
            plan,
            settings,
            device=device,
            threads=threads,
            micro_batch=micro_batch,
            recorded=recorded_performance(run),
            key=recorded_key(run),
        )
        return execute(job, run, progress=progress)
    finally:
        torch.set_num_threads(before)


def recorded_performance(run: RunDirectory) -> Performance | None:
    """What an unfinished run has pinned; None where there is no run."""
    return Performance.from_dict(run.read_json(names.SETTINGS)["performance"]) if run.exists else None


def recorded_key(run: RunDirectory) -> DiceKey | None:
    """The dice key of an unfinished run; None where it is lost: more steps are then refused, an early end is not."""
    try:
        return DiceKey.load(run / names.DICE_KEY)
    except SfumatoError:
        return None


def execute(job: Job, run: RunDirectory, *, progress: Progress | None = None) -> Run:
    """Begin or resume a run, take its steps, and conclude it."""
    progress = progress or Silence()
    if run.complete():  # it was cut at its very end: only its outcome is missing
        loop.compare(job, run, going_on=False)
        return read(run)
    if run.exists:
        refuse_finished(run)
        loop.compare(job, run)
        progress.say(f"resuming the unfinished run in {run.path}")
    else:
        earlier = earlier_plans(job)
        if earlier:
            progress.say(uses.told(earlier, job.plan))
        for note in public_records.unlisted(job.source, trained_on(job.source, job.settings)):
            progress.say(note)
        loop.begin(job, run)
    with Ledger(run / names.LEDGER) as ledger:
        refuse_finished(run)  # it may have ended while this process prepared itself
        sweep(run.path)
        outcome = loop.take_steps(job, run, ledger, progress=progress)
        if not all(value.isfinite().all() for value in outcome.weights.values()):
            progress.say("note: the weights are no longer finite numbers: training has diverged; give a smaller rate")
        progress.say("evaluating, and writing the model and its page")
        statement = finish.conclude(job, run, ledger, outcome)
    return _finished(job, run, statement, outcome)


def earlier_plans(job: Job) -> list[uses.Use]:
    """The plans of this owner's runs on the same private data so far; none for public data, which need no list."""
    return [] if job.source.public else uses.plans(job.source.materials, place=job.place)


def refuse_finished(run: RunDirectory) -> None:
    """A finished run stays as it is; another one on the same data costs more privacy and needs a place of its own."""
    run.complete()
    if run.finished:
        raise SfumatoError(
            f"the run in {run.path} is finished", "give another `directory` to train anew; privacy costs of both add up"
        )


def finish_early(job: Job, run: RunDirectory) -> Run:
    """End an unfinished run with what its last checkpoint holds. The statement is the whole plan's all the same."""
    run.require()
    refuse_finished(run)
    with Ledger(run / names.LEDGER) as ledger:
        sweep(run.path)
        refuse_finished(run)
        loop.compare(job, run, going_on=False)
        outcome = loop.take_none(job, run, ledger)
        statement = finish.conclude(job, run, ledger, outcome)
    return _finished(job, run, statement, outcome)


def _finished(job: Job, run: RunDirectory, statement: Statement, outcome: loop.Outcome) -> Run:
    used = earlier_plans(job)
    result = run.read_json(names.EVALUATION)
    return Run(
        directory=run.path,
        statement=statement,
        accuracy=result["accuracy"],
        top5=result["top5"],
        seconds=outcome.seconds,
        steps=outcome.step,
        kind=job.source.kind,
        uses=len(used),
        together=uses.together(used) if len(used) > 1 else None,
    )


def read(run: RunDirectory) -> Run:
    """A finished run, from its files."""
    run.require_finished()
    written, result = run.read_json(names.STATEMENT), run.read_json(names.EVALUATION)
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    selection = PrivateSelection.from_dict(written["selection"]) if "selection" in written else None
    return Run(
        directory=run.path,
        statement=Statement(
            plan=plan, circumstances=Circumstances.from_dict(written["circumstances"]), selection=selection
        ),
        accuracy=result["accuracy"],
        top5=result["top5"],
        seconds=0.0,
        steps=written["steps_taken"],
        kind=run.read_json(names.SETTINGS)["data"]["kind"],
    )


def load(directory: str | os.PathLike[str], *, model: nn.Module | str | None = None) -> Loaded:
    """The model of a finished run.

    Args:
        directory: the run directory, or its model.safetensors alone (the file says how to build the model).
        model: where the run trained an object of the caller's own, the module to fill. Where it trained what a function
            of one's own builds, or has the features of such, that function's name, as in "package:function": a file may
            come from anybody, so what it names is never imported on its own word.
    """
    named = model if isinstance(model, str) else None
    if named is not None and models.is_own(named):
        models.function_of(named)
    with models.away_from_working_directory():
        path = Path(directory)
        if path.is_dir() or not path.exists():
            RunDirectory(path).require_finished()
            path = path / names.MODEL
        weights, metadata = read_safetensors(path)
        about = _about(path, metadata)
        if model is None and about["model"] == "module":
            raise SfumatoError(
                f"{path} was trained from a module that only its own code can build", "pass it: load(run, model=module)"
            )
        if not isinstance(model, nn.Module):
            with torch.random.fork_rng(devices=[]):
                model = _built(about, named, path)
        return _filled(model, weights, about, path)


def _about(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What a model file says of itself."""
    try:
        about = parse_json(metadata[METADATA])
        if about["format"] != finish.FORMAT:
            raise SfumatoError(f"{path} was written by another version of sfumato", "train it again with this one")
    except SfumatoError:
        raise
    except (KeyError, ValueError, TypeError):
        about = {}
    missing = {"model", "classes", "channels", "size", "transform", "statement", "test_fraction"} - set(about)
    if missing:
        raise SfumatoError(f"{path} is no model of sfumato", "name a run directory or its model file")
    return about


def _filled(model: nn.Module, weights: dict[str, torch.Tensor], about: Mapping[str, Any], path: Path) -> Loaded:
    """The module with the weights of a file, and what belongs to it."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise SfumatoError(
            f"the weights of {path} do not fit the model ({first})", "pass the model of the run"
        ) from None
    model.eval()
    return Loaded(
        module=model,
        transform=preparation(about["transform"]),
        classes=tuple(about["classes"]),
        statement=about["statement"],
        loss=about.get("loss", "softmax"),
        features=about.get("features"),
        test_fraction=about["test_fraction"],
    )


def _built(about: Mapping[str, Any], named: str | None, path: Path) -> nn.Module:
    """The model that a file speaks of, with untrained weights; `named` is what its user calls it."""
    features, classes = about.get("features"), len(about["classes"])

    def trusted(spelling: str) -> str:
        return models.trusted(
            spelling,
            named,
            where=path,
            remedy="if you trust that code, name it: `model={0}`",
        )

    if features is None:
        spelling = named if named and about["model"] == "module" else trusted(about["model"])
        return models.create(spelling, classes=classes, channels=about["channels"], size=about["size"])
    known = features["backbone"]
    if known is not None:
        trusted(known["name"])
    backbone = None if known is None else models.build_backbone(models.Architecture(**known))
    return models.create_head(about["model"], classes=classes, width=features["width"], backbone=backbone)
