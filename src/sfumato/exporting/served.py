"""A run's model as one module, including the pre- and postprocessing of `predict` or `embed`."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import FeatureTransform, Tokens
from sfumato.models.projection import synthetic_images
from sfumato.runs import Loaded

RECORDS = "records"
"""Name of the graph's only input."""


class Served(nn.Module):
    """A run's network with its input transform and its scores.

    Args:
        loaded: the model; not modified.
    """

    def __init__(self, loaded: Loaded):
        super().__init__()
        self.module = copy.deepcopy(loaded.module).requires_grad_(False).eval()
        self.loaded = loaded

    @property
    def output(self) -> str:
        """Name of the graph's only output."""
        return "probabilities" if self.loaded.embedding is None else "embedding"

    def forward(self, records: Tensor) -> Tensor:
        """Maps records (N, ...) to probabilities (N, classes), or to embeddings (N, D) of length 1.

        Args:
            records: images uint8 (N, size, size, channels), token numbers int64 (N, T), or features float32 (N, D).
        """
        loaded = self.loaded
        inputs = records if isinstance(loaded.transform, FeatureTransform) else loaded.transform(records)
        outputs = self.module(inputs)
        return loaded.reading.scores(outputs) if loaded.embedding is None else functional.normalize(outputs, dim=1)

    def synthetic(self, count: int) -> Tensor:
        """Synthetic records (count, ...) for `forward`, the same on every call."""
        transform = self.loaded.transform
        if isinstance(transform, Tokens):
            return transform.synthetic(count)
        if isinstance(transform, FeatureTransform):
            return torch.randn(count, transform.width, generator=torch.Generator().manual_seed(0))
        drawn = synthetic_images(count, channels=transform.channels, size=(transform.size, transform.size))
        images = torch.cat(list(drawn)).permute(0, 2, 3, 1)
        return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).contiguous()
