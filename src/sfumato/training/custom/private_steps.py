"""`for step in sfumato.private_steps(...)`: the arguments of a custom training loop, checked before spending budget."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sfumato._checks import SfumatoError, one_of, positive, positive_integer
from sfumato.experiment.settings import SECURE, STANDARD, Performance, refuse_noise
from sfumato.gradients.checks.external_models import loss_of_model, storable, unwrap
from sfumato.gradients.examples import Tree
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.privacy.plan import default_delta
from sfumato.privacy.unit import ALL, Example, User
from sfumato.randomness import RunKey, owner_key
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import lines
from sfumato.training import launch
from sfumato.training.custom.job import LoopJob, Loss, check, refuse_foreign, refuse_unfit, synthetic
from sfumato.training.custom.records import LABELS, LoopRecords, own_records
from sfumato.training.custom.steps import LOOP, REFUSE, SKIP, LoopSteps, PrivateSteps, refuse_unready
from sfumato.training.custom.users import gradient_of, group_by_user
from sfumato.training.preparation import resume
from sfumato.training.preparation.building import precision_of, with_noise
from sfumato.training.preparation.prepare import check_epsilon, configure_torch
from sfumato.training.preparation.start import Machine, Start, check_budget, known_micro_batch


def private_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    loss: Loss | None = None,
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
    users: Sequence[Any] | np.ndarray | None = None,
    per_user: int | None = None,
    per_step: int | None = None,
    with_state: Sequence[Any] = (),
    template: tuple[Tree, Tree] | None = None,
    public: bool = False,
    name: str | None = None,
    budget: str | None = None,
    seed: int | None = None,
    noise: str = STANDARD,
    precision: str | None = None,
    threads: int | None = None,
    micro_batch: int | None = None,
    capture: bool = False,
    if_changed: str = REFUSE,
    copy: bool = False,
    rounds: int = 0,
) -> PrivateSteps:
    """The private steps of a custom training loop. The same call resumes an interrupted run. Processes of torchrun take
    the steps together, and run the loop's body each.

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
        model: any module, on any device. It is trained in place.
        optimizer: over its parameters. It updates the weights in each step, before the loop's body runs.
        data: the model's inputs: a pair (inputs, targets) of tensors or arrays (N, ...), or of tuples or dicts of them;
            a dict of them with `labels`; or a map-style data set of such pairs or dicts, which must give the same
            record each time. Otherwise an opened source, or data for `sfumato.open_source` (a spelling, torchvision's
            data sets, those of Hugging Face, a DataFrame), of which the training part is used: images (N, C, H, W).
        loss: a function of (outputs, targets), one example's outputs (1, ...) and target (1, ...), to a number. None
            for the model's own `outputs.loss` if its inputs are a dict with `labels`, otherwise for cross-entropy.
        directory: the run directory.
        plan: everything that determines epsilon; replaces the arguments that follow.
        epsilon, delta, batch_size, epochs or steps, noise_multiplier, max_norm: as for `PrivacyPlan.calibrate`: three
            of epsilon, batch size, steps and noise multiplier determine the fourth. Steps are epochs times N over the
            batch size, rounded up. By default, delta is the largest power of ten of at most 1e-5 and 1/(10 N), as in
            `train`; C is 1.
        examples: N, if declared (here or in the source), with `users` their number; otherwise it is counted, and the
            statement says so.
        users: (N,), who each record belongs to, as strings or integers: the guarantee is then for each user, such as a
            patient, with all of their records. A step draws users and clips the mean gradient of each user's records
            to C as a whole. Batch size and N count users, and inputs and targets are one tensor each. By default the
            guarantee is for each single record.
        per_user: with `users`, G, the most records kept of each user, chosen by a keyed hash; by default all.
        per_step: with `users`, the most of these records that a user shows in a step, drawn anew by the run's key; by
            default 1. It changes no epsilon: more cost time and make a user's gradient less noisy.
        with_state: further objects to save in checkpoints, with `state_dict` and `load_state_dict`. It must hold a
            learning rate scheduler of the optimizer, which is made before the call.
        template: synthetic or public (inputs, targets), for a model that fails on random numbers, or on integers that
            are all 0 or all 1 (`ClippedGradient`).
        public: the data are public: the run is not put on the owner's list.
        name: the owner's name for these records, such as "faces". The owner's list recognises tensors only by their
            values; runs under one name are counted together, whatever the normalisation (`sfumato spent name:faces`).
        budget: name of a budget (`set_budget`) in which the whole plan is reserved before the run begins.
        seed: for experiments: determines all randomness; the run then has no guarantee.
        noise: "standard", or "secure": drawn exactly and rounded to a public grid, one example at a time by default.
        precision: "float32", or "bfloat16" for the matrix products and convolutions of a step.
        threads: CPU threads of torch.
        micro_batch: largest number of examples in memory at once.
        capture: on a CUDA device, launch the clipped sum as a CUDA graph (`ClippedGradient`), as `train` does. The
            loop's body must then not change the function that model and loss compute, apart from the weights.
        if_changed: what to do if a step that is repeated after an interruption would release something else, for
            example with another loss or on a device that rounds differently: "refuse", or "skip": the steps paid for
            since the checkpoint are lost, as the statement says, and the loop continues after them.
        copy: resume the run although another copy of it went on, such as one before a backup was restored; the steps
            that the other copy may have taken are counted as spent.
        rounds: the rounds of a federation that the steps are divided into: given by `private_rounds`.

    **Guarantee.** The weights after every step, all of them together, have the plan's (epsilon, delta) for each single
    example, or for each user if `users` are given: each step is a `PrivateStep` whose participants are drawn by the
    plan (`Sampler`), and the ledger commits to its release before the weights move. A step that is repeated after an
    interruption gives the same release or none, whatever has changed. With secure noise this holds for the numbers that
    a machine computes (`NoiseGrid`). The optimizer, and everything that the loop's body does with the weights, is
    post-processing as long as it reads no private record.

    Errors: `SfumatoError` before any budget is spent.
    """
    _refuse_choices(optimizer, with_state, noise, if_changed)
    run, key, model = RunDirectory(directory), owner_key(), storable(unwrap(model))
    records, joined = own_records(data, key), _join(rounds)
    records, unit = _unit_of(_with_name(records, name, run, public), users, per_user, per_step, plan)
    asked = {"batch_size": batch_size, "steps": steps, "noise_multiplier": noise_multiplier, "epsilon": epsilon}
    plan = _choose_plan(plan, examples or records.examples, asked, epochs, delta, max_norm, unit)
    _refuse_plan(plan, noise, rounds)
    facts = _circumstances(records, counted=examples is None, public=public, seeded=seed is not None, rounds=rounds)
    check_budget(budget, public=facts.data_public, seed=seed)
    refuse_foreign(optimizer, {name: value for name, value in model.named_parameters() if value.requires_grad})
    machine = Machine(threads=threads, micro_batch=micro_batch, precision=precision)
    job = None
    if not (run.complete() or run.finished):
        job = _job(
            *(model, optimizer, records, loss or _loss_by_rule(records), plan, facts, run, machine),
            template=template,
            capture=capture,
            noise=noise,
            with_state=tuple(with_state),
            budget=budget,
        )
        job = _compared(job, run) if run.exists else _begun(job, run, seed)
        LoopSteps.of(job, job.key)  # raises the errors of the first step
    own = PrivateSteps(model, records, plan, run, job, **joined, skips=if_changed == SKIP, copy=copy)
    own._announce()
    return own


def _job(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    records: LoopRecords,
    loss: Loss,
    plan: PrivacyPlan,
    facts: Circumstances,
    run: RunDirectory,
    machine: Machine,
    *,
    template: tuple[Tree, Tree] | None,
    capture: bool,
    noise: str,
    **known: Any,
) -> LoopJob:
    """The run before it begins, whose model and loss were tried on synthetic records.

    Args:
        facts: the circumstances, without those of the noise.
        known: further fields of `LoopJob`.
    """
    start = Start.for_run(run, machine=machine)
    device, recorded = next(iter(model.parameters())).device, start.facts.recorded
    _, threads = configure_torch(start)
    pinned: dict[str, Any] = {"device": str(device), "threads": threads, "precision": precision_of(start)}
    own: dict[str, Any] = {"max_norm": plan.max_norm, "methods": recorded.methods if recorded else None}
    gradient = gradient_of(records, model, loss, template=template, capture=capture, **own)
    tried = model, *(template or synthetic(records))
    micro_batch = check(gradient, loss, records, tried, device, known_micro_batch(start, noise))
    return LoopJob(
        module=model,
        given=optimizer,
        records=records,
        steps=plan.steps,
        plan=plan,
        gradient=gradient,
        performance=Performance(micro_batch=micro_batch, methods=gradient.methods, **pinned),
        circumstances=with_noise(facts, noise, plan, gradient.zeros(), alone=micro_batch == 1),
        noise=noise,
        tried=tried,
        kind=LOOP,
        key=start.facts.key or RunKey.fresh(),
        **known,
    )


def _compared(job: LoopJob, run: RunDirectory) -> LoopJob:
    """The job of a run that is resumed."""
    resume.compare(job, run)
    return job


def _begun(job: LoopJob, run: RunDirectory, seed: int | None) -> LoopJob:
    """The job of a new run; with a seed, by the key that follows from it."""
    run.require_free()
    refuse_unfit(job.given)
    return job if seed is None else job.seeded(seed)


def _circumstances(records: LoopRecords, *, counted: bool, public: bool, **facts: Any) -> Circumstances:
    """The circumstances of the run, without those of its noise.

    Args:
        counted: whether N was read from the data, not declared.
    """
    of_data = records.facts
    read = tuple(fact for fact in of_data.read if counted or fact not in ("examples", "users"))
    facts |= {"data_public": public or of_data.data_public, "origins": ("own model",), "own_loop": True}
    return replace(of_data, read=read, **facts)


def _join(rounds: int) -> dict[str, Any]:
    """The workers that torchrun started and a function to leave them. Followers wait until the leader has begun the
    run."""
    joined = ExitStack()
    workers = joined.enter_context(launch.join_if_started())
    if workers.count > 1 and rounds:
        raise SfumatoError("several processes cannot share the rounds of one site", "start one process for each site")
    if not workers.is_leader:
        workers.receive_run()
    return {"workers": workers, "leave": joined.close}


def _refuse_plan(plan: PrivacyPlan, noise: str, rounds: int) -> None:
    """Refuse noise that the plan's mechanism has not, and rounds that would not have the same number of steps."""
    refuse_noise(noise, plan.mechanism, plan.clipping)
    if rounds and plan.steps % rounds:
        raise SfumatoError(
            f"{plan.steps} steps cannot be divided into rounds={rounds} of equal length",
            f"give steps={-(-plan.steps // rounds) * rounds}, or a number of rounds that divides the steps",
        )


