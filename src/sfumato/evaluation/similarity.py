"""Similarity of two images, 1 - |x - y|^2 / 4 for their normalised embeddings x and y, and retrieval by it.

For unit vectors the similarity is (1 + cos(x, y)) / 2: 0 for opposite vectors, 1 for equal ones (Xu et al. 2022,
section 4). It is computed in float64 and rounded to a multiple of 2^-24, the spacing of float32 below 1. A pair
therefore has the same similarity in every block in which it is computed, and equal embeddings have a similarity of
exactly 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, number, positive_integer
from sfumato.models import evaluation_mode

Labels = Sequence[int] | Sequence[str] | np.ndarray | Tensor
"""(N,) the class of each image, as a number or a name."""

STEPS = 1 << 24
"""The similarity of equal embeddings, in steps of 2^-24."""

BLOCK = 512
"""Images on each side of a block of pairs. A block takes about 10 MB, regardless of the number of images."""


def similarity(first: Tensor, second: Tensor) -> Tensor:
    """The similarity of each pair of embeddings.

    Args:
        first, second: (..., D), of any length above 0.

    Returns:
        (...) float32 in [0, 1].

    >>> similarity(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [-3.0, 0.0]]))
    tensor([0.5000, 0.0000])
    """
    return quantise((normalise(first) * normalise(second)).sum(-1)).float() / STEPS


def verify(first: Tensor, second: Tensor, threshold: float) -> Tensor:
    """Whether two images are accepted as the same class: their similarity is at least the threshold.

    Args:
        first, second: embeddings (..., D).
        threshold: the threshold of an `OperatingPoint`, found on other images of the same kind.

    Returns:
        bool (...).
    """
    # A threshold that accepts nothing may exceed 1 by less than the precision of float32.
    return similarity(first, second).double() >= number(threshold=threshold)


def checked_embeddings(embeddings: Tensor | np.ndarray) -> Tensor:
    """Returns the embeddings (N, D) as a tensor; refuses embeddings without a direction."""
    embeddings = torch.as_tensor(np.asarray(embeddings)) if not isinstance(embeddings, Tensor) else embeddings
    if embeddings.dim() != 2 or not embeddings.is_floating_point() or 0 in embeddings.shape:
        raise SfumatoError(
            f"embeddings must be real numbers (N, D), got {str(embeddings.dtype).removeprefix('torch.')} "
            f"{tuple(embeddings.shape)}",
            "pass one vector for each image, x[None] for a single one",
        )
    largest = torch.linalg.vector_norm(embeddings, ord=torch.inf, dim=1)
    odd = ((largest == 0) | ~largest.isfinite()).nonzero().flatten()
    if len(odd):
        problem = "all zero" if largest[odd[0]] == 0 else "not finite"
        raise SfumatoError(
            f"{len(odd):,} of {len(embeddings):,} embeddings have no direction: the values of embedding "
            f"{int(odd[0])} are {problem}",
            "check the model that computed them: it may have diverged",
        )
    return embeddings


def codes_of(labels: Labels, images: int) -> np.ndarray:
    """Returns the class of each image as a number, int64 (N,); refuses labels of another shape."""
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.shape != (images,):
        raise SfumatoError(
            f"labels must be one for each of {images:,} embeddings, got shape {array.shape}",
            "pass the class of each image",
        )
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def normalise(embeddings: Tensor) -> Tensor:
    """Embeddings (..., D) normalised to length 1, float64."""
    return torch.nn.functional.normalize(embeddings.double(), dim=-1, eps=torch.finfo(torch.float64).tiny)


def quantise(cosines: Tensor) -> Tensor:
    """Converts cosines, float64, to similarities, int32 from 0 to `STEPS`."""
    return cosines.add(1).mul_(STEPS / 2).round_().clamp_(0, STEPS).int()


def blocks(images: int, *, within: int | None = None, side: int = BLOCK) -> Iterator[tuple[slice, slice]]:
    """Yields blocks (rows, columns) that contain each pair of images i < j once; diagonal blocks also contain i >= j.

    Args:
        images: N.
        within: size of the consecutive minibatches within which pairs are formed; None for all pairs.
        side: images on each side of a block.

    >>> [(rows.start, columns.start) for rows, columns in blocks(5, side=2)]
    [(0, 0), (0, 2), (0, 4), (2, 2), (2, 4), (4, 4)]
    """
    for begin in range(0, images, within or images):
        end = min(begin + (within or images), images)
        for row in range(begin, end, side):
            for column in range(row, end, side):
                yield slice(row, min(row + side, end)), slice(column, min(column + side, end))


_LAST = (1 << 32) - 1


def embed(model: nn.Module, batches: Iterable[Tensor]) -> Tensor:
    """Computes the normalised embeddings of images in evaluation mode.

    Args:
        model: maps float images (N, C, H, W) to embeddings (N, D). Its training mode is restored afterwards.
        batches: batches of images; moved to the model's device.

    Returns:
        (images, D) float32, on the CPU.
    """
    device = next(model.parameters()).device
    with evaluation_mode(model), torch.no_grad():
        embeddings = [normalise(model(images.to(device))).float().cpu() for images in batches]
    return torch.cat(embeddings)


def nearest(gallery: Tensor, queries: Tensor | None = None, *, k: int = 5, side: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Finds the k gallery images that are most similar to each query. Ties go to the earlier image.

    Needs memory for one block of pairs, in addition to arguments and results.

    Args:
        gallery: embeddings (N, D).
        queries: embeddings (M, D); None to query each gallery image among the others.
        k: at most N, or N - 1 without queries.
        side: images on each side of a block.

    Returns:
        indices in the gallery, int64 (M, k), and similarities, float32 (M, k), by descending similarity.

    Raises:
        SfumatoError: embeddings without direction or of different dimensions, or fewer than k images to choose from.
    """
    gallery = checked_embeddings(gallery)
    queried = gallery if queries is None else checked_embeddings(queries)
    others = len(gallery) - (queries is None)
    positive_integer(most=others, k=k, remedy="give at most the number of images to choose from")
    blocks_of_keys = [
        _best(normalise(queried[row : row + side]), gallery, k, side, None if queries is not None else row)
        for row in range(0, len(queried), side)
    ]
    keys = torch.cat(blocks_of_keys)
    return _LAST - (keys & _LAST), (keys >> 32).float() / STEPS


