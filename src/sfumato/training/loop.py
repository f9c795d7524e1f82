"""The loop of all runs, private or not: `steps` yields after each step that it has paid for and taken.

The order of operations is part of the guarantee. A step's ledger line commits to the step's release, and is safe on
disk before the release moves the weights or leaves the loop. Checkpoints are written only between steps. Every
random draw is a function of (key, step). So a step that is repeated after a crash releases the same values again, or
nothing, and is paid for once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import _devices, models
from sfumato._checks import SfumatoError
from sfumato.averaging import Average
from sfumato.observers.observer import Observer, Stop
from sfumato.privacy import Ledger
from sfumato.privacy.ledger import lost_steps
from sfumato.randomness import NoiseState
from sfumato.runs import directory as names
from sfumato.runs import releases
from sfumato.runs.checkpoint import Checkpoint, save_kept
from sfumato.runs.directory import RunDirectory
from sfumato.runs.releases import MICRO_BATCH_AT_FIRST
from sfumato.training.job import Job
from sfumato.training.planned import Measure, PaidSteps, Steps
from sfumato.training.step import descend
from sfumato.training.weights import set_rate
from sfumato.training.workers import ALONE, Workers

CHECKPOINT_SECONDS = 15.0
CHECKPOINT_SHARE = 0.05
"""Largest share of the time spent on checkpoints. Large ones, for example with correlated noise, are written less
often."""
EVALUATIONS = 12

Gradient = Mapping[str, Tensor | None]


@dataclass(kw_only=True)
class State:
    """A run between two steps: at a checkpoint that it starts from, or after a step.

    Args:
        step: number of steps taken.
        optimizer, average, noise: their states after these steps.
        identity: of the run.
        skips: as of `steps`.
        begins: whether this is the checkpoint that the steps start from.
        lost: whether the last step was lost, so that it changed no weights.
        stop: set it to end the run here.
    """

    job: Job
    run: RunDirectory
    ledger: Ledger | None
    workers: Workers
    optimizer: torch.optim.Optimizer
    step: int
    average: dict[str, Tensor]
    noise: NoiseState
    identity: str
    skips: bool
    begins: bool = True
    lost: bool = False
    stop: bool = False

    @property
    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers of the model to release: averaged where the run averages."""
        return weights_to_release(self.job.module, self.job.averaging, self.average)

    def save(self) -> None:
        """Write a checkpoint. The cost of its steps is safe on disk since they were released (`releases.commit`)."""
        noise = self.workers.gather_state(self.noise)
        if self.workers.is_leader:
            head = "" if self.ledger is None else self.ledger.step_entry(self.step).hash
            state = self.job.checkpoint(
                self.step, self.average, self.optimizer, run=self.identity, noise=noise, ledger=head
            )
            state.save(self.run / names.CHECKPOINT)


def steps(
    job: Job,
    run: RunDirectory,
    take: Steps,
    checkpoint: Checkpoint,
    *,
    ledger: Ledger | None = None,
    kept: Collection[int] = (),
    workers: Workers = ALONE,
    until: int | None = None,
    skips: bool = True,
) -> Iterator[State]:
    """Takes the steps from a checkpoint on, and yields the state before the first one and after each.

    Where a run trains over an aggregate, the trained parameters hold the aggregate while a step's gradient is computed,
    and the last weights when the step updates them (`TrainingOverAggregates` explains why this costs no epsilon).

    Args:
        take: computes the gradient of a step.
        ledger: of a private run: one line for each release. Training without privacy has none.
        kept: steps after which the trained parameters are saved permanently.
        workers: the processes that take the steps together. Only the leader has the ledger.
        until: the number of steps after which to end; by default all of the job.
        skips: if a repeated step would release something else, all steps paid for since the checkpoint are lost:
            training restarts from the checkpoint and skips them (`releases`). Without it, the run is refused.
    """
    until = job.steps if until is None else until
    while True:
        optimizer = job.optimizer()
        average = job.restore(checkpoint, optimizer, where=str(run.path))
        workers.all_reduce(0.0)  # all have read the checkpoint
        state = State(
            job=job,
            run=run,
            ledger=ledger,
            workers=workers,
            optimizer=optimizer,
            step=checkpoint.step,
            average=average,
            noise=checkpoint.noise,
            identity=checkpoint.run,
            skips=skips,
        )
        yield state
        if (yield from _steps_from(state, take, kept, until)):
            return
        checkpoint = Checkpoint.load(run / names.CHECKPOINT)


