"""Training without clients and without privacy: what the private methods are compared with (DP-FedEmb, section 3.1).

"When all users are grouped into a single virtual client, federated training is equivalent to centralized training."
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import positive_integer
from sfumato.embedding.local import LocalSGD, LocalTraining, fresh_head


class WithHead(nn.Module):
    """A backbone with one head over all classes: inputs (N, ...) to logits (N, classes).

    Args:
        backbone: inputs to embeddings (N, D).
        classes: declared, whoever has records of them.
        width: D.
        generator: draws the head's first weights; they are public.
    """

    def __init__(self, backbone: nn.Module, *, classes: int, width: int, generator: np.random.Generator):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(positive_integer("width", width), positive_integer("classes", classes), bias=False)
        with torch.no_grad():
            self.head.weight.copy_(fresh_head(classes, width, generator))

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs to logits."""
        return self.head(self.backbone(inputs))


def centrally_trained(
    model: WithHead, settings: LocalSGD, inputs: Tensor, labels: Tensor, generator: np.random.Generator
) -> dict[str, Tensor]:
    """The weights after SGD over all users' records. There is no noise and no clipping, and so no promise.

    Args:
        model: never changed.
        settings: as of a client; the head is the model's own, and is trained at the backbone's rate.
        inputs: (N, ...), all records.
        labels: (N,) int64, positions of the model's classes.
        generator: decides the order of the records, and whatever the model draws.
    """
    return LocalTraining(model, replace(settings, head="global")).trained(inputs, labels, generator)