def _refuse_choices(optimizer: Any, with_state: Sequence[Any], noise: str, if_changed: str) -> None:
    one_of((STANDARD, SECURE), noise=noise)
    one_of((REFUSE, SKIP), if_changed=if_changed)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SfumatoError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}",
            "give one over the model's parameters, such as torch.optim.SGD(model.parameters(), lr=0.1)",
        )
    refuse_unready(optimizer, with_state)


def _unit_of(
    records: LoopRecords,
    users: Sequence[Any] | np.ndarray | None,
    per_user: int | None,
    per_step: int | None,
    plan: PrivacyPlan | None,
) -> tuple[LoopRecords, Example | User]:
    if users is not None:
        by_default = 1 if plan is None else plan.unit.per_step or ALL
        return group_by_user(records, users, per_user, by_default if per_step is None else per_step)
    for name, value in {"per_user": per_user, "per_step": per_step}.items():
        if value is not None:
            raise SfumatoError(f"{name} is {value}, but there are no users", "give users, who each record belongs to")
    return records, Example()


def _with_name(records: LoopRecords, name: str | None, run: RunDirectory, public: bool) -> LoopRecords:
    """The records with the name under which they are counted. A resumed run must have the same name."""
    own = () if name is None else (lines.place(name),)
    if own and (public or records.facts.data_public):
        raise SfumatoError(f"name is {name}, but public data are not on the owner's list", "leave it out")
    if run.exists:
        recorded = [one for one in run.read_json(names.SETTINGS).get("places", ()) if one.startswith(lines.NAMED)]
        if recorded != [*own]:
            began = recorded[0].removeprefix(lines.NAMED) if recorded else None
            raise SfumatoError(
                f"name is {name!r}, but the run in {run.path} began with {began!r}",
                "give that name, or another directory",
            )
    return replace(records, places=(*records.places, *own))


