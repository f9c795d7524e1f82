"""Losses by name, and the conversion between logits and probabilities.

The name determines whether classes are exclusive. The settings and the model file hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.models.class_weights import answer_weights


def sigmoid_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy, summed over classes and averaged over examples (Mehta et al. 2022, section 4).

    Args:
        logits: (N, classes).
        labels: (N,), class indices.

    Returns:
        () in nats.

    >>> import torch
    >>> round(sigmoid_cross_entropy(torch.zeros(2, 3), torch.tensor([0, 2])).item(), 4)  # 3 log 2
    2.0794
    """
    return multilabel_cross_entropy(logits, functional.one_hot(labels, logits.shape[-1]))


def multilabel_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Binary cross-entropy, summed over labels and averaged over examples; any number of labels may be 1.

    Labels are summed rather than averaged: clipping compensates for a gradient that is long because of many labels, but
    nothing compensates for one that averaging has made short relative to the noise.

    Args:
        logits: (N, L).
        labels: (N, L) of 0 and 1.
        weights: (L, 2), weights of the answers no and yes to each label (`class_weights.answer_weights`); None for 1.

    Returns:
        () in nats.

    Raises:
        ValueError: labels of another shape.

    >>> round(multilabel_cross_entropy(torch.zeros(2, 3), torch.tensor([[0, 0, 0], [1, 0, 1]])).item(), 4)  # 3 log 2
    2.0794
    """
    if labels.shape != logits.shape:
        raise ValueError(f"labels must be of size {tuple(logits.shape)}, got {tuple(labels.shape)}")
    # The log probability of the true answer. Its gradient stays accurate for p near 1, where p - 1 loses all digits.
    right = functional.logsigmoid((2 * labels - 1) * logits)
    if weights is not None:
        right = right * torch.where(labels > 0, weights[:, 1], weights[:, 0])
    return -right.sum(-1).mean()


MULTILABEL = "multilabel"
LOSSES: MappingProxyType[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "softmax": functional.cross_entropy,
        "sigmoid": sigmoid_cross_entropy,
        MULTILABEL: multilabel_cross_entropy,
    }
)


def weighted(
    loss: str, prevalence: Mapping[str, float] | None, labels: Sequence[str], device: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """The named loss, with answer weights if shares of several labels are declared.

    For exclusive classes the weights multiply clipped gradients instead (`class_weights`).
    """
    if prevalence is None or exclusive(loss):
        return LOSSES[loss]
    weights = torch.tensor(answer_weights(prevalence, labels), device=device)
    return partial(multilabel_cross_entropy, weights=weights)


def exclusive(loss: str) -> bool:
    """Whether classes are exclusive, that is, exactly one is correct."""
    return loss != MULTILABEL


def probabilities(logits: Tensor, loss: str) -> Tensor:
    """Probabilities from logits (N, classes): the softmax for loss "softmax", the sigmoid of each class otherwise."""
    return logits.softmax(-1) if loss == "softmax" else logits.sigmoid()


def logits_of(probabilities: Tensor, loss: str) -> Tensor:
    """Logits (N, classes) with these `probabilities`, finite even for 0 and 1.

    >>> p = torch.tensor([[0.2, 0.8]])
    >>> all(torch.allclose(probabilities(logits_of(p, loss), loss), p) for loss in LOSSES)
    True
    """
    within = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)
    if loss != "softmax":
        return within.log() - (1 - probabilities).clamp(min=torch.finfo(probabilities.dtype).tiny).log()
    return within.log()
