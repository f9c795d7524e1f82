"""The only loop: whatever a run's steps are, private or not, they are taken here.

The order of things is the guarantee's other half. A step's line in the ledger commits to what the step releases, and is
safe on disk before the release moves the weights or is seen by an observer; a checkpoint is written only between steps;
every draw is a function of (key, step). So a step that is taken again after a kill releases the same thing again, or
nothing, and is paid once.
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
from sfumato._files import writing
from sfumato.averaging import Average
from sfumato.observers.observer import Observer, Stop
from sfumato.privacy import Ledger
from sfumato.privacy.ledger import lost_steps
from sfumato.randomness import NoiseState
from sfumato.runs import directory as names
from sfumato.runs import kept as kept_weights
from sfumato.runs import releases
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import RunDirectory
from sfumato.training.descent import average_for, optimizer_of, set_rate, training_over
from sfumato.training.job import Job
from sfumato.training.parts.part import Measure, PaidSteps, Steps
from sfumato.training.preparation import start
from sfumato.training.step import descend
from sfumato.training.workers import ALONE, Workers

CHECKPOINT_SECONDS = 15.0
CHECKPOINT_SHARE = 0.05
"""Of the time, for checkpoints at most: large ones, as those that hold correlated noise, are written more seldom."""
EVALUATIONS = 12


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where the steps have led.

    Args:
        step: how many were taken.
        weights: parameters and buffers of the model to release: averaged where the run averages.
        seconds: time spent in this process.
        outputs: of these weights for the test split, where they are known already (`Measure.outputs`).
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
    """Take all steps that are still to be taken, beginning at the checkpoint.

    Where a run trains over an aggregate, the trained parameters hold it while a step's gradient is computed, and the
    last weights again before they are moved (`TrainingOver`, which says why that costs no epsilon).

    Args:
        kept: after which steps the trained parameters are written down for good.
        ledger: of a private run: one line for each release. Training without privacy has none.
        scorer: measures the weights to release on the test split; None where nobody may see that.
        observers: are told of released values only; one may end the run (`Stop`).
        workers: who take the steps together. Those that don't lead have neither ledger, scorer nor observers.

    A step that is taken again and would release something else is lost with all that were paid after the checkpoint:
    the steps begin again there, and go on behind what is paid (`releases`).
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
    """The same from a checkpoint on; None where a step would release something else than before."""
    saved_at, pause = time.monotonic(), CHECKPOINT_SECONDS
    module, state, outputs = job.module, checkpoint.noise, None
    optimizer, average = _restored(job, run, checkpoint)
    averaging, over = average_for(job.settings.averages), training_over(job.settings.averages)
    rate = optim.schedule(job.settings.descent.schedule, steps=max(1, job.steps), warmup=job.settings.descent.warmup)
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    due, lost = evaluation_steps(job.steps), _lost_steps(ledger, workers, job.steps)

    def take(step: int, noise: NoiseState) -> tuple[Mapping[str, Tensor | None], NoiseState]:
        with nullcontext() if over is None else over.held(trained, average, step):
            models.refresh(module)
            return steps(step, noise)

    def save(reached: int, noise: NoiseState) -> None:
        _save(run, ledger, workers, (reached, module, average, optimizer), identity=checkpoint.run, noise=noise)

    taken = partial(start.taken, take, steps=steps, alone=workers.count == 1, run=run, save=save)
    end = checkpoint.step if workers.agreed(tell(observers, "begin", checkpoint.step, job.steps)) else job.steps
    with _devices.own_randomness(job.device), _devices.repeatable(job.device), _looked_on(observers):
        for step in range(checkpoint.step, end):
            set_rate(optimizer, job.settings.descent.learning_rate * rate(step))
            if step in lost:
                state = _passed(steps, step, state)
            else:
                gradient, state = taken(step, state)
                if not _committed(ledger, workers, run, step, gradient, state):
                    return None
                descend(optimizer, trained, gradient)
            average = average if averaging is None else averaging.update(average, trained, step)
            if step + 1 in kept:
                _keep(run, job.released(dict(trained)), ledger, step + 1)
            outputs, stop = None, False
            if scorer is not None and step + 1 in due:
                outputs = scorer.outputs(weights_of(module, averaging, average))
                twice = ledger is not None and averaging is not None and step + 1 == job.steps
                row = steps.figures(step + 1) | (_of_last_weights(scorer, module) if twice else {})
                stop = tell(observers, "scored", _row(step + 1, optimizer) | row | scorer.score(outputs))
            stop, now = tell(observers, "stepped", step + 1) or stop, time.monotonic()
            said = workers.said({"stop": stop, "save": now - saved_at > pause})
            end = step + 1 if said["stop"] else end
            if said["save"] or step + 1 == end:
                workers.refuse_apart(trained, step + 1)
                save(step + 1, state)
                pause = pause_after((saved_at := time.monotonic()) - now)
            if step + 1 == end:
                break
    tell(observers, "ended")
    return Outcome(step=end, weights=weights_of(module, averaging, average), seconds=0.0, outputs=outputs)


