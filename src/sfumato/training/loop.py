"""The training loop of all runs, private or not, with the optimizer, rate and average that their settings name.

The order of operations is part of the guarantee. A step's ledger line commits to the step's release, and is safe on
disk before the release moves the weights or reaches an observer. Checkpoints are written only between steps. Every
random draw is a function of (key, step). So a step that is repeated after a crash releases the same values again, or
nothing, and is paid for once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import _devices, models, optim
from sfumato._checks import SfumatoError
from sfumato.averaging import EMA, Average, LastMean, TrainingOverAggregates
from sfumato.averaging.choices import Averages
from sfumato.experiment.settings import Settings
from sfumato.observers.observer import Observer, Stop
from sfumato.optim.descent import Descent
from sfumato.privacy import Ledger
from sfumato.privacy.ledger import lost_steps
from sfumato.randomness import NoiseState
from sfumato.runs import directory as names
from sfumato.runs import releases
from sfumato.runs.checkpoint import Checkpoint, save_kept
from sfumato.runs.directory import RunDirectory
from sfumato.training.custom import optimizers
from sfumato.training.custom.optimizers import Makes
from sfumato.training.job import Job
from sfumato.training.parts.part import Measure, PaidSteps, Steps
from sfumato.training.preparation import start
from sfumato.training.step import descend
from sfumato.training.workers import ALONE, Workers

CHECKPOINT_SECONDS = 15.0
CHECKPOINT_SHARE = 0.05
"""Largest share of the time spent on checkpoints. Large ones, for example with correlated noise, are written less
often."""
EVALUATIONS = 12


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run's steps.

    Args:
        step: number of steps taken.
        weights: parameters and buffers of the model to release: averaged where the run averages.
        seconds: time spent in this process.
        outputs: the outputs of these weights on the test split (`Measure.outputs`), where already computed.
    """

    step: int
    weights: dict[str, Tensor]
    seconds: float
    outputs: Tensor | None = None


def take_steps(
    job: Job,
    run: RunDirectory,
    steps: Steps,
    checkpoint: Checkpoint,
    *,
    ledger: Ledger | None = None,
    scorer: Measure | None = None,
    observers: Sequence[Observer] = (),
    kept: Collection[int] = (),
    workers: Workers = ALONE,
) -> Outcome:
    """Take all remaining steps, starting from the checkpoint.

    Where a run trains over an aggregate, the trained parameters hold the aggregate while a step's gradient is computed,
    and the last weights when the step updates them (`TrainingOverAggregates` explains why this costs no epsilon).

    Args:
        kept: steps after which the trained parameters are saved permanently.
        ledger: of a private run: one line for each release. Training without privacy has none.
        scorer: measures the weights to release on the test split; None where nobody may see the result.
        observers: receive released values only; one may end the run (`Stop`).
        workers: the processes that take the steps together. Only the leader has ledger, scorer and observers.

    If a repeated step would release something else, all steps paid for since the checkpoint are lost: training
    restarts from the checkpoint and skips them (`releases`).
    """
    began, known = time.monotonic(), {"ledger": ledger, "scorer": scorer, "observers": observers, "kept": kept}
    while (outcome := _steps_from(checkpoint, job, run, steps, workers=workers, **known)) is None:
        checkpoint = Checkpoint.load(run / names.CHECKPOINT)
    return replace(outcome, seconds=time.monotonic() - began)


