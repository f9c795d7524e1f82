"""A training loop of one's own: `for step in sfumato.private_steps(...)`, and everything that makes it private inside.

Who takes part, the clipped gradient, the noise, the ledger, checkpoints and the statement are those of `sfumato.train`.
What stays the caller's are the model, the loss, the optimizer and whatever is done between two steps.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato import _devices
from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.experiment.settings import Performance
from sfumato.gradients import ClippedGradient
from sfumato.gradients.checks.wrapped import without_compilation
from sfumato.gradients.examples import Tree, each
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan, Statement
from sfumato.randomness import Noise, NoiseState, RunKey, Sampler, owner_key
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import RunDirectory, sweep
from sfumato.runs.owner import sentences, uses
from sfumato.training.loop import CHECKPOINT_SECONDS, pause_after
from sfumato.training.own import ending, pinned
from sfumato.training.own.records import OwnRecords, own_records
from sfumato.training.preparation import resume
from sfumato.training.preparation.prepare import check_epsilon, settled_on, size_micro_batch
from sfumato.training.preparation.start import Machine, Start
from sfumato.training.step import PrivateStep, descend

Loss = Callable[[Any, Any], Tensor]
LATER = "later"
"""Under which name a checkpoint's optimizer holds the states of what else is kept with it."""


@dataclass(frozen=True)
class OwnStep:
    """A step that was taken: the optimizer has moved the weights.

    Args:
        number: how many were taken so far, 1 after the first.
        steps: how many there are in all.
    """

    number: int
    steps: int

    @property
    def last(self) -> bool:
        """Whether it is the last one."""
        return self.number == self.steps

    def __repr__(self) -> str:
        return f"step {self.number} of {self.steps}"


def private_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    loss: Loss = functional.cross_entropy,
    *,
    directory: str | os.PathLike[str],
    plan: PrivacyPlan | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    max_norm: float | None = None,
    examples: int | None = None,
    with_state: Sequence[Any] = (),
    template: tuple[Tree, Tree] | None = None,
    public: bool = False,
    seed: int | None = None,
    **machine: Any,
) -> PrivateSteps:
    """The private steps of a training loop of one's own; the same call goes on with a run that was interrupted.

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> data = torch.randn(200, 4), torch.arange(200) % 2
    >>> run = private_steps(
    ...     model, optimizer, data, epsilon=3.0, batch_size=50, epochs=1, public=True, directory=tempfile.mkdtemp()
    ... )
    >>> [step.number for step in run], run.statement.epsilon <= 3.0
    ([1, 2, 3, 4], True)

    Args:
        model: any module; it is trained in place. On whatever device it is.
        optimizer: over its parameters. It moves the weights in each step, before the loop's body runs.
        data: a pair (inputs, targets) of tensors or arrays (N, ...), or of tuples or dicts of such; a map-style data
            set of such pairs, which gives the same record each time; or what `sfumato.open_source` gives.
        loss: of (outputs, targets), with one example's outputs (1, ...) and target (1, ...), to a number.
        directory: the run directory.
        plan: everything that decides epsilon; in place of the arguments that follow.
        epsilon, delta, batch_size, epochs or steps, noise_multiplier, max_norm: as for `PrivacyPlan.calibrate`: of
            epsilon, batch size, steps and noise multiplier three are given, and the fourth follows. Steps are epochs
            times N over the batch size, rounded up. Delta is 1e-5, or 1 / N where that is smaller, C is 1.
        examples: N, where it is declared; else it is counted, and the statement says so.
        with_state: whatever else must go on where it was after an interruption, such as a learning rate scheduler:
            objects with `state_dict` and `load_state_dict`.
        template: made-up or public (inputs, targets), for a model that does not run on random numbers, or on whole
            numbers that are all 0 or all 1 (`ClippedGradient`).
        public: the data are public: the use is not put on the owner's list.
        seed: for experiments: the randomness follows from it, and the promise is void to whoever knows it.
        machine: threads, micro_batch: performance; they don't change the promise.

    **Guarantee.** The weights after the last step, and all those before it together, have the plan's (epsilon, delta)
    for each single example: each step is a `PrivateStep` of participants by the plan (`Sampler`), is in the ledger
    before it is computed, and is drawn by (key, step), so that one that is taken again after an interruption is the
    same release. The optimizer, and what the loop's body does with weights, is post-processing as long as it looks at
    no private record.

    Errors: `SfumatoError`, before anything is spent, for whatever is refused.
    """
    run, key, model = RunDirectory(directory), owner_key(), without_compilation(model)
    records = own_records(data, key)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SfumatoError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}",
            "give one over the model's parameters, such as torch.optim.SGD(model.parameters(), lr=0.1)",
        )
    asked = {"epsilon": epsilon, "batch_size": batch_size, "steps": steps, "noise_multiplier": noise_multiplier}
    if plan is None:
        plan = _planned(examples or records.count, asked, epochs, delta, max_norm)
    elif given := [name for name, value in {**asked, "epochs": epochs, "max_norm": max_norm}.items() if value]:
        raise SfumatoError(f"plan and {', '.join(given)} are both given", "leave out one: the plan has them")
    if plan.unit.name != "example":
        raise SfumatoError(
            "a loop of one's own promises for single examples, and the plan's unit is the user",
            "train with sfumato.train and unit='user', or give a plan for examples",
        )
    check_epsilon(plan)
    start = Start.of(run, machine=Machine(**machine)) if run.exists else Start(machine=Machine(**machine))
    return PrivateSteps(
        model=model,
        optimizer=optimizer,
        records=records,
        loss=loss,
        plan=plan,
        run=run,
        declared=examples is not None or bool(records.public),
        with_state=tuple(with_state),
        template=template,
        public=public or records.public,
        seed=seed,
        start=start,
    )


