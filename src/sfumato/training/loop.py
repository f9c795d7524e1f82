"""A run from beginning to end: all side effects of training are here.

The order of things is the guarantee's other half. A ledger line is written before its release is computed; a checkpoint
is written only between steps, after the ledger is safe on disk; every draw is a function of (key, step), so a step that
is taken again after a kill releases the same thing again, and is paid once.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import models, optim
from sfumato._checks import SfumatoError
from sfumato._files import writing
from sfumato.averaging import EMA
from sfumato.privacy import Ledger, PrivacyPlan
from sfumato.randomness import DiceKey, Noise, Sampler
from sfumato.runs import directory as names
from sfumato.runs import pins, uses
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import RunDirectory
from sfumato.training.evaluate import Score, score, score_of
from sfumato.training.inputs import Inputs, OnFeatures, features
from sfumato.training.job import Job
from sfumato.training.progress import Progress, Silence
from sfumato.training.settings import Settings
from sfumato.training.step import PrivateStep, descend

CHECKPOINT_SECONDS = 15.0
EVALUATIONS = 12
FACTOR = "factor"
"""What a group of an optimizer's parameters calls its share of the learning rate."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where the steps have led.

    Args:
        step: how many were taken.
        weights: parameters and buffers of the model to release: averaged where the run averages.
        seconds: time spent in this process.
    """

    step: int
    weights: dict[str, Tensor]
    seconds: float


def check(job: Job) -> None:
    """Refuse here what the first step would refuse, before there is a run."""
    views = job.views
    job.source.shown(views)
    if views.count > 1 and job.source.cache is None and not (views.moves or views.flip or job.gradient.draws):
        raise SfumatoError(
            f"views is {views.count}, but all views of an image would be alike", "give shift, flip or zoom, or one view"
        )
    check_choices(job.module, job.settings, steps=job.plan.steps)
    if not math.isfinite(job.plan.epsilon()):
        raise SfumatoError(
            f"the plan's epsilon is infinite at delta {job.plan.delta!r}, below what the accountant resolves",
            "give a larger delta, such as 1e-8, or more noise",
        )


def check_choices(module: nn.Module, settings: Settings, *, steps: int) -> None:
    """Refuse an optimizer, a schedule or an average that a run of so many steps could not have."""
    optim.schedule(settings.schedule, steps=steps, warmup=settings.warmup)
    optimizer_for(module, settings)
    EMA(settings.ema)


def begin(job: Job, run: RunDirectory) -> None:
    """Lay down a new run: plan, settings, key, the ledger's first line, the checkpoint before the first step."""
    identity = secrets.token_hex(32)
    with run.creating() as fresh:
        fresh.write_json(names.PLAN, job.plan.to_dict())
        fresh.write_json(names.SETTINGS, job.record(identity), private=True)
        job.key.save(fresh / names.DICE_KEY)
        with Ledger(fresh / names.LEDGER) as ledger:
            opening = ledger.append("begin", _opening(job, identity) | {"key_check": job.key.check_value(identity)})
            ledger.sync()
        optimizer = optimizer_for(job.module, job.settings)
        start = Checkpoint.of(0, job.module, _start_of_average(job), optimizer, run=identity, ledger=opening.hash)
        start.save(fresh / names.CHECKPOINT)
        if not (job.source.public or job.candidate):
            uses.record(job.source.materials, identity, job.plan, place=job.place)


def compare(job: Job, run: RunDirectory, *, going_on: bool = True) -> None:
    """Refuse to go on with a run, or to end it, as anything but what it was, naming the difference.

    What only the sums depend on (performance, environment) matters only where more steps are taken: `going_on`.
    """
    recorded = run.read_json(names.SETTINGS)
    present = job.record(recorded.get("run", ""))
    again = "give the options that the run began with, or another `directory`"
    if recorded.get("candidate", False) != job.candidate:
        raise SfumatoError(
            f"the run in {run.path} is {'' if recorded.get('candidate') else 'no '}candidate of a private selection",
            "give the command of the search again, or another `directory`",
        )
    pins.compare("plan", run.read_json(names.PLAN), job.plan.to_dict(), remedy=again)
    for part, remedy in (
        ("data", "give the data that the run began with, unchanged, or another `directory`"),
        ("settings", again),
        ("transform", again),
        ("performance", again),
        ("circumstances", again),
        ("model", "give the model that the run began with, unchanged, or another `directory`"),
        ("environment", "go back to the machine and versions that the run began with, or start another run"),
    ):
        if part in ("performance", "environment") and not going_on:
            continue
        if part not in recorded:
            raise SfumatoError(f"{run / names.SETTINGS} lacks {part}", "restore it from a copy")
        pins.compare(part, recorded[part], present[part], remedy=remedy)


