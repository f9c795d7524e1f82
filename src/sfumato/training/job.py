"""What a run is to do, decided and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sfumato.data import AsStored, Source, Transform, Views
from sfumato.gradients import ClippedGradient
from sfumato.models import Trunk
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.randomness import DiceKey
from sfumato.runs import pins
from sfumato.training.settings import Performance, Settings


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is to be: everything decided and checked, nothing spent.

    Args:
        module: the model with its initial weights, on the device. The run trains this object.
        gradient: the clipped gradient of `module`, or of its head where there is a trunk.
        trunk: the module's beginning where nothing of it is trained and its features are computed once; else None.
        source, plan, settings, performance: as given.
        transform: from stored images to the model's inputs.
        circumstances: what the statement must say besides the plan.
        key: the dice key; replaced by the recorded one when a run is resumed.
        input_shape: of one view of one example, as `gradient` takes it.
        functions: digests of what the model computes, in evaluation and in training, so that a run is resumed with that
            model only.
        request: what the user asked for, as plain data (source and its options).
        candidate: whether the run is a candidate of a private selection: then it is not measured on its way, and the
            owner's list of uses counts the search instead of it.
    """

    module: nn.Module
    gradient: ClippedGradient
    source: Source
    plan: PrivacyPlan
    settings: Settings
    performance: Performance
    transform: Transform | AsStored
    circumstances: Circumstances
    key: DiceKey
    input_shape: tuple[int, ...]
    functions: Mapping[str, str]
    trunk: Trunk | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    candidate: bool = False

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return torch.device(self.performance.device)

    @property
    def place(self) -> str | None:
        """Where the data were read from, as far as the run knows; for the owner's own list of runs."""
        return self.request.get("source", {}).get("spec")

    @property
    def views(self) -> Views:
        """How the views of an example are made."""
        return self.settings.view_rule

    def record(self, run: str) -> dict[str, Any]:
        """What settings.json holds."""
        return {
            "run": run,
            "candidate": self.candidate,
            "request": dict(self.request),
            "settings": self.settings.to_dict(),
            "performance": self.performance.to_dict(),
            "environment": pins.environment(),
            "circumstances": self.circumstances.to_dict(),
            "data": {
                "kind": self.source.kind,
                "fingerprint": self.source.fingerprint,
                "material": self.source.material,
                "pixels": self.source.pixels,
                "classes": list(self.source.classes),
                "channels": self.source.channels,
                "size": self.source.size,
                "features": self.source.features,
                "backbone": self.source.backbone,
            },
            "transform": self.transform.to_dict(),
            "model": dict(self.functions),
        }
