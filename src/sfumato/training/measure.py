"""What measures the weights of a run on its test split, without noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


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


@runtime_checkable
class OfRecords(Measure, Protocol):
    """One that can be asked of some records alone, and of each by itself: that of a classifier."""

    def outputs(self, weights: Mapping[str, Tensor], places: Sequence[int] | None = None) -> Tensor:
        """What the model with these weights gives, (N, ...), on the CPU: for all records, or for those at these
        places."""
        ...

    def outputs_alone(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The same for all records, each a function of its own record and of the weights, for what is released."""
        ...