def take_steps(job: Job, run: RunDirectory, ledger: Ledger, *, progress: Progress | None = None) -> Outcome:
    """Take all steps that are still to be taken, beginning at the last checkpoint."""
    progress = progress or Silence()
    began = time.monotonic()
    paid = paid_steps(ledger, job, run)
    refuse_ended(run, ledger, job.plan)
    key = own_key(run, ledger)
    plan, module, device = job.plan, job.module, job.device
    optimizer = optimizer_for(job.module, job.settings)
    checkpoint = own_checkpoint(run, ledger, paid)
    average = checkpoint.restore(module, optimizer, device)
    if paid:
        progress.say(f"going on at step {checkpoint.step} of {plan.steps}; steps paid before: {paid}")
    _forget_rows(run, checkpoint.step)
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    averaging = EMA(job.settings.ema) if job.settings.ema else None
    rate = optim.schedule(job.settings.schedule, steps=plan.steps, warmup=job.settings.warmup)
    sampler = Sampler(plan, key, records=len(job.source.train))
    noise = Noise(plan.mechanism, sensitivity=job.gradient.sensitivity(plan.adjacency), key=key)
    private_step, state = PrivateStep(plan=plan, gradient=job.gradient, noise=noise), checkpoint.noise
    due = evaluation_steps(plan.steps)
    inputs, examine = Inputs(job, progress), None if job.candidate else examiner(job, progress)

    def measure(step: int) -> None:
        if examine is None:
            return
        result = examine(_weights(module, average))
        row = {"step": step, "epsilon": plan.epsilon(steps=step), "learning_rate": optimizer.param_groups[0]["lr"]}
        if average and step == plan.steps:
            row["accuracy_of_last_weights"] = examine(_weights(module, {})).accuracy
        run.append_row(row | result.to_dict())
        progress.advance(step, f"epsilon {row['epsilon']:.2f}, test accuracy {result.accuracy:.1%}")

    progress.begin("training", plan.steps, checkpoint.step)
    saved, saved_at = checkpoint.step, time.monotonic()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for step in range(checkpoint.step, plan.steps):
            if step >= paid:
                ledger.append("release", {"step": step, "plan": plan.fingerprint})
            participants = sampler.draw(step)
            set_rate(optimizer, job.settings.learning_rate * rate(step))
            gradient, state = private_step(step, inputs.micro_batches(key, step, participants), state)
            descend(optimizer, trained, gradient)
            if averaging is not None:
                average = averaging.update(average, trained, step)
            if step + 1 in due:
                measure(step + 1)
            progress.advance(step + 1)
            if time.monotonic() - saved_at > CHECKPOINT_SECONDS or step + 1 == plan.steps:
                with writing(ledger.path):
                    ledger.sync()
                head = ledger.entries[step + 1].hash
                reached = Checkpoint.of(
                    step + 1, module, average, optimizer, run=checkpoint.run, noise=state, ledger=head
                )
                reached.save(run / names.CHECKPOINT)
                saved, saved_at = step + 1, time.monotonic()
    return Outcome(step=saved, weights=_weights(module, average), seconds=time.monotonic() - began)


def examiner(job: Job, progress: Progress) -> Callable[[Mapping[str, Tensor]], Score]:
    """How weights are scored on the test split; with a trunk its features are computed once."""
    shown, test = copy.deepcopy(job.module), job.source.test
    if job.trunk is None:

        def on_images(weights: Mapping[str, Tensor]) -> Score:
            shown.load_state_dict(weights)
            return score(shown, test, job.transform, job.device, loss=job.settings.loss)

        return on_images
    known, labels, head = features(job, test, progress), torch.from_numpy(test.labels), job.trunk.head

    def on_features(weights: Mapping[str, Tensor]) -> Score:
        shown.load_state_dict(weights)
        with torch.inference_mode():
            return score_of(OnFeatures(shown, head)(known).float().cpu(), labels, loss=job.settings.loss)

    return on_features


def take_none(job: Job, run: RunDirectory, ledger: Ledger) -> Outcome:
    """What an unfinished run has reached, without another step."""
    checkpoint = own_checkpoint(run, ledger, paid_steps(ledger, job, run))
    average = checkpoint.restore(job.module, optimizer_for(job.module, job.settings), job.device)
    _forget_rows(run, checkpoint.step)
    return Outcome(step=checkpoint.step, weights=_weights(job.module, average), seconds=0.0)


def paid_steps(ledger: Ledger, job: Job, run: RunDirectory) -> int:
    """How many releases the ledger records; refused unless it began as this job and they are steps 0, 1, 2, ..."""
    remedy = "restore plan.json and ledger.jsonl from a copy, or discard the run"
    opening = dict(ledger.entries[0].body) if ledger.entries else {}
    odd = [
        name
        for name, value in _opening(job, run.read_json(names.SETTINGS)["run"]).items()
        if opening.get(name) != value
    ]
    if odd:
        listing = ", ".join(name.replace("_", " ") for name in odd)
        raise SfumatoError(f"the ledger {ledger.path} began otherwise than this run, in: {listing}", remedy)
    releases = [entry.body for entry in ledger.entries if entry.kind == "release"]
    for step, body in enumerate(releases):
        if body != {"step": step, "plan": job.plan.fingerprint}:
            raise SfumatoError(
                f"release {step} in the ledger {ledger.path} is {dict(body)}, not step {step} of the plan", remedy
            )
    return len(releases)


