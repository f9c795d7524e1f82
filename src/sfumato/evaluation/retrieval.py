"""Looking images up by their embeddings: the nearest ones, and how often the nearest are of the same class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.evaluation.similarity import BLOCK, STEPS, Labels, checked, codes_of, in_steps, unit
from sfumato.models import evaluating

_LAST = (1 << 32) - 1


def embed(model: nn.Module, batches: Iterable[Tensor]) -> Tensor:
    """The embeddings of images, of length 1, in evaluation mode.

    Args:
        model: float images (N, C, H, W) to embeddings (N, D); left in the modes that it has.
        batches: of images; computed with where the model lies.

    Returns:
        (images, D) float32, on the CPU.
    """
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        made = [unit(model(images.to(device))).float().cpu() for images in batches]
    if not made:
        raise SfumatoError("there are no images to embed", "give at least one batch")
    return torch.cat(made)


def nearest(gallery: Tensor, queries: Tensor | None = None, *, k: int = 5, side: int = BLOCK) -> tuple[Tensor, Tensor]:
    """The k images of the gallery that are most similar to each query; of equally similar ones those that come first.

    Takes the memory of one block of pairs, beside what is given and returned.

    Args:
        gallery: embeddings (N, D).
        queries: embeddings (M, D); None for those of the gallery, each looked for among the others.
        k: at most N, or N - 1 without queries.
        side: images on each side of a block.

    Returns:
        places in the gallery, int64 (M, k), and similarities, float32 (M, k), by falling similarity.

    Raises:
        SfumatoError: embeddings without direction or of different lengths, or too few of them.
    """
    gallery = checked(gallery)
    asked = gallery if queries is None else checked(queries)
    others = len(gallery) - (queries is None)
    if positive_integer("k", k) > others:
        raise SfumatoError(f"k is {k}, and there are {others} images to choose from", f"give at most {others}")
    if asked.shape[1] != gallery.shape[1]:
        raise SfumatoError(
            f"queries have {asked.shape[1]} numbers and the gallery's embeddings {gallery.shape[1]}",
            "embed both with the same model",
        )
    found = [
        _best(unit(asked[row : row + side]), gallery, k, side, None if queries is not None else row)
        for row in range(0, len(asked), side)
    ]
    keys = torch.cat(found)
    return _LAST - (keys & _LAST), (keys >> 32).float() / STEPS


def _best(asked: Tensor, gallery: Tensor, k: int, side: int, first: int | None) -> Tensor:
    """The k largest keys (M, k) for unit vectors (M, D): the similarity in steps, then the place, counted down.

    Args:
        first: the place of the first of them in the gallery, where they stand in it themselves.
    """
    best = torch.empty((len(asked), 0), dtype=torch.int64, device=gallery.device)
    rows = torch.arange(len(asked), device=gallery.device)
    for column in range(0, len(gallery), side):
        block = unit(gallery[column : column + side])
        places = torch.arange(column, column + len(block), device=gallery.device)
        keys = (in_steps(asked @ block.T).long() << 32) + (_LAST - places)
        if first is not None:
            keys[rows[:, None] + first == places] = -1
        together = torch.cat([best, keys], dim=1)
        best = together.topk(min(k, together.shape[1]), dim=1).values
    return best


def recall_at_k(embeddings: Tensor, labels: Labels, ks: Sequence[int] = (1, 5, 10)) -> dict[int, float]:
    """The share of images of whose k nearest others at least one is of the same class.

    Args:
        embeddings: (N, D).
        labels: (N,).
        ks: each below N.

    Returns:
        {k: share}, over the images whose class has another image.

    Raises:
        SfumatoError: as `nearest`, other labels than one for each, or no two images of one class.
    """
    codes = codes_of(labels, len(embeddings))
    accompanied = np.bincount(codes)[codes] > 1
    if not accompanied.any():
        raise SfumatoError(f"no two of {len(codes):,} images are of one class", "give at least two images of one class")
    places, _ = nearest(embeddings, k=max(ks))
    right = codes[places.cpu().numpy()] == codes[:, None]
    return {k: float(right[accompanied, :k].any(1).mean()) for k in ks}