def _best(queried: Tensor, gallery: Tensor, k: int, side: int, first: int | None) -> Tensor:
    """The k largest keys (M, k) for unit vectors (M, D). A key is the similarity in steps, then the negated index.

    Args:
        first: the gallery index of the first query, if the queries are gallery images themselves.
    """
    best = torch.empty((len(queried), 0), dtype=torch.int64, device=gallery.device)
    rows = torch.arange(len(queried), device=gallery.device)
    for column in range(0, len(gallery), side):
        block = normalise(gallery[column : column + side])
        indices = torch.arange(column, column + len(block), device=gallery.device)
        keys = (quantise(queried @ block.T).long() << 32) + (_LAST - indices)
        if first is not None:
            keys[rows[:, None] + first == indices] = -1
        candidates = torch.cat([best, keys], dim=1)
        best = candidates.topk(min(k, candidates.shape[1]), dim=1).values
    return best


def recall_at_k(embeddings: Tensor, labels: Labels, ks: Sequence[int] = (1, 5, 10)) -> dict[int, float]:
    """Recall@k: the fraction of images with at least one image of their class among the k nearest others.

    Args:
        embeddings: (N, D).
        labels: (N,).
        ks: values of k, each below N.

    Returns:
        {k: fraction}, over the images whose class has another image.

    Raises:
        SfumatoError: as for `nearest`; not one label per embedding, or no two images of one class.
    """
    codes = codes_of(labels, len(embeddings))
    has_match = np.bincount(codes)[codes] > 1
    if not has_match.any():
        raise SfumatoError(f"no two of {len(codes):,} images are of one class", "pass at least two images of one class")
    indices, _ = nearest(embeddings, k=max(ks))
    right = codes[indices.cpu().numpy()] == codes[:, None]
    return {k: float(right[has_match, :k].any(1).mean()) for k in ks}