def _planned(
    examples: int, asked: dict[str, Any], epochs: float | None, delta: float | None, max_norm: float | None
) -> PrivacyPlan:
    positive_integer("examples", examples, remedy="give the number of training examples")
    if epochs is not None:
        positive("epochs", epochs)
        if asked["steps"] is not None or asked["batch_size"] is None:
            raise SfumatoError(
                f"epochs={epochs} needs a batch_size, and no steps: a step is what is paid for",
                "give epochs and batch_size, or steps",
            )
        asked = asked | {"steps": -int(-epochs * examples // asked["batch_size"])}
    return PrivacyPlan.calibrate(examples=examples, delta=delta or min(1e-5, 1 / examples), max_norm=max_norm, **asked)


class PrivateSteps:
    """What `private_steps` gives: to be iterated over once, and asked for its statement afterwards.

    Attributes:
        plan: what the run releases.
        directory: the run directory.
        note: what the owner should know of earlier runs on the same data; empty for nothing.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        records: OwnRecords,
        loss: Loss,
        plan: PrivacyPlan,
        run: RunDirectory,
        declared: bool,
        with_state: tuple[Any, ...],
        template: tuple[Tree, Tree] | None,
        public: bool,
        seed: int | None,
        start: Start,
    ):
        self.plan, self.directory, self.note = plan, run.path, ""
        self._run, self._model, self._optimizer, self._records, self._loss = run, model, optimizer, records, loss
        self._with_state, self._public = with_state, public
        self._trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._device = next(iter(model.parameters())).device
        _refuse_foreign(optimizer, self._trained)
        if run.complete() or run.finished:
            self._statement: Statement | None = ending.finished(run, model, plan)
            return
        self._statement = None
        recorded = start.unfinished.recorded
        _, threads = settled_on(start)
        self._gradient = ClippedGradient(
            model, loss, max_norm=plan.max_norm, template=template, methods=recorded.ways if recorded else None
        )
        self._examples = template or _synthetic(records)
        with _devices.own_randomness(self._device):
            torch.manual_seed(0)
            shape, targets = _one(self._examples[0]), self._examples[1]
            self._gradient.self_check(shape, targets=targets)
            micro_batch = start.machine.micro_batch or (recorded.micro_batch if recorded else None)
            micro_batch = micro_batch or size_micro_batch(self._gradient, shape, str(self._device), targets)
        self.performance = Performance(
            device=str(self._device), threads=threads, micro_batch=micro_batch, ways=self._gradient.methods
        )
        facts = Circumstances(
            read=() if declared else ("examples",),
            data_public=public,
            seeded=seed is not None,
            origins=("own model",),
            own_loop=True,
        )
        known = pinned.record_of(model, optimizer, self._examples, loss, records, facts, self.performance, with_state)
        if run.exists:
            self._key = RunKey.load(run / names.RUN_KEY)
            pinned.refuse_other(run, known, plan)
        else:
            run.require_free()
            self._key = pinned.key_of(seed, known, plan, model)
        self._known, self._facts = known, facts

    def __len__(self) -> int:
        """How many steps the plan has."""
        return self.plan.steps

    @property
    def statement(self) -> Statement:
        """What the run promised, once its last step is taken or it was ended."""
        if self._statement is None:
            raise SfumatoError(
                f"the run in {self.directory} is not finished, so nothing is promised yet",
                "iterate to the end, or call `finish()`",
            )
        return self._statement

    def __repr__(self) -> str:
        state = "unfinished" if self._statement is None else "finished"
        return f"PrivateSteps({str(self.directory)!r}, {state}: {self.plan!r})"

    def __iter__(self) -> Iterator[OwnStep]:
        """Take the steps that are still to be taken; after each the weights have moved, and the loop's body runs."""
        if self._statement is not None:
            return
        with self._open() as ledger:
            checkpoint, paid = self._begun(ledger)
            yield from self._steps(ledger, checkpoint, paid)
            self._conclude(ledger, self.plan.steps)

    def finish(self) -> Statement:
        """End an unfinished run with what its last checkpoint holds. The statement is the whole plan's all the same."""
        if self._statement is None:
            self._run.require()
            with self._open() as ledger:
                checkpoint, _ = self._begun(ledger)
                self._conclude(ledger, checkpoint.step)
        return self.statement

    def _open(self) -> Ledger:
        """The ledger, after the run was laid down where there was none."""
        if not self._run.exists:
            self._begin()
        return Ledger(self._run / names.LEDGER)

    def _begin(self) -> None:
        identity = secrets.token_hex(32)
        with self._run.creating() as fresh:
            fresh.write_json(names.SETTINGS, {"run": identity, **self._known}, private=True)
            self._key.save(fresh / names.RUN_KEY)
            fresh.write_json(names.PLAN, self.plan.to_dict())
            with Ledger(fresh / names.LEDGER) as ledger:
                opening = ledger.append(
                    "begin", self._opening(identity) | {"key_check": self._key.check_value(identity)}
                )
                ledger.sync()
            self._checkpoint(0, identity, opening.hash, NoiseState(step=0)).save(fresh / names.CHECKPOINT)
            if not self._public:
                known: dict[str, Any] = {"places": self._records.places}
                if earlier := uses.plans(self._records.materials, **known):
                    self.note = sentences.summary(earlier, self.plan)
                uses.record(self._records.materials, identity, self.plan, **known)

    def _opening(self, identity: str) -> dict[str, Any]:
        return pinned.opening(self._known, self.plan, identity)

    def _begun(self, ledger: Ledger) -> tuple[Checkpoint, int]:
        """The state to go on from, put into model and optimizer; and how many steps are paid."""
        run = self._run
        sweep(run.path)
        paid = resume.recorded_steps(ledger, self._opening(run.identity), self.plan)
        self._key = resume.own_key(run, ledger)
        resume.refuse_ended(run, ledger, self.plan)
        checkpoint = resume.own_checkpoint(run, ledger, paid)
        checkpoint.require_optimizer(self._optimizer, where=str(run.path))
        later = checkpoint.optimizer.pop(LATER, [])
        checkpoint.restore(self._model, self._optimizer, self._device)
        for one, state in zip(self._with_state, later, strict=True):
            one.load_state_dict(state)
        return checkpoint, paid

    def _steps(self, ledger: Ledger, checkpoint: Checkpoint, paid: int) -> Iterator[OwnStep]:
        plan, state = self.plan, checkpoint.noise
        noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=self._key)
        private = PrivateStep(plan=plan, gradient=self._gradient, noise=noise)
        sampler = Sampler(plan, self._key, records=self._records.count)
        saved_at, pause = time.monotonic(), CHECKPOINT_SECONDS
        for step in range(checkpoint.step, plan.steps):
            if step >= paid:
                ledger.append("release", {"step": step, "plan": plan.fingerprint})
            with _devices.own_randomness(self._device), _devices.computing(str(self._device), "float32"):
                gradient, state = private(step, self._micro_batches(step, sampler.draw(step)), state)
            descend(self._optimizer, self._trained, gradient)
            yield OwnStep(step + 1, plan.steps)
            if (now := time.monotonic()) - saved_at > pause or step + 1 == plan.steps:
                ledger.sync()
                reached = self._checkpoint(step + 1, checkpoint.run, ledger.after(step + 1).hash, state)
                reached.save(self._run / names.CHECKPOINT)
                saved_at = time.monotonic()
                pause = pause_after(saved_at - now)

    def _micro_batches(self, step: int, rows: np.ndarray) -> Iterator[tuple[Any, ...]]:
        """Inputs, targets and dropout's keys of the participants, in pieces; what a model draws else is drawn anew."""
        size = self.performance.micro_batch
        for start in range(0, len(rows), size):
            piece = rows[start : start + size]
            inputs, targets = each(lambda one: one.to(self._device), self._records.take(piece))
            torch.manual_seed(self._key.seed("model", step, str(start)))
            keys = None
            if self._gradient.draws:
                words = [self._key.words("dropout", step, str(row)) for row in piece]
                keys = torch.from_numpy(np.stack(words).view(np.int64))
            yield inputs, targets, keys

    def _checkpoint(self, step: int, identity: str, head: str, noise: NoiseState) -> Checkpoint:
        state = Checkpoint.of(step, self._model, {}, self._optimizer, run=identity, noise=noise, ledger=head)
        if self._with_state:
            later = [one.state_dict() for one in self._with_state]
            state = replace(state, optimizer=state.optimizer | {LATER: later})
        return state

    def _conclude(self, ledger: Ledger, steps: int) -> None:
        early = steps if steps < self.plan.steps else None
        statement = Statement(plan=self.plan, circumstances=replace(self._facts, steps_taken=early))
        ending.conclude(self._run, ledger, self._model, statement, steps)
        self._statement = statement


def _refuse_foreign(optimizer: torch.optim.Optimizer, trained: Mapping[str, Tensor]) -> None:
    """Refuse an optimizer that moves what gets no private gradient, or leaves out what does."""
    moved = {id(one) for group in optimizer.param_groups for one in group["params"]}
    if foreign := len(moved - {id(one) for one in trained.values()}):
        raise SfumatoError(
            f"the optimizer moves {foreign} tensors that are no trainable parameters of the model",
            "build it over the parameters of this very model: optimizer(model.parameters(), ...)",
        )
    if missing := [name for name, one in trained.items() if id(one) not in moved]:
        raise SfumatoError(
            f"the optimizer leaves out {len(missing)} trainable parameters of the model, such as {missing[0]}: noise "
            "would be paid for them for nothing",
            "give it all of them, or set requires_grad=False for those that stay as they are",
        )


def _synthetic(records: OwnRecords) -> tuple[Tree, Tree]:
    """Made-up examples of the records' form; whole numbers are 0 in one and 1 in the other."""
    generator = torch.Generator().manual_seed(0)

    def made(like: Tensor) -> Tensor:
        if like.is_floating_point() or like.is_complex():
            return torch.randn(2, *like.shape[1:], generator=generator).to(like.dtype)
        return torch.stack([torch.zeros_like(like[0]), torch.ones_like(like[0])])

    return each(made, records.like)  # type: ignore[return-value]


def _one(inputs: Tree) -> Tree:
    """The first example of made-up ones, in place of a shape (`ClippedGradient.self_check`)."""
    return each(lambda one: one[0], inputs)
