"""The similarity of two images: of their embeddings x and y, brought to length 1, 1 - |x - y|^2 / 4.

On unit vectors that is (1 + cos(x, y)) / 2, from 0 for opposite ones to 1 for equal ones (Xu et al. 2022, section 4).
It is computed in float64 and rounded to a whole number of steps of 2^-24, the spacing of float32 below 1. So a pair has
one similarity, in whatever block of pairs it is computed, and equal embeddings have a similarity of exactly 1.

Images are looked up by it: the nearest ones, and how often these are of the same class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, number, positive_integer
from sfumato.models import evaluating

Labels = Sequence[int] | Sequence[str] | np.ndarray | Tensor
"""(N,) the class of each image: numbers or names."""

STEPS = 1 << 24
"""The similarity of equal embeddings, in steps."""

BLOCK = 512
"""Images on each side of a block, whose pairs take some 10 MB, however many images there are."""


def similarity(first: Tensor, second: Tensor) -> Tensor:
    """The similarity of each pair of embeddings.

    Args:
        first, second: (..., D), of any length above 0.

    Returns:
        (...) float32 in [0, 1].

    >>> similarity(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [-3.0, 0.0]]))
    tensor([0.5000, 0.0000])
    """
    return in_steps((unit(first) * unit(second)).sum(-1)).float() / STEPS


def verify(first: Tensor, second: Tensor, threshold: float) -> Tensor:
    """Whether two images are taken to show the same: their similarity is at least the threshold.

    Args:
        first, second: embeddings (..., D).
        threshold: of an `OperatingPoint`, found on other images of the same kind.

    Returns:
        (...) of bool.
    """
    # A threshold that accepts nothing lies less above 1 than float32 can tell.
    return similarity(first, second).double() >= number("threshold", threshold)


def checked(embeddings: Tensor | np.ndarray) -> Tensor:
    """The embeddings (N, D), or a refusal where some of them have no direction."""
    embeddings = torch.as_tensor(np.asarray(embeddings)) if not isinstance(embeddings, Tensor) else embeddings
    if embeddings.dim() != 2 or not embeddings.is_floating_point() or 0 in embeddings.shape:
        raise SfumatoError(
            f"embeddings must be real numbers (N, D), got {str(embeddings.dtype).removeprefix('torch.')} "
            f"{tuple(embeddings.shape)}",
            "give one vector for each image, x[None] for a single one",
        )
    largest = torch.linalg.vector_norm(embeddings, ord=torch.inf, dim=1)
    odd = ((largest == 0) | ~largest.isfinite()).nonzero().flatten()
    if len(odd):
        what = "all zero" if largest[odd[0]] == 0 else "not finite"
        raise SfumatoError(
            f"{len(odd):,} of {len(embeddings):,} embeddings have no direction: the numbers of embedding "
            f"{int(odd[0])} are {what}",
            "look at the model that made them: it may have diverged",
        )
    return embeddings


def codes_of(labels: Labels, images: int) -> np.ndarray:
    """The class of each image as a number, int64 (N,), or a refusal where there is not one for each."""
    given = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if given.shape != (images,):
        raise SfumatoError(
            f"labels must be one for each of {images:,} embeddings, got shape {given.shape}",
            "give the class of each image",
        )
    return np.unique(given, return_inverse=True)[1].astype(np.int64)


def unit(embeddings: Tensor) -> Tensor:
    """Embeddings (..., D) brought to length 1, float64."""
    return torch.nn.functional.normalize(embeddings.double(), dim=-1, eps=torch.finfo(torch.float64).tiny)


def in_steps(cosines: Tensor) -> Tensor:
    """Similarities, int32 from 0 to `STEPS`, of cosines, float64."""
    return cosines.add(1).mul_(STEPS / 2).round_().clamp_(0, STEPS).int()


def blocks(images: int, *, within: int | None = None, side: int = BLOCK) -> Iterator[tuple[slice, slice]]:
    """Blocks of pairs (rows, columns) that hold each pair of images i < j once; those on the diagonal hold i >= j too.

    Args:
        images: N.
        within: pairs within consecutive minibatches of so many images alone.
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
    queried = gallery if queries is None else checked(queries)
    others = len(gallery) - (queries is None)
    if positive_integer("k", k) > others:
        raise SfumatoError(f"k is {k}, and there are {others} images to choose from", f"give at most {others}")
    if queried.shape[1] != gallery.shape[1]:
        raise SfumatoError(
            f"queries have {queried.shape[1]} numbers and the gallery's embeddings {gallery.shape[1]}",
            "embed both with the same model",
        )
    found = [
        _best(unit(queried[row : row + side]), gallery, k, side, None if queries is not None else row)
        for row in range(0, len(queried), side)
    ]
    keys = torch.cat(found)
    return _LAST - (keys & _LAST), (keys >> 32).float() / STEPS


def _best(queried: Tensor, gallery: Tensor, k: int, side: int, first: int | None) -> Tensor:
    """The k largest keys (M, k) for unit vectors (M, D): the similarity in steps, then the place, counted down.

    Args:
        first: the place of the first of them in the gallery, where they stand in it themselves.
    """
    best = torch.empty((len(queried), 0), dtype=torch.int64, device=gallery.device)
    rows = torch.arange(len(queried), device=gallery.device)
    for column in range(0, len(gallery), side):
        block = unit(gallery[column : column + side])
        places = torch.arange(column, column + len(block), device=gallery.device)
        keys = (in_steps(queried @ block.T).long() << 32) + (_LAST - places)
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
