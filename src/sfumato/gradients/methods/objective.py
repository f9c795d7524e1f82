"""What gradients are taken of: a loss of a model, and what is found out about it once and holds for all runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sfumato.gradients.methods.derived import Forms
from sfumato.gradients.tuner import Tuner


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The mean over views of a loss of a model, for one example.

    Attributes:
        model, loss: as `ClippedGradient` takes them.
        views: K.
        tuner: how each site's gradient norms are computed.
        forms: how tensors follow from parameters.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    views: int
    tuner: Tuner = field(default_factory=Tuner)
    forms: Forms = field(default_factory=Forms)
