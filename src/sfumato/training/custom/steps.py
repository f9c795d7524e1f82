"""The private steps of a custom training loop (`private_steps`).

Begin, loop, ledger, checkpoints and end are those of `sfumato.train`. Model, loss, optimizer and the code between two
steps are the user's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.gradients.checks.discovery import own_errors
from sfumato.gradients.examples import tree_map
from sfumato.observers.progress import Progress
from sfumato.privacy import Ledger, PrivacyPlan, Statement
from sfumato.privacy.ledger import moved
from sfumato.randomness import NoiseState, RunKey
from sfumato.runs import directory as names
from sfumato.runs import pins
from sfumato.runs.checkpoint import Checkpoint, read_safetensors
from sfumato.runs.directory import RunDirectory, remove_temporary
from sfumato.runs.owner.lines import BY_NUMBERS
from sfumato.training import loop
from sfumato.training.conclusion.finish import conclude, conclude_early
from sfumato.training.custom.job import LoopJob
from sfumato.training.custom.records import LoopRecords
from sfumato.training.inputs import dropout_keys
from sfumato.training.planned import RunKind
from sfumato.training.preparation import resume
from sfumato.training.step import PrivateTrainingSteps
from sfumato.training.steps import private_training_steps
from sfumato.training.workers import ALONE, Workers

REFUSE, SKIP = "refuse", "skip"
"""What to do about a repeated step that would release something else."""


class LoopInputs:
    """The records of a custom loop as the arguments of its gradient, in micro-batches."""

    def __init__(self, job: LoopJob):
        self.job, self.device, self.units = job, job.device, job.records.count

    def micro_batches(
        self, key: RunKey, step: int, participants: np.ndarray, workers: Workers = ALONE
    ) -> Iterator[tuple[Any, ...]]:
        """Yields inputs, targets, for users the shares of their records, and dropout keys of the participants, in this
        process's micro-batches."""
        job, records = self.job, self.job.records
        pieces = records.pieces(participants, job.performance.micro_batch, key, step)
        before = np.cumsum([0, *(len(units) for units, *_ in pieces)]).tolist()
        try:
            for place in workers.deal(step, participants, [max(one.size for one in piece) for piece in pieces]):
                batch = tree_map(lambda tensor: tensor.to(self.device), records.batch(*pieces[place]))
                torch.manual_seed(key.seed("model", step, str(before[place])))
                names = records.names(pieces[place][0])
                yield *batch, dropout_keys(key, step, names) if job.gradient.uses_keys else None
        except SfumatoError as error:
            raise SfumatoError(f"step {step + 1}: {error.problem}", error.remedy) from None

    def halve(self) -> None:
        """The micro-batches of a custom loop keep their size."""


class LoopSteps(PrivateTrainingSteps):
    """The private steps of a custom loop."""

    inputs: LoopInputs

    @classmethod
    def of(cls, job: LoopJob, key: RunKey, progress: Progress | None = None) -> PrivateTrainingSteps:
        """The steps of a job."""
        return private_training_steps(job, key, inputs=LoopInputs(job), kind=cls)

    def __call__(self, step: int, state: NoiseState) -> tuple[Mapping[str, Tensor], NoiseState]:
        """As of `PrivateTrainingSteps`; errors of the user's code are named as such."""
        job = self.inputs.job
        refuse_unready(job.given, job.with_state)
        with (
            _devices.fork_rng(self.inputs.device),
            own_errors(f"model, loss or data set fail in step {step + 1}", *job.tried),
        ):
            return super().__call__(step, state)


LOOP = RunKind(steps=LoopSteps.of)
"""The kind of steps of custom loops. No test split is scored."""


@dataclass(frozen=True)
class OwnStep:
    """A step that was taken: the optimizer has updated the weights.

    Args:
        number: number of steps taken so far, 1 after the first.
        plan: the plan of the run.
    """

    number: int
    plan: PrivacyPlan

    @property
    def steps(self) -> int:
        """Number of steps in all."""
        return self.plan.steps

    @property
    def epoch(self) -> int:
        """The epoch that the step belongs to, from 1. In each, a record (or user) takes part once on average."""
        return (self.number - 1) * self.plan.expected_batch_size // self.plan.population + 1

    @property
    def epsilon(self) -> float:
        """Epsilon of the steps so far, at the plan's delta. The statement gives that of all steps, even of a run that
        ends early."""
        return self.plan.epsilon(steps=self.number)

    @property
    def last(self) -> bool:
        """Whether it is the last one."""
        return self.number == self.steps

    def __repr__(self) -> str:
        return f"step {self.number} of {self.steps}"

    def __iter__(self) -> NoReturn:
        raise SfumatoError(
            "a step of private_steps has no inputs and targets: it has already updated the weights",
            "write `for step in run:`, and leave out forward pass, backward() and optimizer.step()",
        )


