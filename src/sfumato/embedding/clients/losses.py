"""Losses on the embeddings of a batch alone, without a head: by pairs and by triplets (DP-FedEmb, section 4.3).

Embeddings are brought to length 1 first, as they are when they are compared; distances are squared, |x - y|^2 in 0..4.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

MARGIN = 0.2
"""By how much a triplet's negative should be further than its positive (Schroff et al. 2015, section 3)."""
SHARPNESS = 10.0
"""What the cosine is multiplied by to give a pair's logit (Zhai et al. 2023, arXiv 2303.15343, where it starts)."""


def binary(embeddings: Tensor, labels: Tensor) -> Tensor:
    """The mean over the pairs of a batch of the binary cross-entropy of "of one class", by the cosine.

    The logit is `SHARPNESS` (cosine - 1/2).

    Args:
        embeddings: (N, D).
        labels: (N,).

    Returns:
        () in nats; 0 for a single record.

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
    """The mean over all triplets of a batch that are not yet apart by `MARGIN` ("batch all", Hermans et al. 2017).

    Args:
        embeddings: (N, D).
        labels: (N,).

    Returns:
        (); 0 where there is no such triplet.
    """
    distances, positive, negative = _compared(embeddings, labels)
    short = torch.relu(distances[:, :, None] - distances[:, None, :] + MARGIN)
    short = short * (positive[:, :, None] & negative[:, None, :])
    return short.sum() / (short.detach() > 0).sum().clamp(min=1)


def triplet_hard(embeddings: Tensor, labels: Tensor) -> Tensor:
    """The mean over records of how far the furthest of their class is beyond the nearest of another one, and `MARGIN`.

    "Batch hard" of Hermans et al. 2017 (arXiv 1703.07737), equation 5. Records alone in their class, or in a batch of
    one class, don't count.

    Args:
        embeddings: (N, D).
        labels: (N,).

    Returns:
        (); 0 where no record counts.
    """
    distances, positive, negative = _compared(embeddings, labels)
    furthest = torch.where(positive, distances, -torch.inf).amax(1)
    nearest = torch.where(negative, distances, torch.inf).amin(1)
    counted = positive.any(1) & negative.any(1)
    short = torch.relu(furthest[counted] - nearest[counted] + MARGIN)
    return short.sum() / max(1, len(short))


def _compared(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances (N, N), which pairs are two of one class, and which are of two classes."""
    unit = functional.normalize(embeddings)
    alike = labels[:, None] == labels[None, :]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return 2 - 2 * unit @ unit.T, alike & ~itself, ~alike


PAIRED: MappingProxyType[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"binary": binary, "triplet": triplet, "triplet-hard": triplet_hard}
)
