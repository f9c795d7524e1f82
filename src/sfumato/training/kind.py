"""What a run makes: which steps its job takes, and what measures their outcome on the test split, without noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from sfumato.observers.progress import Progress
from sfumato.randomness import NoiseState, RunKey


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
