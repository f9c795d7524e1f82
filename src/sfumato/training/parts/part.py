"""Interfaces of a run: its steps and its scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from sfumato.observers.progress import Progress
from sfumato.randomness import NoiseState, RunKey


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
