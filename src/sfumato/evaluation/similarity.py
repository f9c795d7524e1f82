"""The similarity of two images: of their embeddings x and y, brought to length 1, 1 - |x - y|^2 / 4.

On unit vectors that is (1 + cos(x, y)) / 2, from 0 for opposite ones to 1 for equal ones (Xu et al. 2022, section 4).
It is computed in float64 and rounded to a whole number of steps of 2^-24, the spacing of float32 below 1. So a pair has
one similarity, in whatever block of pairs it is computed, and equal embeddings have a similarity of exactly 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, number

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
