"""What the loop needs of a run before it begins: steps, scorer, `Job`, and `PlannedJob` of a run with a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.averaging import Average, TrainingOverAggregates
from sfumato.experiment.settings import Performance
from sfumato.observers.progress import Progress
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.randomness import NoiseState, RunKey
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.owner.lines import DataIdentity
from sfumato.training.weights import trained_parameters


class Steps(Protocol):
    """The steps of a run."""

    def __call__(self, step: int, state: NoiseState) -> tuple[Mapping[str, Tensor | None], NoiseState]:
        """Returns the gradient at the present trained parameters, and the next noise state."""
        ...

    def figures(self, step: int) -> dict[str, Any]:
        """Figures of the run after so many steps, besides its scores."""
        ...


@runtime_checkable
class PaidSteps(Steps, Protocol):
    """The steps of a private run, which can be lost after they are paid for."""

    def skip_lost(self, step: int, state: NoiseState) -> NoiseState:
        """The noise state after a lost step."""
        ...


class Measure(Protocol):
    """Evaluates weights on the test split, without noise."""

    @property
    def figure(self) -> str:
        """The name of the main figure."""
        ...

    def outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The outputs (N, ...) of the model with these weights, on the CPU."""
        ...

    def score(self, outputs: Tensor) -> dict[str, Any]:
        """The figures of these outputs, as JSON data."""
        ...

    def evaluation(self, weights: Mapping[str, Tensor], outputs: Tensor | None = None) -> dict[str, Any]:
        """The full evaluation of these weights, as JSON data; `outputs` skips computing them."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunKind:
    """A kind of run. All kinds share the loop and the record.

    Args:
        steps: makes the steps of a job from the run key.
        scorer: makes the scorer of a job, a `Measure`; None where there is no test split.
    """

    steps: Callable[[Any, RunKey, Progress], Steps]
    scorer: Callable[[Any, Progress], Any] = lambda job, progress: None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run before it begins: everything decided and checked, nothing spent.

    Args:
        module: the model with its initial weights, on the device. The run trains this object.
        steps: number of steps of the whole run.
        performance: as given.
        key: the run key; replaced by the recorded one when a run is resumed.
        kind: how steps are taken and scored.
    """

    module: nn.Module
    steps: int
    performance: Performance
    key: RunKey
    kind: RunKind
    pinned: ClassVar[Mapping[str, str]] = {}
    """Entries of the record that must not change while a run is resumed, each with its remedy, or "" for the usual."""
    averaging: ClassVar[Average | None] = None
    """The average of the weights that is released; None without averaging."""
    training_over: ClassVar[TrainingOverAggregates | None] = None
    """The aggregate at which gradients are computed; None for the last weights."""
    learning_rate: ClassVar[Callable[[int], float] | None] = None
    """The learning rate of a step; None where the optimizer keeps its own."""
    has_statistics: ClassVar[bool] = False
    """Whether the model may have statistics of public examples, which follow its weights."""

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return torch.device(self.performance.device)

    @property
    def step_facts(self) -> dict[str, Any]:
        """Plain data besides the settings that determine the steps: recorded, and pinned like the settings."""
        return {}

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer over the trained parameters."""
        raise NotImplementedError

    def first_checkpoint(self, identity: str, *, ledger: str = "") -> Checkpoint:
        """The state before the first step.

        Args:
            identity: of the run.
            ledger: the hash of the ledger's first entry.
        """
        average = {} if self.averaging is None else self.averaging.begin(trained_parameters(self.module))
        return self.checkpoint(0, average, self.optimizer(), run=identity, ledger=ledger)

    def checkpoint(
        self, step: int, average: dict[str, Tensor], optimizer: torch.optim.Optimizer, **state: Any
    ) -> Checkpoint:
        """The state after so many steps. `state` are further fields of the checkpoint."""
        return Checkpoint.of(step, self.module, average, optimizer, **state)

    def restore(
        self, checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, *, where: str | None
    ) -> dict[str, Tensor]:
        """Restores module and optimizer from the checkpoint. Returns the average's state.

        Args:
            where: the run, whose optimizer must have the same constants; None if no further step is taken.
        """
        if where is not None:
            checkpoint.require_optimizer(optimizer, where=where)
        return checkpoint.restore(self.module, optimizer, self.device)

    def released_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights that go into the model file."""
        return weights

    def record(self, run: str) -> dict[str, Any]:
        """The content of settings.json of the run with this identity."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PlannedJob(Job):
    """A run with a plan, and so with a ledger and a statement.

    Args:
        gradient: the clipped sum over the units that the plan draws.
        plan: the plan of all releases.
        circumstances: facts for the statement besides the plan.
        budget: name of the owner's budget in which the whole plan is reserved.
    """

    gradient: Any
    plan: PrivacyPlan
    circumstances: Circumstances
    budget: str | None = None
    client_count: ClassVar[int | None] = None
    """m, the declared number of virtual clients in a round, which their sum is divided by; None without clients."""
    noise: ClassVar[str]
    """The noise setting."""
    identity: ClassVar[DataIdentity]
    """By what the owner's list recognises the data."""
    fingerprint: ClassVar[str]
    """The keyed fingerprint of the data, to which the ledger's first line commits."""
    decided: ClassVar[Any]
    """Plain data to which the ledger's first line commits: everything besides plan and data that the sums depend on.

    **Guarantee.** A copy of an unfinished run is resumed with the rate, named model and transform of the run, or not at
    all, so that its record stays true.
    """
    sampler_inputs: ClassVar[Mapping[str, np.ndarray]] = {}
    """Further inputs of the sampler, with one entry for each training record of the original source: "groups"
    (`Sampler`), and "excluded" for records that are drawn but contribute nothing."""

    @property
    def budget_fact(self) -> dict[str, Any]:
        """The budget's name, for the record."""
        return {} if self.budget is None else {"budget": {"name": self.budget}}

    @property
    def listed(self) -> dict[str, Any]:
        """What the owner's list says of the run besides data, plan and name."""
        figures = self.circumstances.figures
        return {
            "figures": None if figures is None else figures.epsilon,
            "budget": self.budget,
            "seeded": self.circumstances.seeded,
        }