def own_key(run: RunDirectory, ledger: Ledger) -> DiceKey:
    """The run's key, known by the check value in the ledger's first entry.

    **Guarantee.** Two runs never draw by one key: with a key from elsewhere both releases would have the same noise,
    and their difference would have none.
    """
    key = DiceKey.load(run / names.DICE_KEY)
    found, recorded = key.check_value(run.identity), ledger.entries[0].body.get("key_check")
    if found != recorded:
        raise SfumatoError(
            f"the dice key in {run.path} is of another run: its check value is {found[:16]}, and the ledger began with "
            f"{'none' if recorded is None else recorded[:16]}",
            "restore the run's own key from a copy, end the run with what it has (sfumato finish), or start another",
        )
    return key


def own_checkpoint(run: RunDirectory, ledger: Ledger, paid: int) -> Checkpoint:
    """The run's checkpoint, whose identity and whose place in the ledger must be the run's own."""
    checkpoint = Checkpoint.load(run / names.CHECKPOINT)
    checkpoint.require_run(run.identity)
    if checkpoint.step > paid:
        raise SfumatoError(
            f"the ledger of {run.path} records {paid} steps, fewer than the {checkpoint.step} of its checkpoint",
            "restore ledger.jsonl from a copy: without its lines nobody can say what was spent",
        )
    head = ledger.entries[checkpoint.step].hash
    if checkpoint.ledger != head:
        raise SfumatoError(
            f"the checkpoint of {run.path} was written beside another ledger: after step {checkpoint.step} that one "
            f"stood at {checkpoint.ledger[:16]}, and this one at {head[:16]}",
            "restore ledger.jsonl and checkpoint.safetensors from one copy, or start another run",
        )
    return checkpoint


def refuse_ended(run: RunDirectory, ledger: Ledger, plan: PrivacyPlan) -> None:
    """Refuse more steps to a run whose ledger says that it was ended before its last one."""
    steps = [entry.body["steps_taken"] for entry in ledger.entries if entry.kind == "end"]
    if steps and steps[-1] < plan.steps:
        raise SfumatoError(
            f"the run in {run.path} was being ended after {steps[-1]} of {plan.steps} steps",
            f"complete that (sfumato finish {run.path})",
        )


def _forget_rows(run: RunDirectory, step: int) -> None:
    """Drop what was measured after a checkpoint that the run falls back to."""
    run.write_rows([row for row in run.rows() if row["step"] <= step])


def evaluation_steps(steps: int) -> set[int]:
    """After which steps a run is measured, the last one among them."""
    return set(np.linspace(0, steps, EVALUATIONS + 1).round().astype(int)[1:].tolist())


def optimizer_for(module: nn.Module, choice: Settings) -> torch.optim.Optimizer:
    """The chosen optimizer over the parameters that are trained, the classifier's in a group of their own.

    All other layers take `pretrained_rate` times the learning rate (alpha of Mehta et al. 2022, table 7).
    """
    below = tuple(f"{name}." for name in models.classifier_names(module))
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    groups: list[Any] = list(trained.values())
    if choice.pretrained_rate != 1:
        last = [value for name, value in trained.items() if below and name.startswith(below)]
        rest = [value for name, value in trained.items() if not (below and name.startswith(below))]
        if not (last and rest):
            raise SfumatoError(
                f"pretrained_rate {choice.pretrained_rate} tells the classifier from the layers before it, and the "
                f"model trains {'nothing else' if last else 'no classifier that is known'}",
                "leave it out, or train both",
            )
        groups = [{"params": last, FACTOR: 1.0}, {"params": rest, FACTOR: choice.pretrained_rate}]
    return optim.create(
        choice.optimizer,
        groups,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        weight_decay=choice.weight_decay,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group of parameters this learning rate, times its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(FACTOR, 1.0)


def _start_of_average(job: Job) -> dict[str, Tensor]:
    if not job.settings.ema:
        return {}
    return {name: value.detach().clone() for name, value in job.module.named_parameters() if value.requires_grad}


def _weights(module: nn.Module, average: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**{name: value.detach() for name, value in module.state_dict().items()}, **average}


def _opening(job: Job, identity: str) -> dict[str, Any]:
    """The ledger's first entry: all that the run's sums depend on.

    The ledger may be published, so it binds data and settings by commitments under the run's own secret identity: equal
    fingerprints in two ledgers would show that two runs had the same data.

    **Guarantee.** A copy of an unfinished run goes on as what the run was, or not at all: with another rate, model or
    transform both would be released with the same noise, and their difference would have none.
    """

    def commitment(to: str) -> str:
        return hmac.new(bytes.fromhex(identity), to.encode(), hashlib.sha256).hexdigest()

    decided = (job.settings.to_dict(), job.transform.to_dict(), dict(job.functions), job.source.features, job.candidate)
    return {
        "plan": job.plan.to_dict(),
        "plan_fingerprint": job.plan.fingerprint,
        "data_commitment": commitment(job.source.fingerprint),
        "settings_commitment": commitment(json.dumps(decided, sort_keys=True)),
    }
