"""A run's model as one module: from records as they are stored to what `predict` or `embed` give."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import AsStored, Tokens
from sfumato.models.projection import synthetic_images
from sfumato.runs import Loaded

RECORDS = "records"
"""What a graph's only input is called."""


class Served(nn.Module):
    """Preparation, network and reading of a run's model in one.

    Args:
        loaded: the model, which stays as it is.
    """

    def __init__(self, loaded: Loaded):
        super().__init__()
        self.module = copy.deepcopy(loaded.module).requires_grad_(False).eval()
        self.loaded = loaded

    @property
    def output(self) -> str:
        """What its only output is called."""
        return "probabilities" if self.loaded.embedding is None else "embedding"

    def forward(self, records: Tensor) -> Tensor:
        """Records (N, ...) to probabilities (N, classes), or embeddings (N, D) of length 1.

        Args:
            records: images uint8 (N, size, size, channels), word numbers int64 (N, T), or features float32 (N, D).
        """
        loaded = self.loaded
        inputs = records if isinstance(loaded.transform, AsStored) else loaded.transform(records)
        outputs = self.module(inputs)
        return loaded.reading.scores(outputs) if loaded.embedding is None else functional.normalize(outputs, dim=1)

    def made_up(self, count: int) -> Tensor:
        """The same made-up records every time, (count, ...), as `forward` takes them: nobody's."""
        transform = self.loaded.transform
        if isinstance(transform, Tokens):
            return transform.synthetic(count)
        if isinstance(transform, AsStored):
            return torch.randn(count, transform.width, generator=torch.Generator().manual_seed(0))
        drawn = synthetic_images(count, channels=transform.channels, size=(transform.size, transform.size))
        images = torch.cat(list(drawn)).permute(0, 2, 3, 1)
        return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).contiguous()
