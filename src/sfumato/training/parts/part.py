"""Interfaces of a run: its steps, its scorer, and its parts, the optional features of a run.

`prepare`, `execute` and `conclude` apply a run's parts in the order of `PARTS` without knowing them by name. Loop,
ledger, step and noise are not parts: the guarantee rests on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from torch import Tensor, nn

from sfumato.data import Source, SourceSpec
from sfumato.experiment.settings import Settings
from sfumato.observers.progress import Progress
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan
from sfumato.randomness import NoiseState, RunKey
from sfumato.runs.directory import RunDirectory


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
        scorer: makes the scorer of a job.
    """

    steps: Callable[[Any, RunKey, Progress], Steps]
    scorer: Callable[[Any, Progress], Measure]


@dataclass(frozen=True, kw_only=True)
class EarlyFacts:
    """Facts of a run before its data are read.

    Args:
        spec: the source as declared.
        options: the options of the parts, by name.
    """

    spec: SourceSpec
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """Source, plan and settings of a private run."""

    source: Source
    plan: PrivacyPlan
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class RunRequest(RunSetup):
    """Facts of a run before its model is built.

    Args:
        options: the options of the parts, by name.
    """

    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a run's steps.

    Args:
        step: number of steps taken.
        weights: the released weights.
        outputs: the outputs of the released model on the test split.
        scorer: evaluates the model.
    """

    step: int
    weights: Mapping[str, Tensor]
    outputs: Tensor
    scorer: Measure


@dataclass(kw_only=True)
class Conclusion:
    """The conclusion of a run, which its parts extend.

    Args:
        setup: the run's source, plan and settings.
        trained: the result of its steps.
        run, ledger: the run's directory and ledger.
        key: the run's key; None if it is lost.
        circumstances: facts for the statement.
        evaluation: additional fields of `report.Evaluation`.
        bound: additional entries of the ledger's last line.
    """

    setup: RunSetup
    trained: Trained
    run: RunDirectory
    ledger: Ledger
    key: RunKey | None
    circumstances: Circumstances
    evaluation: dict[str, Any] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)


class Part:
    """An optional feature of a run. By default, no method has an effect."""

    options: tuple[str, ...] = ()
    """The names of its options in `sfumato.train`."""

    @classmethod
    def check(cls, early: EarlyFacts) -> None:
        """Refuse, before any data are read, options that are impossible for any data."""

    @classmethod
    def from_request(cls, request: RunRequest) -> Self | None:
        """The part of this run; None if the run has none. Refuses options that these data do not allow."""
        raise NotImplementedError

    @classmethod
    def recorded_options(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The options in the record of a run that is resumed. Refuses options that cannot be restored."""
        return {}

    def exclude_records(self, source: Source) -> Source:
        """The source without records that the part excludes from training."""
        return source

    @property
    def examples(self) -> Any:
        """The public examples that the model is built with, if any."""
        return None

    def with_model(self, module: nn.Module) -> Self:
        """The part, completed with facts of the built model."""
        return self

    @property
    def sampler_inputs(self) -> dict[str, np.ndarray]:
        """Further inputs of the sampler, with one entry for each training record (`PrivateTrainingSteps`)."""
        return {}

    @property
    def pins(self) -> dict[str, dict[str, Any]]:
        """Facts that must not change when the run is resumed, as mappings by name.

        They are recorded at the top of settings.json, and bound by the ledger's first line.
        """
        return {}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds this part's facts for the statement."""
        return facts

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """Messages for the owner before the first step."""
        yield from ()

    def end(self, conclusion: Conclusion) -> None:
        """Its work after all steps. If it is killed and called again, it has the same result."""