def _steps_from(state: State, take: Steps, kept: Collection[int], until: int) -> Generator[State, None, bool]:
    """The steps from a checkpoint on. Returns False if a repeated step would release something else."""
    job, workers, saved_at, pause = state.job, state.workers, time.monotonic(), CHECKPOINT_SECONDS
    trained = {name: value for name, value in job.module.named_parameters() if value.requires_grad}
    lost = shared_lost_steps(state.ledger, workers, job.steps)
    if workers.broadcast_bool(state.stop):
        return True
    for step in range(state.step, until):
        if job.learning_rate is not None:
            set_rate(state.optimizer, job.learning_rate(step))
        state.begins, state.lost = False, step in lost
        if state.lost:
            state.noise = _skip_lost(take, step, state.noise)
        else:
            gradient, following = _take_step(take, state, trained)
            if not _is_committed(state, gradient, following):
                return False
            descend(state.optimizer, trained, gradient)
            state.noise = following
        if job.averaging is not None:
            state.average = job.averaging.update(state.average, trained, step)
        state.step = step + 1
        if state.step in kept:
            save_kept(state.run, state.step, job.released_weights(dict(trained)))
        yield state
        now = time.monotonic()
        agreed = workers.broadcast({"stop": state.stop, "save": now - saved_at > pause})
        if agreed["save"] or agreed["stop"] or state.step == until:
            workers.refuse_diverged(trained, state.step)
            state.save()
            saved_at = time.monotonic()
            pause = pause_after(saved_at - now)
        if agreed["stop"]:
            break
    return True


def _take_step(take: Steps, state: State, trained: Mapping[str, Tensor]) -> tuple[Gradient, NoiseState]:
    """Takes a step; if it runs out of memory, repeats it with micro-batches of half the size.

    **Guarantee.** Sums over other micro-batches are rounded differently, and if two such sums shared their noise, their
    difference would have none. So no step is released with both sizes. A repeated step was not released, since memory
    errors occur before the noisy sum is returned; earlier steps are not repeated, since a checkpoint just before this
    step is saved before the new size is recorded. Participants and noise are those of the step's key; it is paid once.
    Correlated noise has already consumed its state, so such a run ends with an error.

    Errors: `SfumatoError` if the micro-batches cannot be smaller; errors other than memory errors unchanged.
    """
    over, step = state.job.training_over, state.step
    while True:
        may_repeat = state.workers.count == 1 and not state.noise.tensors
        try:
            with nullcontext() if over is None else over.at_average(trained, state.average, step):
                if state.job.has_statistics:
                    models.refresh(state.job.module)
                return take(step, state.noise)
        except (MemoryError, RuntimeError) as error:
            if not _devices.is_out_of_memory(error):
                raise
        size = getattr(take, "halve", lambda: None)() if may_repeat else None
        if size is None:
            raise SfumatoError(
                f"out of memory in step {step}, and its micro-batches cannot be made smaller here",
                "free some memory and give the same command again, which loses nothing and pays nothing twice; or "
                "begin another run with a smaller `micro_batch`",
            )
        state.save()
        _pin(state.run, size)