def _loss_by_rule(records: LoopRecords) -> Loss:
    inputs = records.zero_record[0]
    return loss_of_model if isinstance(inputs, dict) and LABELS in inputs else functional.cross_entropy


def _choose_plan(
    plan: PrivacyPlan | None,
    examples: int,
    requested: dict[str, Any],
    epochs: float | None,
    delta: float | None,
    max_norm: float | None,
    unit: Example | User,
) -> PrivacyPlan:
    """The given or calibrated plan. Refuses plans that a custom loop does not support."""
    if plan is None:
        plan = _calibrated(examples, requested, epochs, delta, max_norm, unit)
    elif given := [
        name
        for name, value in {**requested, "delta": delta, "epochs": epochs, "max_norm": max_norm}.items()
        if value is not None
    ]:
        raise SfumatoError(f"plan and {', '.join(given)} are both given", "leave out one: the plan has them")
    if plan.unit != unit:
        raise SfumatoError(
            f"the plan's unit is {plan.unit}, but that of the records is {unit}",
            "give users, per_user and per_step for a plan whose unit is the user, and that plan the same",
        )
    check_epsilon(plan)
    return plan


def _calibrated(
    examples: int,
    asked: dict[str, Any],
    epochs: float | None,
    delta: float | None,
    max_norm: float | None,
    unit: Example | User,
) -> PrivacyPlan:
    positive_integer(examples=examples, remedy="give the number of training examples")
    if epochs is not None:
        positive(epochs=epochs)
        if asked["steps"] is not None or asked["batch_size"] is None:
            raise SfumatoError(
                f"epochs={epochs} needs a batch_size, and cannot be given with steps",
                "give epochs and batch_size, or steps",
            )
        asked = asked | {"steps": -int(-epochs * examples // asked["batch_size"])}
    delta = delta or default_delta(unit.count(examples))
    return PrivacyPlan.calibrate(examples=examples, delta=delta, max_norm=max_norm, unit=unit, **asked)