def _committed(
    ledger: Ledger | None,
    workers: Workers,
    run: RunDirectory,
    step: int,
    release: Mapping[str, Tensor | None],
    following: NoiseState,
) -> bool:
    """Whether the leader's ledger commits to a step's release, so that every worker may use it; where it commits to
    another one, the steps paid since the checkpoint are written down as lost. Steps without a promise have no ledger.
    """
    same = True
    if ledger is not None:
        try:
            releases.commit(ledger, step, release, following)
        except releases.OtherReleaseError:
            same = False
            releases.lose(ledger, Checkpoint.load(run / names.CHECKPOINT).step)
    return workers.agreed(same)


def _passed(steps: Steps, step: int, state: NoiseState) -> NoiseState:
    """The noise's state after a step that is paid and lost: only steps of a plan are."""
    assert isinstance(steps, PaidSteps)
    return steps.passed(step, state)


def _lost_steps(ledger: Ledger | None, workers: Workers, steps: int) -> set[int]:
    """Those of a run's steps that the leader's ledger says are lost."""
    return set(workers.said({"lost": sorted(() if ledger is None else lost_steps(ledger.entries, steps))})["lost"])


def _restored(job: Job, run: RunDirectory, checkpoint: Checkpoint) -> tuple[torch.optim.Optimizer, dict[str, Tensor]]:
    """The optimizer and the average's state as the checkpoint has them, after the module's."""
    optimizer = optimizer_of(job)
    if job.own.optimizer is None:  # what one of one's own begins with is among what the run is known by
        checkpoint.require_optimizer(optimizer, where=str(run.path))
    return optimizer, checkpoint.restore(job.module, optimizer, job.device)


def take_none(job: Job, checkpoint: Checkpoint) -> Outcome:
    """What an unfinished run has reached, without another step."""
    average = checkpoint.restore(job.module, optimizer_of(job), job.device)
    weights = weights_of(job.module, average_for(job.settings.averages), average)
    return Outcome(step=checkpoint.step, weights=weights, seconds=0.0)


def pause_after(saving: float) -> float:
    """Seconds until another checkpoint, after one that took so many.

    >>> pause_after(0.1), pause_after(3.0)
    (15.0, 60.0)
    """
    return CHECKPOINT_SECONDS * max(1.0, saving / (CHECKPOINT_SHARE * CHECKPOINT_SECONDS))


def evaluation_steps(steps: int) -> set[int]:
    """After which steps a run is measured, the last one among them."""
    return set(np.linspace(0, steps, EVALUATIONS + 1).round().astype(int)[1:].tolist())


def weights_of(
    module: nn.Module, averaging: Average | None = None, average: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Parameters and buffers to release: where a run averages, the averaged parameters in place of the last ones.

    Buffers are the last ones always.
    """
    last = {name: value.detach() for name, value in module.state_dict().items()}
    return last if averaging is None else last | averaging.released(average or {})


@contextmanager
def _looked_on(observers: Sequence[Observer]) -> Iterator[None]:
    """Within, those who look on are told of what stops the steps."""
    try:
        yield
    except BaseException:
        tell(observers, "interrupted")
        raise


def tell(observers: Sequence[Observer], what: str, *known: Any) -> bool:
    """Tell those who look on; whether one of them ends the run."""
    stop = False
    for observer in observers:
        try:
            getattr(observer, what)(*known)
        except Stop:
            stop = True
    return stop


def _row(step: int, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"step": step, "learning_rate": optimizer.param_groups[0]["lr"]}


def _of_last_weights(scorer: Measure, module: nn.Module) -> dict[str, Any]:
    """The one figure that matters most, of the weights that are not averaged."""
    last = scorer.score(scorer.outputs(weights_of(module)))
    return {f"{scorer.figure}_of_last_weights": last[scorer.figure]}


def _keep(run: RunDirectory, released: Mapping[str, Tensor], ledger: Ledger | None, steps: int) -> None:
    """Write the trained parameters that are released down for good, once the ledger has what they cost."""
    if ledger is not None:
        _synced(ledger, steps)
    kept_weights.save(run, steps, {name: value.detach() for name, value in released.items()})


def _save(
    run: RunDirectory,
    ledger: Ledger | None,
    workers: Workers,
    reached: tuple[int, nn.Module, dict[str, Tensor], Any],
    *,
    identity: str,
    noise: NoiseState,
) -> None:
    """Write a checkpoint, once the ledger has what its steps cost."""
    noise = workers.remembered(noise)
    if workers.is_leader:
        head = "" if ledger is None else _synced(ledger, reached[0])
        Checkpoint.of(*reached, run=identity, noise=noise, ledger=head).save(run / names.CHECKPOINT)


def _synced(ledger: Ledger, steps: int) -> str:
    """The ledger, safe on disk; the hash of its line for the last of so many steps."""
    with writing(ledger.path):
        ledger.sync()
    return ledger.after(steps).hash
