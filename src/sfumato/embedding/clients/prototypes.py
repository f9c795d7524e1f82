"""A client's head that begins at what its classes look like: prototypes, and the softmax of cosines that they need.

As in prototypical networks (Snell et al. 2017, arXiv 1703.05175, equation 1), with cosines in place of distances. A
head that begins at random pulls each class to a place of its own in each client, so that much of a client's update is
of that place. At its prototypes a head says from the first step on what separates the classes that are there.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def prototypes(embeddings: Tensor, targets: Tensor, classes: int) -> Tensor:
    """The mean direction of each class: of its embeddings, each brought to length 1, and itself of length 1.

    Args:
        embeddings: (N, D).
        targets: (N,) int64 from 0 to `classes` - 1.
        classes: how many there are.

    Returns:
        (classes, D); zeros for a class without records.

    >>> import torch
    >>> prototypes(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]), 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    unit = functional.normalize(embeddings)
    return functional.normalize(unit.new_zeros(classes, unit.shape[1]).index_add(0, targets, unit))


def cosine_logits(embeddings: Tensor, head: Tensor, temperature: float) -> Tensor:
    """The cosines of embeddings (N, D) and a head's rows (K, D), over the temperature: (N, K).

    >>> import torch
    >>> cosine_logits(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0]]), 0.5).tolist()
    [[2.0, 0.0]]
    """
    return functional.normalize(embeddings) @ functional.normalize(head).T / temperature
