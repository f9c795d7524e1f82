"""The private steps of a custom training loop (`private_steps`).

Begin, loop, ledger, checkpoints and end are those of `sfumato.train`. Model, loss, optimizer and the code between two
steps are the user's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.experiment.settings import Performance
from sfumato.gradients.checks import losses
from sfumato.gradients.checks.discovery import own_errors
from sfumato.gradients.examples import Tree, call_model, tree_map, tree_tensors
from sfumato.models.description import OWN_LOOP
from sfumato.observers.progress import line_if_slow
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan, Statement
from sfumato.privacy.ledger import moved
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs import pins
from sfumato.runs.checkpoint import Checkpoint, read_safetensors
from sfumato.runs.directory import RunDirectory, remove_temporary
from sfumato.runs.owner.lines import BY_NUMBERS
from sfumato.training import loop
from sfumato.training.conclusion.finish import conclude
from sfumato.training.custom.job import LOOP, LoopJob, LoopSteps, refuse_foreign, refuse_unfit
from sfumato.training.custom.records import LoopRecords
from sfumato.training.custom.users import gradient_of
from sfumato.training.preparation import resume
from sfumato.training.preparation.building import precision_of, with_noise
from sfumato.training.preparation.prepare import CHECKING, configure_torch, size_micro_batch
from sfumato.training.preparation.start import Start, known_micro_batch
from sfumato.training.workers import Workers

Loss = Callable[[Any, Any], Tensor]
REFUSE, SKIP = "refuse", "skip"
"""What to do about a repeated step that would release something else."""


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
        self.plan, self.directory, self.note, self.model = plan, run.path, "", model
        self._run, self._records, self._workers, self._leave = run, records, workers, leave
        self._skips, self._copy = if_changed == SKIP, copy
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        refuse_foreign(optimizer, trained)
        self._statement: Statement | None = None
        if run.complete() or run.finished:
            self._load()
            return
        device, recorded = next(iter(model.parameters())).device, start.facts.recorded
        _, threads = configure_torch(start)
        machine: dict[str, Any] = {"device": str(device), "threads": threads, "precision": precision_of(start)}
        own: dict[str, Any] = {"max_norm": plan.max_norm, "methods": recorded.methods if recorded else None}
        gradient = gradient_of(records, model, loss, template=template, capture=capture, **own)
        tried = model, *(template or _synthetic(records))
        micro_batch = _checked(gradient, loss, records, tried, device, known_micro_batch(start, noise))
        job = LoopJob(
            module=model,
            given=optimizer,
            records=records,
            steps=plan.steps,
            plan=plan,
            gradient=gradient,
            performance=Performance(micro_batch=micro_batch, methods=gradient.methods, **machine),
            circumstances=with_noise(facts, noise, plan, gradient.zeros(), alone=micro_batch == 1),
            noise=noise,
            with_state=with_state,
            tried=tried,
            budget=budget,
            kind=LOOP,
            key=RunKey.load(run / names.RUN_KEY) if run.exists else RunKey.fresh(),
        )
        self._begun = run.exists
        self._job = self._compared(job) if run.exists else self._seeded(job, seed)
        LoopSteps(self._job, self._job.key)  # raises the errors of the first step

    def _compared(self, job: LoopJob) -> LoopJob:
        """The job of a run that is resumed."""
        resume.compare(job, self._run)
        return job

    def _seeded(self, job: LoopJob, seed: int | None) -> LoopJob:
        """The job of a new run; with a seed, by the key that follows from it."""
        self._run.require_free()
        refuse_unfit(job.given)
        return job if seed is None else job.seeded(seed)

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

    def _conclude(self, ledger: Ledger | None, steps: int) -> None:
        """Writes the files of the finished run, as the leader."""
        if ledger is not None:
            weights = {name: value.detach() for name, value in self.model.state_dict().items()}
            history = resume.owner_history(self._job)  # totals count the runs that began meanwhile
            conclude(self._job, self._run, ledger, loop.Outcome(step=steps, weights=weights), history)
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
        resume.require_kind(run, OWN_LOOP)
        pins.require_same("plan", run.read_json(names.PLAN), self.plan.to_dict(), **known)
        pins.require_same("data", {name: recorded["data"][name] for name in data}, data, **known)
        pins.require_same("model", *shapes, **known)
        self.model.load_state_dict(weights)
        self._statement = Statement.from_dict(run.read_json(names.STATEMENT))


def _checked(
    gradient: Any,
    loss: Loss,
    records: LoopRecords,
    tried: tuple[nn.Module, Tree, Tree],
    device: torch.device,
    micro_batch: int | None,
) -> int:
    """Tries model and loss on synthetic examples. Returns the micro-batch size."""
    model, inputs, targets = tried
    with (
        line_if_slow(CHECKING),
        own_errors("the model or loss fails on synthetic records", *tried),
        _devices.fork_rng(device),
        _devices.deterministic(device),
    ):
        torch.manual_seed(0)
        on_device = tree_map(lambda one: one.to(device), inputs)
        shape = _finite_example(model, on_device)
        losses.refuse_beyond(model, loss, on_device, records.smallest, records.largest)
        gradient.self_check(shape, targets=targets)
        return micro_batch or size_micro_batch(gradient, shape, str(device), targets)


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
