"""Losses by name: logits and labels to one number, and logits to probabilities."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional


def sigmoid_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over examples of the sum over classes of the binary cross-entropy (Mehta et al. 2022, section 4).

    Args:
        logits: (N, classes).
        labels: (N,), positions.

    Returns:
        () in nats.

    >>> import torch
    >>> round(sigmoid_cross_entropy(torch.zeros(2, 3), torch.tensor([0, 2])).item(), 4)  # 3 log 2
    2.0794
    """
    wanted = functional.one_hot(labels, logits.shape[-1]).to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(-1).mean()


LOSSES: MappingProxyType[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"softmax": functional.cross_entropy, "sigmoid": sigmoid_cross_entropy}
)


def probabilities(logits: Tensor, loss: str) -> Tensor:
    """What logits (N, classes) of a model trained by this loss mean: of each class, by itself for "sigmoid"."""
    return logits.sigmoid() if loss == "sigmoid" else logits.softmax(-1)


def logits_of(probabilities: Tensor, loss: str) -> Tensor:
    """Logits (N, classes) that mean these probabilities, as `probabilities` reads them; finite for 0 and 1 as well.

    >>> given = torch.tensor([[0.2, 0.8]])
    >>> all(torch.allclose(probabilities(logits_of(given, loss), loss), given) for loss in LOSSES)
    True
    """
    within = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)
    if loss == "sigmoid":
        return within.log() - (1 - probabilities).clamp(min=torch.finfo(probabilities.dtype).tiny).log()
    return within.log()
