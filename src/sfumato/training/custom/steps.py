"""The private steps of a custom training loop (`private_steps`).

Sampling, clipped gradient, noise, ledger, checkpoints and statement are those of `sfumato.train`. Model, loss,
optimizer and the code between two steps are the user's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.experiment.settings import Performance
from sfumato.gradients.checks import losses
from sfumato.gradients.checks.discovery import own_errors
from sfumato.gradients.examples import Tree, call_model, tree_map, tree_tensors
from sfumato.observers.progress import line_if_slow
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan, Statement
from sfumato.privacy.ledger import copied_steps, lost_steps, moved
from sfumato.privacy.statements.wording import ProcessCounts
from sfumato.randomness import NoiseState, RunKey, Sampler
from sfumato.runs import directory as names
from sfumato.runs import releases
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import RunDirectory, remove_temporary
from sfumato.training.custom import bookkeeping, optimizers
from sfumato.training.custom.optimizers import refuse_foreign, refuse_unfit
from sfumato.training.custom.records import LoopRecords
from sfumato.training.custom.users import gradient_of
from sfumato.training.inputs import dropout_keys
from sfumato.training.loop import CHECKPOINT_SECONDS, pause_after, shared_lost_steps
from sfumato.training.preparation import resume
from sfumato.training.preparation.building import noise_named, precision_of, with_noise
from sfumato.training.preparation.prepare import CHECKING, configure_torch, size_micro_batch
from sfumato.training.preparation.start import Start, known_micro_batch
from sfumato.training.step import PrivateStep, descend
from sfumato.training.workers import Workers

Loss = Callable[[Any, Any], Tensor]
REFUSE, SKIP = "refuse", "skip"
"""What to do about a repeated step that would release something else."""
LATER = "later"
"""The key of the states of `with_state` in a checkpoint's optimizer."""


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
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        records: LoopRecords,
        loss: Loss,
        plan: PrivacyPlan,
        run: RunDirectory,
        facts: Circumstances,
        noise: str,
        with_state: tuple[Any, ...],
        template: tuple[Tree, Tree] | None,
        budget: str | None,
        seed: int | None,
        if_changed: str,
        capture: bool,
        copy: bool,
        start: Start,
        workers: Workers,
        leave: Callable[[], None],
    ):
        self.plan, self.directory, self.note = plan, run.path, ""
        self._workers, self._leave = workers, leave
        self._run, self.model, self._optimizer, self._records = run, model, optimizer, records
        self._with_state, self._noise, self._if_changed, self._copy = with_state, noise, if_changed, copy
        self._trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._device = next(iter(model.parameters())).device
        refuse_foreign(optimizer, self._trained)
        if run.complete() or run.finished:
            self._statement: Statement | None = bookkeeping.load_finished(run, model, plan, records)
            return
        self._statement = None
        recorded = start.unfinished.recorded
        _, threads = configure_torch(start)
        own: dict[str, Any] = {"max_norm": plan.max_norm, "methods": recorded.methods if recorded else None}
        self._gradient = gradient_of(records, model, loss, template=template, capture=capture, **own)
        self._tried = (model, *(template or _synthetic(records)))
        micro_batch = self._checked(loss, start)
        self.performance = Performance(
            device=str(self._device),
            threads=threads,
            micro_batch=micro_batch,
            precision=precision_of(start),
            methods=self._gradient.methods,
        )
        facts = with_noise(facts, noise, plan, self._gradient.zeros(), alone=micro_batch == 1)
        known = bookkeeping.record_of(model, optimizer, records, facts, self.performance, with_state)
        if budget is not None:
            known["budget"] = {"name": budget}
        if run.exists:
            self._key = RunKey.load(run / names.RUN_KEY)
            bookkeeping.refuse_other(run, known, plan)
        else:
            run.require_free()
            refuse_unfit(optimizer)
            self._key = bookkeeping.key_of(seed, known, plan, model)
        self._known, self._facts, self._begun = known, facts, run.exists
        self._private()  # raises the errors of the first step

    def _checked(self, loss: Loss, start: Start) -> int:
        """Tries model and loss on synthetic examples. Returns the micro-batch size."""
        (model, inputs, targets), records = self._tried, self._records
        with (
            line_if_slow(CHECKING),
            own_errors("the model or loss fails on synthetic records", *self._tried),
            _devices.fork_rng(self._device),
            _devices.deterministic(self._device),
        ):
            torch.manual_seed(0)
            on_device = tree_map(lambda one: one.to(self._device), inputs)
            shape = _finite_example(model, on_device)
            losses.refuse_beyond(model, loss, on_device, records.smallest, records.largest)
            self._gradient.self_check(shape, targets=targets)
            known = known_micro_batch(start, self._noise)
            return known or size_micro_batch(self._gradient, shape, str(self._device), targets)

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
        if self._facts.rounds:
            raise SfumatoError(
                f"rounds is {self._facts.rounds}: weights come in before each round",
                "call private_rounds, which iterates over the rounds, or leave rounds out",
            )
        with self._open() as ledger:
            while (yield from self._steps(ledger, self._restore(ledger), self.plan.steps)):
                pass  # a repeated step would have released something else: continue from the checkpoint without it
            self._conclude(ledger, self.plan.steps)

    def finish(self) -> Statement:
        """End an unfinished run at its last checkpoint. The statement is still that of the whole plan."""
        if self._statement is None:
            self._run.require()
            with self._open() as ledger:
                self._conclude(ledger, 0 if ledger is None else self._restore(ledger).step)
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
        if self._begun and not self._run.exists:
            raise moved(self.directory)
        if self._run.exists:
            bookkeeping.record_use(self._run, self._run.read_json(names.SETTINGS), self.plan, self._records)
        else:
            first = partial(self._checkpoint, 0, noise=NoiseState(step=0))
            self.note = bookkeeping.create_run(self._run, self._known, self.plan, self._key, self._records, first)
        self._begun = True
        return Ledger(self._run / names.LEDGER, notify=self._add_note)

    def _add_note(self, line: str) -> None:
        self.note = f"{self.note}; {line.removeprefix('note: ')}" if self.note else line

    def _opening(self, identity: str) -> dict[str, Any]:
        return bookkeeping.opening_entry(self._known, self.plan, identity)

    def _restore(self, ledger: Ledger | None) -> Checkpoint:
        """Restores model and optimizer from the checkpoint, and returns it."""
        run, paid = self._run, 0
        if ledger is not None:
            remove_temporary(run.path)
            paid = resume.recorded_steps(ledger, run.read_json(names.SETTINGS), self._opening(run.identity), self.plan)
        self._key = resume.verified_key(run, ledger)
        if ledger is not None:
            resume.refuse_ended(run, ledger, self.plan)
        checkpoint = resume.verified_checkpoint(run, ledger, paid)
        checkpoint.require_optimizer(self._optimizer, where=str(run.path))
        later = checkpoint.optimizer.pop(LATER, [])
        checkpoint.restore(self.model, self._optimizer, self._device)
        for one, state in zip(self._with_state, later, strict=True):
            one.load_state_dict(state)
        return checkpoint

    def _steps(self, ledger: Ledger | None, checkpoint: Checkpoint, until: int) -> Generator[OwnStep, None, bool]:
        """Yields the steps from a checkpoint to step `until`. Returns whether some were lost: then the caller starts
        over from the checkpoint."""
        workers = self._workers
        workers.all_reduce(0.0)  # all have read the checkpoint
        if ledger is not None and checkpoint.step < until:
            workers.record_in(ledger)
        salted = {"salted": not self._facts.seeded, "copy": self._copy, "workers": workers}
        self._key = resume.open_key(self._key, ledger, self._run, **salted)
        plan, state, private = self.plan, checkpoint.noise, self._private()
        sampler = Sampler(plan, self._key, records=self._records.count)
        saved_at, pause = time.monotonic(), CHECKPOINT_SECONDS
        lost = shared_lost_steps(ledger, workers, plan.steps)

        def save(reached: int, noise: NoiseState) -> None:
            noise = workers.gather_state(noise)
            if ledger is not None:
                head = ledger.step_entry(reached).hash
                self._checkpoint(reached, checkpoint.run, head, noise=noise).save(self._run / names.CHECKPOINT)

        for step in range(checkpoint.step, until):
            optimizers.refuse_unready(self._optimizer, self._with_state)
            if step in lost:
                state = private.skip_lost(step, state)
            else:
                with (
                    _devices.fork_rng(self._device),
                    self._computing(),
                    own_errors(f"model, loss or data set fail in step {step + 1}", *self._tried),
                ):
                    gradient, state = private(step, self._micro_batches(step, sampler.draw(step)), state)
                if not self._is_committed(ledger, step, gradient, state):
                    return True
                descend(self._optimizer, self._trained, gradient)
                left = optimizers.weight_digests(self.model)
                try:
                    with optimizers.guard_loop_body(self._optimizer, self._trained):
                        yield OwnStep(step + 1, plan)
                except GeneratorExit:  # a `break`, or an error in the body
                    if workers.count == 1 or not state.tensors:  # the others may not be here to send their part
                        with suppress(SfumatoError):  # a model that the body has changed stays as it was saved last
                            optimizers.refuse_changed(self.model, self._trained, left)
                            save(step + 1, state)
                    raise
                optimizers.refuse_changed(self.model, self._trained, left)
            now = time.monotonic()
            if workers.broadcast_bool(now - saved_at > pause) or step + 1 == until:
                workers.refuse_diverged(self._trained, step + 1)
                save(step + 1, state)
                saved_at = time.monotonic()
                pause = pause_after(saved_at - now)
        return False

    def _is_committed(
        self, ledger: Ledger | None, step: int, gradient: Mapping[str, Tensor], following: NoiseState
    ) -> bool:
        """Whether the leader's ledger commits to this release, so that every process may use it."""
        same = True
        if ledger is not None:
            try:
                releases.commit(ledger, step, gradient, following)
            except releases.OtherReleaseError:
                if self._if_changed == REFUSE:
                    raise
                releases.lose(ledger, Checkpoint.load(self._run / names.CHECKPOINT).step)
                same = False
        return self._workers.broadcast_bool(same)

    def _private(self) -> PrivateStep:
        """The private step, with noise from the run's key."""
        noise = noise_named(self._noise, self.plan, self._key)
        return PrivateStep(plan=self.plan, gradient=self._gradient, noise=noise, workers=self._workers)

    def _computing(self) -> AbstractContextManager[None]:
        return _devices.compute_mode(str(self._device), self.performance.precision)

    def _micro_batches(self, step: int, rows: np.ndarray) -> Iterator[tuple[Any, ...]]:
        """Yields inputs, targets, for users the shares of their records, and dropout keys of the participants, in this
        process's micro-batches."""
        pieces = self._records.pieces(rows, self.performance.micro_batch, self._key, step)
        before = np.cumsum([0, *(len(units) for units, *_ in pieces)]).tolist()
        try:
            for place in self._workers.deal(step, rows, [max(one.size for one in piece) for piece in pieces]):
                batch = tree_map(lambda one: one.to(self._device), self._records.batch(*pieces[place]))
                torch.manual_seed(self._key.seed("model", step, str(before[place])))
                names = self._records.names(pieces[place][0])
                yield *batch, dropout_keys(self._key, step, names) if self._gradient.uses_keys else None
        except SfumatoError as error:
            raise SfumatoError(f"step {step + 1}: {error.problem}", error.remedy) from None

    def _checkpoint(self, step: int, identity: str, head: str, *, noise: NoiseState) -> Checkpoint:
        state = Checkpoint.of(step, self.model, {}, self._optimizer, run=identity, noise=noise, ledger=head)
        if self._with_state:
            later = [one.state_dict() for one in self._with_state]
            state = replace(state, optimizer=state.optimizer | {LATER: later})
        return state

    def _conclude(self, ledger: Ledger | None, steps: int) -> None:
        if ledger is not None:
            self._statement = self._write(ledger, steps)
        self._workers.broadcast_bool(True)  # the leader has written the run
        if ledger is None:
            self._statement = bookkeeping.load_finished(self._run, self.model, self.plan, self._records)
        self._leave()

    def _write(self, ledger: Ledger, steps: int) -> Statement:
        """Writes the files of the finished run."""
        early = steps if steps < self.plan.steps else None
        lost = len(lost_steps(ledger.entries, steps))
        copied = copied_steps(ledger.entries)
        facts = replace(self._facts, steps_taken=early, steps_lost=lost, steps_copied=copied)
        computed = ProcessCounts.from_entries(ledger.entries)
        statement = Statement(plan=self.plan, circumstances=facts, computed=computed)
        bookkeeping.conclude(self._run, ledger, self.model, statement, steps)
        return statement


def _synthetic(records: LoopRecords) -> tuple[Tree, Tree]:
    """Two synthetic examples in the form of the records; integers are 0 in one and 1 in the other."""
    generator = torch.Generator().manual_seed(0)

    def made(like: Tensor) -> Tensor:
        if like.is_floating_point() or like.is_complex():
            return torch.randn(2, *like.shape[1:], generator=generator).to(like.dtype)
        return torch.stack([torch.zeros_like(like[0]), torch.ones_like(like[0])])

    return tree_map(made, records.zero_record)  # type: ignore[return-value]


def _finite_example(model: nn.Module, inputs: Tree) -> Tree:
    """The first synthetic example with finite outputs, in place of a shape (`ClippedGradient.self_check`)."""
    for row in range(len(tree_tensors(inputs)[0])):
        one = tree_map(itemgetter(slice(row, row + 1)), inputs)
        with suppress(Exception), torch.no_grad():  # what fails on all of them is refused by the self-check
            outputs = tree_leaves(call_model(model, {}, one))
            if all(bool(value.isfinite().all()) for value in outputs if isinstance(value, Tensor)):
                return tree_map(itemgetter(0), one)
    return tree_map(itemgetter(0), inputs)
