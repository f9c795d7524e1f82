"""Losses by name: logits and labels to one number, and logits to probabilities. The name is what says whether classes
exclude each other: it goes from settings to the model file, and whoever reads logits reads them by it.

And losses on the embeddings of a batch alone, without a head: by pairs and by triplets (DP-FedEmb, section 4.3).
Embeddings are brought to length 1 first, as they are when they are compared; distances are squared, |x - y|^2 in 0..4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.models.shares import answer_weights


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
        weights: (L, 2), of the answers no and yes to each label (`answer_weights`); None for 1.

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


def next_word_cross_entropy(logits: Tensor, words: Tensor) -> Tensor:
    """Cross-entropy of each text's next words, averaged over the words of a text, and then over texts.

    Padding does not count. A text without words contributes 0.

    Args:
        logits: (N, T, V), at each position for the word that follows it.
        words: (N, T), the words that follow, 0 for padding.

    Returns:
        () in nats.

    >>> words = torch.tensor([[2, 1, 0], [3, 0, 0]])
    >>> round(next_word_cross_entropy(torch.zeros(2, 3, 4), words).item(), 4)  # log 4
    1.3863
    """
    counted = words > 0
    right = functional.log_softmax(logits, -1).gather(-1, words.unsqueeze(-1)).squeeze(-1)
    return -((right * counted).sum(-1) / counted.sum(-1).clamp_min(1)).mean()


MULTILABEL, NEXT_WORD = "multilabel", "next-word"
LOSSES: MappingProxyType[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "softmax": functional.cross_entropy,
        "sigmoid": sigmoid_cross_entropy,
        MULTILABEL: multilabel_cross_entropy,
        NEXT_WORD: next_word_cross_entropy,
    }
)


def weighted_loss(
    loss: str, prevalence: Mapping[str, float] | None, labels: Sequence[str], device: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of this name, with weights of the answers where shares of several labels are declared. Weights of
    classes multiply clipped gradients instead (`class_weights`)."""
    if prevalence is None or is_exclusive(loss):
        return LOSSES[loss]
    weights = torch.tensor(answer_weights(prevalence, labels), device=device)
    return partial(multilabel_cross_entropy, weights=weights)


def is_exclusive(loss: str) -> bool:
    """Whether classes are exclusive, that is, exactly one is correct."""
    return loss != MULTILABEL


def probabilities(logits: Tensor, loss: str) -> Tensor:
    """Probabilities from logits (N, classes): the softmax for loss "softmax", the sigmoid of each class otherwise."""
    return logits.softmax(-1) if loss in ("softmax", NEXT_WORD) else logits.sigmoid()


def logits_of(probabilities: Tensor, loss: str) -> Tensor:
    """Logits (N, classes) with these `probabilities`, finite even for 0 and 1.

    >>> p = torch.tensor([[0.2, 0.8]])
    >>> all(torch.allclose(probabilities(logits_of(p, loss), loss), p) for loss in LOSSES)
    True
    """
    within = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)
    if loss not in ("softmax", NEXT_WORD):
        return within.log() - (1 - probabilities).clamp(min=torch.finfo(probabilities.dtype).tiny).log()
    return within.log()


MARGIN = 0.2
"""The margin by which a triplet's negative should be farther than its positive (Schroff et al. 2015, section 3)."""
SHARPNESS = 10.0
"""The factor from cosine to logit of a pair: the initial value of Zhai et al. 2023 (arXiv 2303.15343)."""


def binary(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of whether two examples have the same class, averaged over all pairs of a batch.

    The logit of a pair is `SHARPNESS` (cosine - 1/2).

    Args:
        embeddings: (N, D).
        labels: (N,).

    Returns:
        () in nats; 0 for a single example.

    >>> same = binary(torch.ones(2, 3), torch.tensor([1, 1]))
    >>> round(same.item(), 4), round(binary(torch.ones(2, 3), torch.tensor([1, 2])).item(), 4)
    (0.0067, 5.0067)
    """
    unit = functional.normalize(embeddings)
    left, right = torch.triu_indices(len(labels), len(labels), offset=1, device=labels.device)
    logits = SHARPNESS * ((unit[left] * unit[right]).sum(1) - 0.5)
    alike = (labels[left] == labels[right]).to(logits.dtype)
    total = functional.binary_cross_entropy_with_logits(logits, alike, reduction="sum")
    return total / max(1, len(left))


def triplet(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Triplet loss, averaged over all triplets of a batch that violate `MARGIN` ("batch all", Hermans et al. 2017).

    Args:
        embeddings: (N, D).
        labels: (N,).

    Returns:
        (); 0 if there is no such triplet.
    """
    distances, positive, negative = _compared(embeddings, labels)
    short = torch.relu(distances[:, :, None] - distances[:, None, :] + MARGIN)
    short = short * (positive[:, :, None] & negative[:, None, :])
    return short.sum() / (short.detach() > 0).sum().clamp(min=1)


def triplet_hard(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Triplet loss of the farthest positive and the nearest negative of each example, averaged over examples.

    "Batch hard" of Hermans et al. 2017 (arXiv 1703.07737), equation 5, with `MARGIN`. Examples without a positive or
    without a negative in the batch do not count.

    Args:
        embeddings: (N, D).
        labels: (N,).

    Returns:
        (); 0 if no example counts.
    """
    distances, positive, negative = _compared(embeddings, labels)
    furthest = torch.where(positive, distances, -torch.inf).amax(1)
    nearest = torch.where(negative, distances, torch.inf).amin(1)
    counted = positive.any(1) & negative.any(1)
    short = torch.relu(furthest[counted] - nearest[counted] + MARGIN)
    return short.sum() / max(1, len(short))


def _compared(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances, positive pairs (same class) and negative pairs (different classes), each of shape (N, N)."""
    unit = functional.normalize(embeddings)
    alike = labels[:, None] == labels[None, :]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return 2 - 2 * unit @ unit.T, alike & ~itself, ~alike


PAIRED: MappingProxyType[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"binary": binary, "triplet": triplet, "triplet-hard": triplet_hard}
)
