"""A custom loop as a job: model, loss, optimizer and the code between two steps are the user's."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.gradients.checks import losses
from sfumato.gradients.checks.discovery import own_errors
from sfumato.gradients.examples import Tree, call_model, tree_map, tree_tensors
from sfumato.models.description import OWN_LOOP
from sfumato.observers.progress import line_if_slow
from sfumato.randomness import RunKey
from sfumato.runs import pins
from sfumato.runs.checkpoint import MOVING, Checkpoint, roundtrip
from sfumato.runs.owner.lines import DataIdentity
from sfumato.training.custom.records import LoopRecords
from sfumato.training.planned import PlannedJob
from sfumato.training.preparation.prepare import CHECKING, size_micro_batch

Loss = Callable[[Any, Any], Tensor]
LATER = "later"
"""The key of the states of `with_state` in a checkpoint's optimizer."""


@dataclass(frozen=True, kw_only=True)
class LoopJob(PlannedJob):
    """A run of `private_steps` before it begins.

    Args:
        records: the training records.
        given: the user's optimizer.
        noise: the noise setting.
        with_state: further objects whose state is in the checkpoints.
        tried: the model with synthetic inputs and targets, to name their types in an error.
        received: weights from outside, and the step that starts from them.
    """

    records: LoopRecords
    given: torch.optim.Optimizer
    noise: str  # type: ignore[assignment]
    with_state: tuple[Any, ...] = ()
    tried: tuple[Any, Tree, Tree] = field(repr=False)
    received: tuple[int, dict[str, Tensor]] | None = field(default=None, repr=False)
    pinned: ClassVar[Mapping[str, str]] = {
        "data": "give the original records, on a machine with the owner's key that began the run, or another "
        "`directory`",
        "optimizer": "",
        "model": "",
        LATER: "",
        "circumstances": "",
        "performance": "",
    }

    @property
    def step_facts(self) -> dict[str, Any]:
        """The budget's name, also where there is none: a run goes on with the budget that it began with."""
        return {"budget": {}} | self.budget_fact

    @property
    def identity(self) -> DataIdentity:  # type: ignore[override]
        """By what the owner's list recognises the records."""
        records = self.records
        return DataIdentity(records.data_digests, records.places, records.users, codes=lambda: records.identifiers)

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """The records'."""
        return self.records.fingerprint

    @property
    def decided(self) -> dict[str, Any]:  # type: ignore[override]
        """As of `PlannedJob`."""
        record = self.record("")
        return {name: record[name] for name in ("data", "optimizer", "model", LATER, "circumstances")}

    def record(self, run: str) -> dict[str, Any]:
        """The content of settings.json."""
        records, parameters = self.records, self.module.named_parameters()
        shapes = {name: [*value.shape] if value.requires_grad else "frozen" for name, value in parameters}
        constants = [
            {name: repr(value) for name, value in group.items() if name not in MOVING}
            for group in self.given.param_groups
        ]
        return {
            "run": run,
            "kind": OWN_LOOP,
            "data": {"fingerprint": records.fingerprint, "material": records.data_digests[0], "records": records.count},
            "request": {},
            "places": list(records.places),
            "model": {"name": type(self.module).__qualname__, "parameters": shapes},
            "optimizer": {"name": type(self.given).__qualname__, "groups": constants},
            LATER: [type(one).__qualname__ for one in self.with_state],
            "circumstances": self.circumstances.to_dict(),
            "performance": self.performance.to_dict(),
            "environment": pins.environment(),
            **self.budget_fact,
        }

    def seeded(self, seed: int) -> Self:
        """The job with the key of a seed, for these data, this plan, model and optimizer only.

        **Guarantee.** Runs that differ in anything that their sums depend on have different keys: see `common_setup`.
        """
        decided = self.decided | {"precision": self.performance.precision}
        weights = pins.weights_digest(self.module.state_dict())
        content = json.dumps([self.plan.fingerprint, weights, decided], sort_keys=True)
        return replace(self, key=RunKey.from_seed(seed, content))

    def optimizer(self) -> torch.optim.Optimizer:
        """The user's own."""
        return self.given

    def checkpoint(
        self, step: int, average: dict[str, Tensor], optimizer: torch.optim.Optimizer, **state: Any
    ) -> Checkpoint:
        """As of `Job`, with the states of `with_state`."""
        checkpoint = super().checkpoint(step, average, optimizer, **state)
        if not self.with_state:
            return checkpoint
        later = {LATER: [one.state_dict() for one in self.with_state]}
        return replace(checkpoint, optimizer=checkpoint.optimizer | later)

    def restore(
        self, checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, *, where: str | None
    ) -> dict[str, Tensor]:
        """As of `Job`, with the states of `with_state`, and with the weights from outside where steps start from
        them."""
        average = super().restore(checkpoint, optimizer, where=where)
        for one, state in zip(self.with_state, checkpoint.optimizer.get(LATER, []), strict=True):
            one.load_state_dict(state)
        if self.received is not None and self.received[0] == checkpoint.step:
            self.module.load_state_dict(self.received[1])
        return average


def refuse_unfit(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that already has a state, needs more than gradients, or whose state cannot be saved.

    A copy is tried on small synthetic parameters; the optimizer itself stays unchanged.

    **Guarantee.** The optimizer holds nothing of earlier gradients when the run begins: momentum of gradients from a
    loop over the same records without noise would be released with the model.
    """
    name, remedy = type(optimizer).__name__, "give an optimizer that only needs gradients, such as torch.optim.AdamW"
    _, *given = inspect.signature(type(optimizer).step).parameters.values()  # schedulers wrap the instance's method
    needed = [one.name for one in given if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if needed:
        raise SfumatoError(
            f"{name}.step needs {', '.join(needed)}: it would compute further losses within a step, without clipping "
            "and noise",
            remedy,
        )
    if any(float(one.get("step", 1)) for one in optimizer.state.values() if one):
        raise SfumatoError(
            f"the optimizer {name} already has a state, such as momentum of plain gradients",
            "make a new one over the model's parameters for this run",
        )
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    most = None if optimizer.state else 2  # an existing state has the parameters' shapes
    small = {id(one): nn.Parameter(torch.ones([min(most or n, n) for n in one.shape])) for one in parameters}
    trial = copy.deepcopy(optimizer, dict(small))  # deepcopy's memo replaces the parameters by the small ones
    for one in small.values():
        one.grad = torch.ones_like(one)
    try:
        type(trial).step(trial)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise SfumatoError(f"{name} fails on a step with gradients alone: {why}", remedy) from error
    roundtrip(trial.state_dict())


def refuse_foreign(optimizer: torch.optim.Optimizer, trained: Mapping[str, Tensor]) -> None:
    """Refuse an optimizer whose parameters are not exactly the trained ones."""
    moved = {id(one) for group in optimizer.param_groups for one in group["params"]}
    if foreign := len(moved - {id(one) for one in trained.values()}):
        raise SfumatoError(
            f"the optimizer has {foreign} tensors that are not trainable parameters of the model",
            "make it over the parameters of this model: optimizer(model.parameters(), ...)",
        )
    if missing := [name for name, one in trained.items() if id(one) not in moved]:
        raise SfumatoError(
            f"the optimizer leaves out {len(missing)} trainable parameters of the model, such as {missing[0]}, which "
            "would cost privacy without being trained",
            "give it all of them, or set requires_grad=False for those that are not trained",
        )


def check(
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


def synthetic(records: LoopRecords) -> tuple[Tree, Tree]:
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
