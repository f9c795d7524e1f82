"""For formats that hold a network alone: what `predict` does to its outputs, worked into its last layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.exporting.served import Served

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
