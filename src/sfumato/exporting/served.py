"""A run's model as one module: with what `predict` or `embed` do around it, or worked into its last layer."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError
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


ELSEWHERE = "export it --to onnx, which takes any model"


def folded(served: Served, module: nn.Module, last: nn.Module | None) -> nn.Module:
    """The module, changed so that the softmax (or sigmoid) of its logits gives the run's scores.

    A temperature and a shift of classes' shares become (W / T, b / T + offsets).

    Args:
        module: a copy of the run's network, or the network that holds its weights.
        last: the layer within it that gives the logits, where it is known.

    Raises:
        SfumatoError: there is something to be worked in, and that layer is not linear with a bias.
    """
    reading = served.loaded.reading
    temperature = reading.temperature or 1.0
    if served.loaded.embedding is not None or (temperature == 1.0 and not any(reading.offsets)):
        return module
    if not isinstance(last, (nn.Linear, nn.Conv2d)) or last.bias is None:
        raise SfumatoError("the last layer of the model cannot hold its temperature", ELSEWHERE)
    with torch.no_grad():
        last.weight.div_(temperature)
        last.bias.copy_(last.bias / temperature + last.bias.new_tensor(reading.offsets))
    return module


def read(served: Served) -> str:
    """How logits become scores, as a method of a tensor in a line of code."""
    if served.loaded.embedding is not None:
        return ""
    return ".softmax(-1)" if served.loaded.loss == "softmax" else ".sigmoid()"


def each_channel(constants: float | Sequence[float], channels: int) -> list[float]:
    """One number for each channel, where one may stand for all."""
    given: list[float] = list(constants) if isinstance(constants, Sequence) else [constants]
    return given * (channels if len(given) == 1 else 1)