class PrivateSteps:
    """The result of `private_steps`: iterate over it once, then read its statement.

    Attributes:
        plan: the plan of the run.
        directory: the run directory.
        note: messages for the owner, for example about earlier runs on the same data; may be empty.
    """

    def __init__(
        self,
        model: nn.Module,
        records: LoopRecords,
        plan: PrivacyPlan,
        run: RunDirectory,
        job: LoopJob | None,
        *,
        workers: Workers,
        leave: Callable[[], None],
        skips: bool,
        copy: bool,
    ):
        """`job` is None for a finished run; `leave` leaves the workers; for `skips` and `copy` see `loop.steps` and
        `open_run`."""
        self.plan, self.directory, self.note, self.model = plan, run.path, "", model
        self._run, self._records, self._workers, self._leave = run, records, workers, leave
        self._skips, self._copy, self._begun = skips, copy, run.exists
        self._statement: Statement | None = None
        if job is None:
            self._load()
        else:
            self._job = job

    def __len__(self) -> int:
        """The number of steps of the plan."""
        return self.plan.steps

    @property
    def steps_per_epoch(self) -> int:
        """N over the batch size, rounded up: as many as a data loader over these records has batches."""
        return -(-self.plan.population // self.plan.expected_batch_size)

    @property
    def is_leader(self) -> bool:
        """Whether this process is the first of those that torchrun started, or the only one."""
        return self._workers.is_leader

    @property
    def is_finished(self) -> bool:
        """Whether the run has its statement."""
        return self._statement is not None

    @property
    def statement(self) -> Statement:
        """The run's statement, after its last step or its early end."""
        if self._statement is None:
            raise SfumatoError(
                f"the run in {self.directory} is not finished, so it has no statement yet",
                "iterate to the end, or call `finish()`",
            )
        return self._statement

    def __repr__(self) -> str:
        state = "unfinished" if self._statement is None else "finished"
        return f"PrivateSteps({str(self.directory)!r}, {state}: {self.plan!r})"

    def __iter__(self) -> Iterator[OwnStep]:
        """Takes the remaining steps. The loop's body runs after each step, with updated weights."""
        if self.is_finished:
            return
        if rounds := self._job.circumstances.rounds:
            raise SfumatoError(
                f"rounds is {rounds}: weights come in before each round",
                "call private_rounds, which iterates over the rounds, or leave rounds out",
            )
        with self._open() as ledger:
            yield from self._steps(ledger, self._job, self.plan.steps)
            self._conclude(ledger)

    def finish(self) -> Statement:
        """End an unfinished run at its last checkpoint. The statement is still that of the whole plan."""
        if self._statement is None:
            self._run.require()
            with self._open() as ledger:
                self._conclude(ledger, early=True)
        return self.statement

    def _announce(self) -> None:
        """As the leader of several processes, begin the run before the others prepare theirs."""
        if self._workers.count == 1 or not self._workers.is_leader:
            return
        if self.is_finished:
            self._workers.broadcast_json({})
            return
        with self._open_ledger():
            self._workers.announce_run(self._run)

    def _open(self) -> AbstractContextManager[Ledger | None]:
        """`_open_ledger` for the leader of several processes; the others have none."""
        return self._open_ledger() if self._workers.is_leader else nullcontext()

    def _open_ledger(self) -> Ledger:
        """Opens the ledger, creating the run if there was none."""
        job, run = self._job, self._run
        history = resume.owner_history(job)
        if self._begun and not run.exists:
            raise moved(self.directory)
        if run.exists:
            resume.record_use(job, run, run.identity, history)
        else:
            if not (job.circumstances.data_public or job.records.places):
                self._add_note(f"note: these records are {BY_NUMBERS}")
            for note in resume.earlier_use_notes(job, history):
                self._add_note(note)
            resume.begin(job, run, history)
        self._begun = True
        remove_temporary(run.path)
        return Ledger(run / names.LEDGER, notify=self._add_note)

    def _add_note(self, line: str) -> None:
        self.note = f"{self.note}; {line.removeprefix('note: ')}" if self.note else line

    def _checkpoint(self, ledger: Ledger) -> Checkpoint:
        """The run's checkpoint. Refuses a ledger or a checkpoint of another run."""
        return resume.verified_checkpoint(self._run, ledger, resume.paid_steps(ledger, self._job, self._run))

    def _restore(self, ledger: Ledger) -> Checkpoint:
        """The run's checkpoint, whose weights the model then has."""
        checkpoint = self._checkpoint(ledger)
        self._job.restore(checkpoint, self._job.given, where=str(self.directory))
        return checkpoint

    def _steps(self, ledger: Ledger | None, job: LoopJob, until: int) -> Iterator[OwnStep]:
        """Takes the remaining steps up to step `until`. The loop's body runs after each.

        **Guarantee.** The optimizer has taken its private step before the body runs, and any other update of weights or
        buffers, or of what the optimizer remembers, would have neither clipping nor noise. So after the body they must
        be what they were.
        """
        workers = self._workers
        take, checkpoint = resume.resumed(job, self._run, ledger, copy=self._copy, workers=workers)
        how: dict[str, Any] = {"ledger": ledger, "workers": workers, "until": until, "skips": self._skips}
        for state in loop.steps(job, self._run, take, checkpoint, **how):
            if state.begins or state.lost:
                continue
            before = contents(self.model, job.given)
            try:
                yield OwnStep(state.step, self.plan)
            except GeneratorExit:  # a `break`, or an error in the body
                if workers.count == 1 or not state.noise.tensors:  # the others may not be here to send their part
                    with suppress(SfumatoError):  # a model that the body has changed stays as it was saved last
                        refuse_changed(before, self.model, job.given)
                        state.save()
                raise
            refuse_changed(before, self.model, job.given)

    def _conclude(self, ledger: Ledger | None, *, early: bool = False) -> None:
        """Writes the files of the run, as the leader: after its last step, or `early`, at its last checkpoint."""
        if ledger is not None and early:
            conclude_early(self._job, self._run, ledger)
        elif ledger is not None:
            outcome = loop.Outcome(step=self.plan.steps, weights=loop.weights_to_release(self.model))
            conclude(self._job, self._run, ledger, outcome)
        self._workers.broadcast_bool(True)  # the leader has written the run
        self._load()
        self._leave()

    def _load(self) -> None:
        """Loads the statement and the weights of the finished run. Refuses a run of another plan, data or model."""
        run, known = (
            self._run,
            {"remedy": "give those of the run, or another `directory`", "where": str(self.directory)},
        )
        recorded, (weights, _) = run.read_json(names.SETTINGS), read_safetensors(run / names.MODEL)
        shapes = ({name: [*value.shape] for name, value in one.items()} for one in (weights, self.model.state_dict()))
        data = {"fingerprint": self._records.fingerprint}
        resume.require_verb(run, "private_steps")
        pins.require_same("plan", run.read_json(names.PLAN), self.plan.to_dict(), **known)
        pins.require_same("data", {name: recorded["data"][name] for name in data}, data, **known)
        pins.require_same("model", *shapes, **known)
        self.model.load_state_dict(weights)
        self._statement = Statement.from_dict(run.read_json(names.STATEMENT))


def contents(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """What the body of a loop must leave as it is: SHA-256 of each parameter and buffer, and the optimizer's state."""
    found: dict[str, object] = {}
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        found[name] = value.requires_grad and id(value), hashlib.sha256(content).digest()
    for place, state in enumerate(optimizer.state.values()):
        for name, value in state.items():  # torch counts the changes of a tensor
            now = (id(value), value._version) if isinstance(value, Tensor) else repr(value)
            found[f"{name} of the optimizer's parameter {place}"] = now
    return found


def refuse_changed(before: Mapping[str, object], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse what the body of a loop has changed since the step.

    Args:
        before: the `contents` after the step.
    """
    after = contents(model, optimizer)
    if changed := sorted(name for name in after.keys() | before.keys() if after.get(name) != before.get(name)):
        raise SfumatoError(
            f"the body of the loop over private_steps has changed {len(changed)} parameters, buffers or states of the "
            f"optimizer, such as {changed[0]}, without clipping and noise",
            "leave backward() and optimizer.step() out: the optimizer has already taken its private step; freeze "
            "parameters before calling private_steps; run the model in evaluation mode, where batch norm keeps its "
            "statistics (model.eval()), or work on a copy",
        )


def refuse_unready(optimizer: torch.optim.Optimizer, with_state: Sequence[Any]) -> None:
    """Refuse a scheduler that is not in `with_state`, and settings of torch under which no step can be taken.

    A resumed loop makes its scheduler anew: only a state that is in the checkpoint goes on where it was. torch marks
    the optimizer of each scheduler by wrapping its `step`.
    """
    scheduled = hasattr(optimizer.step, "_wrapped_by_lr_sched")
    if scheduled and all(getattr(one, "optimizer", None) is not optimizer for one in with_state):
        raise SfumatoError(
            f"a learning rate scheduler changes the optimizer {type(optimizer).__name__}, and with_state does not hold "
            "it: it would start anew when the run is resumed",
            "make it before the call, and give with_state=[scheduler]",
        )
    default = torch.get_default_device()
    if (frozen := torch.is_inference_mode_enabled()) or default.type != "cpu":
        raise SfumatoError(
            f"no private step can be taken under torch.{'inference_mode()' if frozen else f'device({default})'}",
            "use it for the body's own evaluation alone; a model on a device is model.to(device)",
        )