def _pin(run: RunDirectory, size: int) -> None:
    """Records the micro-batch size from the run's checkpoint on."""
    settings = run.read_json(names.SETTINGS)
    settings.setdefault(MICRO_BATCH_AT_FIRST, settings["performance"]["micro_batch"])
    settings["performance"]["micro_batch"] = size
    run.write_json(names.SETTINGS, settings, private=True)


def _is_committed(state: State, release: Gradient, following: NoiseState) -> bool:
    """Whether the leader's ledger commits to this release, so that every worker may use it.

    If the ledger commits to another release, all steps paid for since the checkpoint are recorded as lost. Training
    without privacy has no ledger.
    """
    same = True
    if state.ledger is not None:
        try:
            releases.commit(state.ledger, state.step, release, following)
        except releases.OtherReleaseError:
            if not state.skips:
                raise
            same = False
            releases.lose(state.ledger, Checkpoint.load(state.run / names.CHECKPOINT).step)
    return state.workers.broadcast_bool(same)


def _skip_lost(take: Steps, step: int, noise: NoiseState) -> NoiseState:
    """The noise state after a lost step. Only private steps can be lost."""
    assert isinstance(take, PaidSteps)
    return take.skip_lost(step, noise)


def shared_lost_steps(ledger: Ledger | None, workers: Workers, count: int) -> set[int]:
    """The lost steps of the run, from the leader's ledger."""
    return set(workers.broadcast({"lost": sorted(() if ledger is None else lost_steps(ledger.entries, count))})["lost"])


def pause_after(saving: float) -> float:
    """Seconds until the next checkpoint, after one that took `saving` seconds.

    >>> pause_after(0.1), pause_after(3.0)
    (15.0, 60.0)
    """
    return CHECKPOINT_SECONDS * max(1.0, saving / (CHECKPOINT_SHARE * CHECKPOINT_SECONDS))


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
    seconds: float = 0.0
    outputs: Tensor | None = None


def take_steps(
    job: Job,
    run: RunDirectory,
    take: Steps,
    checkpoint: Checkpoint,
    *,
    scorer: Measure | None = None,
    observers: Sequence[Observer] = (),
    **how: Any,
) -> Outcome:
    """Take all remaining steps, with observers around them.

    Args:
        scorer: measures the weights to release on the test split; None where nobody may see the result.
        observers: receive released values only; one may end the run (`Stop`).
        how: the further arguments of `steps`. Only the leader of several workers has ledger, scorer and observers.
    """
    began, due, outputs = time.monotonic(), evaluation_steps(job.steps), None
    state: Any = None
    with _devices.fork_rng(job.device), _devices.deterministic(job.device), _notify_interruptions(observers):
        for state in steps(job, run, take, checkpoint, **how):
            if state.begins:
                state.stop = notify(observers, "on_train_begin", state.step, job.steps)
                continue
            outputs = None
            if scorer is not None and state.step in due:
                outputs = scorer.outputs(state.weights)
                row = {"step": state.step, "learning_rate": state.optimizer.param_groups[0]["lr"]}
                row |= take.figures(state.step)
                if state.ledger is not None and job.averaging is not None and state.step == job.steps:
                    row |= _score_last_weights(scorer, job.module)
                state.stop = notify(observers, "on_metrics", row | scorer.score(outputs))
            state.stop = notify(observers, "on_step_end", state.step) or state.stop
    notify(observers, "on_train_end")
    return Outcome(step=state.step, weights=state.weights, seconds=time.monotonic() - began, outputs=outputs)


def evaluation_steps(count: int) -> set[int]:
    """The steps after which a run of so many steps is evaluated, including the last one."""
    return set(np.linspace(0, count, EVALUATIONS + 1).round().astype(int)[1:].tolist())


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


def _score_last_weights(scorer: Measure, module: nn.Module) -> dict[str, Any]:
    """The scorer's main figure for the weights without averaging."""
    last = scorer.score(scorer.outputs(weights_to_release(module)))
    return {f"{scorer.figure}_of_last_weights": last[scorer.figure]}
