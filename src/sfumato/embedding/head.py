"""Training without clients and without privacy: what the private methods are compared with (DP-FedEmb, section 3.1).

"When all users are grouped into a single virtual client, federated training is equivalent to centralized training."
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import positive_integer
from sfumato.embedding.clients.local import fresh_head


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
