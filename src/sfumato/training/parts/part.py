"""What a run makes: which steps its job takes, and what measures their outcome on the test split, without noise. And
what a feature around a run is: it is asked for, it looks at the source and at the model, and it works at the end.

`prepare`, `execute` and `conclude` go through a run's parts in the order of `PARTS`, and know none of them by name. The
loop, the ledger, the step and the noise are no parts: the guarantee lies in those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from torch import Tensor, nn

from sfumato.data import Preparation, Source, SourceSpec
from sfumato.experiment.settings import Settings
from sfumato.observers.progress import Progress
from sfumato.privacy import Circumstances, Ledger, PrivacyPlan
from sfumato.randomness import NoiseState, RunKey
from sfumato.runs.directory import RunDirectory
from sfumato.runs.reading import Reading


class Steps(Protocol):
    """What a run's steps are."""

    def __call__(self, step: int, state: NoiseState) -> tuple[Mapping[str, Tensor | None], NoiseState]:
        """The gradient to descend by, at what the trained parameters hold, and the noise's next state."""
        ...

    def figures(self, step: int) -> dict[str, Any]:
        """What is to be known of the run after so many steps, besides its scores."""
        ...


@runtime_checkable
class PaidSteps(Steps, Protocol):
    """Those of a plan, of which one that was paid may be lost."""

    def passed(self, step: int, state: NoiseState) -> NoiseState:
        """The noise's state after a step that is paid and lost."""
        ...


class Measure(Protocol):
    """How weights do on the test split; without noise."""

    @property
    def figure(self) -> str:
        """The name of the one figure that matters most."""
        ...

    def outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """What the model with these weights gives, (N, ...), on the CPU."""
        ...

    def score(self, outputs: Tensor) -> dict[str, Any]:
        """The figures of such outputs, JSON-ready."""
        ...

    def evaluation(self, weights: Mapping[str, Tensor], outputs: Tensor | None = None) -> dict[str, Any]:
        """All that is to be kept of these weights, whose outputs may be known already, JSON-ready."""
        ...


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What tells one kind of run from another: the same loop takes its steps, and the same record is kept of them.

    Args:
        steps: of a job and the run key.
        scorer: of a job.
    """

    steps: Callable[[Any, RunKey, Progress], Steps]
    scorer: Callable[[Any, Progress], Measure]


Added = Callable[[int], Mapping[str, Tensor]]
"""Of a step, by parameter name, a public constant that is added to its sum before the noise, in units of C."""


@dataclass(frozen=True, kw_only=True)
class Early:
    """What is known of a run before its data are read.

    Args:
        spec: the source as it is declared.
        of_persons: whether the promise is for users.
        by_time: whether the plan goes by time stamps.
        options: what is asked for of the parts, by name.
    """

    spec: SourceSpec
    of_persons: bool
    by_time: bool
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What a private run is, besides its model."""

    source: Source
    plan: PrivacyPlan
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class Asked(Decided):
    """What is known of a run before its model is built.

    Args:
        candidate: whether it is a candidate of a private selection.
        options: what is asked for of the parts, by name.
    """

    candidate: bool
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the steps have led to.

    Args:
        module: the model; its weights are any.
        transform: from stored records to its inputs.
        device: where it is.
        step: how many steps were taken.
        weights: those that are released.
        outputs: what the model gives with them for the test split.
        scorer: what measures it.
    """

    module: nn.Module
    transform: Preparation
    device: str
    step: int
    weights: Mapping[str, Tensor]
    outputs: Tensor
    scorer: Measure


@dataclass(kw_only=True)
class Ending:
    """What a run leaves behind, while it is made.

    Args:
        decided: the run's source, plan and settings.
        trained: what came of its steps.
        run, ledger: its own.
        key: its own too; None where it is lost.
        circumstances: what its statement must say.
        reading: how the model's logits are read.
        evaluation: what else its evaluation says: fields of `report.Evaluation`.
        bound: what else the ledger's last line binds.
    """

    decided: Decided
    trained: Trained
    run: RunDirectory
    ledger: Ledger
    key: RunKey | None
    circumstances: Circumstances
    reading: Reading
    evaluation: dict[str, Any] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)


class Part:
    """A feature around a run. What it does not say is said here: nothing."""

    options: tuple[str, ...] = ()
    """The names of what may be asked for of it, as `sfumato.train` takes them."""

    @classmethod
    def check(cls, early: Early) -> None:
        """Refuse, before any data are read, what no data could allow."""

    @classmethod
    def of(cls, asked: Asked) -> Self | None:
        """The part of such a run; None where it has none. Refuses what these data do not allow."""
        raise NotImplementedError

    @classmethod
    def recorded(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Its options by the record of the run in this directory, which goes on. Refuses what cannot be had again."""
        return {}

    def kept_from(self, source: Source) -> Source:
        """The source that is trained on."""
        return source

    @property
    def examples(self) -> Any:
        """The public examples that the model is built with, where it takes some."""
        return None

    def with_model(self, module: nn.Module, transform: Preparation) -> Self:
        """The part, once the model is there."""
        return self

    def in_steps(self, source: Source, key: RunKey) -> Source:
        """The source as the steps alone see it: nothing is measured or counted on what it has besides."""
        return source

    def in_sums(self, key: RunKey) -> Added | None:
        """Of a step, what is added to its sum, whoever takes part; None for nothing."""
        return None

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """What draws go by besides the plan, with one entry for each training record (`PrivateSteps`)."""
        return {}

    @property
    def pins(self) -> dict[str, dict[str, Any]]:
        """What the run must be resumed with: recorded at the top of settings.json, and bound by the ledger's first
        line. Each value is a mapping, whose difference is named."""
        return {}

    @property
    def keyed(self) -> dict[str, dict[str, Any]]:
        """The same of what decides who takes part: each entry is bound by itself, and seeds are for it alone."""
        return {}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """What the statement must say, with what it must say of this part."""
        return facts

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """What to tell the owner before the first step."""
        yield from ()

    def end(self, ending: Ending) -> None:
        """Its work once all steps are taken. Killed at any point and called again, it does the same again."""


def in_sums(parts: Sequence[Part], key: RunKey) -> Added | None:
    """What a run's parts add to its sums: one of them at most."""
    return next((found for part in parts if (found := part.in_sums(key)) is not None), None)