def _steps_from(
    checkpoint: Checkpoint,
    job: Job,
    run: RunDirectory,
    steps: Steps,
    *,
    ledger: Ledger | None,
    scorer: Measure | None,
    observers: Sequence[Observer],
    kept: Collection[int],
    workers: Workers,
) -> Outcome | None:
    """`take_steps` from one checkpoint; None if a repeated step would release something else."""
    saved_at, pause, outputs, state = time.monotonic(), CHECKPOINT_SECONDS, None, checkpoint.noise
    module, (optimizer, average) = job.module, _restored(job, run, checkpoint)
    averaging, over = average_for(job.settings.averages), training_over(job.settings.averages)
    rate = optim.schedule(job.settings.descent.schedule, steps=max(1, job.steps), warmup=job.settings.descent.warmup)
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    due, lost = evaluation_steps(job.steps), shared_lost_steps(ledger, workers, job.steps)

    def take(step: int, noise: NoiseState) -> tuple[Mapping[str, Tensor | None], NoiseState]:
        with nullcontext() if over is None else over.at_average(trained, average, step):
            models.refresh(module)
            return steps(step, noise)

    def save(reached: int, noise: NoiseState) -> None:
        _save(run, ledger, workers, (reached, module, average, optimizer), identity=checkpoint.run, noise=noise)

    taken = partial(start.take_step, take, steps=steps, alone=workers.count == 1, run=run, save=save)
    stop = workers.broadcast_bool(notify(observers, "on_train_begin", checkpoint.step, job.steps))
    end = checkpoint.step if stop else job.steps
    with _devices.fork_rng(job.device), _devices.deterministic(job.device), _notify_interruptions(observers):
        for step in range(checkpoint.step, end):
            set_rate(optimizer, job.settings.descent.learning_rate * rate(step))
            if step in lost:
                state = _skip_lost(steps, step, state)
            else:
                gradient, state = taken(step, state)
                if not _is_committed(ledger, workers, run, step, gradient, state):
                    return None
                descend(optimizer, trained, gradient)
            average = average if averaging is None else averaging.update(average, trained, step)
            if step + 1 in kept:
                save_kept(run, step + 1, job.released_weights(dict(trained)))
            outputs, stop = None, False
            if scorer is not None and step + 1 in due:
                outputs = scorer.outputs(weights_to_release(module, averaging, average))
                twice = ledger is not None and averaging is not None and step + 1 == job.steps
                row = steps.figures(step + 1) | (_score_last_weights(scorer, module) if twice else {})
                stop = notify(observers, "on_metrics", _row(step + 1, optimizer) | row | scorer.score(outputs))
            stop, now = notify(observers, "on_step_end", step + 1) or stop, time.monotonic()
            said = workers.broadcast({"stop": stop, "save": now - saved_at > pause})
            end = step + 1 if said["stop"] else end
            if said["save"] or step + 1 == end:
                workers.refuse_diverged(trained, step + 1)
                save(step + 1, state)
                pause = pause_after((saved_at := time.monotonic()) - now)
            if step + 1 == end:
                break
    notify(observers, "on_train_end")
    return Outcome(step=end, weights=weights_to_release(module, averaging, average), seconds=0.0, outputs=outputs)


def _is_committed(
    ledger: Ledger | None,
    workers: Workers,
    run: RunDirectory,
    step: int,
    release: Mapping[str, Tensor | None],
    following: NoiseState,
) -> bool:
    """Whether the leader's ledger commits to this release, so that every worker may use it.

    If the ledger commits to another release, all steps paid for since the checkpoint are recorded as lost. Training
    without privacy has no ledger.
    """
    same = True
    if ledger is not None:
        try:
            releases.commit(ledger, step, release, following)
        except releases.OtherReleaseError:
            same = False
            releases.lose(ledger, Checkpoint.load(run / names.CHECKPOINT).step)
    return workers.broadcast_bool(same)


def _skip_lost(steps: Steps, step: int, state: NoiseState) -> NoiseState:
    """The noise state after a lost step. Only private steps can be lost."""
    assert isinstance(steps, PaidSteps)
    return steps.skip_lost(step, state)


def shared_lost_steps(ledger: Ledger | None, workers: Workers, steps: int) -> set[int]:
    """The lost steps of the run, from the leader's ledger."""
    return set(workers.broadcast({"lost": sorted(() if ledger is None else lost_steps(ledger.entries, steps))})["lost"])


def _restored(job: Job, run: RunDirectory, checkpoint: Checkpoint) -> tuple[torch.optim.Optimizer, dict[str, Tensor]]:
    """Restores module, optimizer and average from the checkpoint; returns the optimizer and the average's state."""
    optimizer = optimizer_of(job)
    if job.own.optimizer is None:  # a custom optimizer's initial state is part of the run's digests
        checkpoint.require_optimizer(optimizer, where=str(run.path))
    return optimizer, checkpoint.restore(job.module, optimizer, job.device)


def outcome_at_checkpoint(job: Job, checkpoint: Checkpoint) -> Outcome:
    """The outcome of an unfinished run at its checkpoint, without further steps."""
    average = checkpoint.restore(job.module, optimizer_of(job), job.device)
    weights = weights_to_release(job.module, average_for(job.settings.averages), average)
    return Outcome(step=checkpoint.step, weights=weights, seconds=0.0)


def pause_after(saving: float) -> float:
    """Seconds until the next checkpoint, after one that took `saving` seconds.

    >>> pause_after(0.1), pause_after(3.0)
    (15.0, 60.0)
    """
    return CHECKPOINT_SECONDS * max(1.0, saving / (CHECKPOINT_SHARE * CHECKPOINT_SECONDS))


def evaluation_steps(steps: int) -> set[int]:
    """The steps after which a run is evaluated, including the last one."""
    return set(np.linspace(0, steps, EVALUATIONS + 1).round().astype(int)[1:].tolist())


def weights_to_release(
    module: nn.Module, averaging: Average | None = None, average: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Parameters and buffers to release: where a run averages, the averaged parameters in place of the last ones.

    Buffers are never averaged.
    """
    last = {name: value.detach() for name, value in module.state_dict().items()}
    return last if averaging is None else last | averaging.averaged_weights(average or {})


@contextmanager
def _notify_interruptions(observers: Sequence[Observer]) -> Iterator[None]:
    """Notifies observers if the steps end with an exception."""
    try:
        yield
    except BaseException:
        notify(observers, "on_interrupt")
        raise


def notify(observers: Sequence[Observer], what: str, *known: Any) -> bool:
    """Call this method of all observers. Returns whether one of them ends the run."""
    stop = False
    for observer in observers:
        try:
            getattr(observer, what)(*known)
        except Stop:
            stop = True
    return stop


def _row(step: int, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"step": step, "learning_rate": optimizer.param_groups[0]["lr"]}


def _score_last_weights(scorer: Measure, module: nn.Module) -> dict[str, Any]:
    """The scorer's main figure for the weights without averaging."""
    last = scorer.score(scorer.outputs(weights_to_release(module)))
    return {f"{scorer.figure}_of_last_weights": last[scorer.figure]}


def _save(
    run: RunDirectory,
    ledger: Ledger | None,
    workers: Workers,
    reached: tuple[int, nn.Module, dict[str, Tensor], Any],
    *,
    identity: str,
    noise: NoiseState,
) -> None:
    """Write a checkpoint. The cost of its steps is safe on disk since they were released (`releases.commit`)."""
    noise = workers.gather_state(noise)
    if workers.is_leader:
        head = "" if ledger is None else ledger.step_entry(reached[0]).hash
        Checkpoint.of(*reached, run=identity, noise=noise, ledger=head).save(run / names.CHECKPOINT)


def optimizer_of(job: Job) -> torch.optim.Optimizer:
    """The run's optimizer over its trained parameters."""
    return optimizer_for(job.module, job.settings.descent, job.own.optimizer)


def optimizer_for(module: nn.Module, choice: Descent, own: Makes | None = None) -> torch.optim.Optimizer:
    """The chosen optimizer over the trained parameters.

    All layers but the classifier take `pretrained_rate` times the learning rate (alpha of Mehta et al. 2022, table 7).

    Args:
        own: makes a custom optimizer.
    """
    if own is not None:
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        return optimizers.make_optimizer(own, trained, choice.learning_rate)
    return optim.create(
        choice.optimizer,
        _groups(module, choice),
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        weight_decay=choice.weight_decay,
    )


def _groups(module: nn.Module, choice: Descent) -> list[Any]:
    """The trained parameters, in two parameter groups if the classifier has its own learning rate."""
    below = tuple(f"{name}." for name in models.classifier_names(module))
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if choice.pretrained_rate == 1:
        return list(trained.values())
    last = [value for name, value in trained.items() if below and name.startswith(below)]
    rest = [value for name, value in trained.items() if not (below and name.startswith(below))]
    if not (last and rest):
        raise SfumatoError(
            f"pretrained_rate {choice.pretrained_rate} is for the layers before the classifier, but the model trains "
            f"{'only the classifier' if last else 'no known classifier'}",
            "leave it out, or train both",
        )
    return [{"params": last, optim.FACTOR: 1.0}, {"params": rest, optim.FACTOR: choice.pretrained_rate}]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group, times the group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(optim.FACTOR, 1.0)


def check_choices(module: nn.Module, settings: Settings, *, steps: int, own: Makes | None = None) -> None:
    """Refuse an optimizer, schedule or average that is impossible for this number of steps."""
    settings.check_steps(steps)
    if own is not None:
        optimizers.refuse_unfit(optimizer_for(module, settings.descent, own))
    else:
        # Don't make an optimizer: the first one imports torch's compiler, which takes seconds.
        optim.check_parameters(_groups(module, settings.descent))


def trained_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name, detached."""
    return {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}


def trained_bytes(module: nn.Module) -> int:
    """Bytes of all trained parameters."""
    return sum(value.nbytes for value in trained_parameters(module).values())


def average_for(choice: Averages) -> Average | None:
    """The average of the weights that is released; None without averaging."""
    if choice.aggregate_last is not None:
        return LastMean(choice.aggregate_last)
    average = EMA(choice.ema, choice.ema_form)
    return average if choice.ema else None


def training_over(choice: Averages) -> TrainingOverAggregates | None:
    """The aggregate at which gradients are computed; None for the last weights."""
    average = average_for(choice)
    if choice.aggregate is None or average is None:
        return None
    return TrainingOverAggregates(average=average, start=choice.aggregate_from, restart=bool(choice.aggregate_restart))


def beginning_of_average(job: Job) -> dict[str, Tensor]:
    """The average's state before the first step; empty without averaging."""
    average = average_for(job.settings.averages)
    return {} if average is None else average.begin(trained_parameters(job.module))
