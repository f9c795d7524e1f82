"""Random windows of any size and aspect ratio, and their resizing: Inception crops as views (Szegedy et al. 2015)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RATIO = (3 / 4, 4 / 3)
"""Between which the aspect ratio of a random window lies, width to height."""
TRIES = 10
"""How often a random window that does not fit is drawn again."""
LARGEST_BLOCK, WEIGHTS = 64, 1 << 19
"""The most images that are resized at once, and numbers in their matrices of weights."""


def windows(
    generator: np.random.Generator, shape: tuple[int, int], *, side: int, least: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random windows on square images: top and left (n, K), and height and width (n, K, 2), int16.

    The area is uniform between `least` and 1 of the image's, the aspect ratio (width to height) log-uniform between 3:4
    and 4:3, and each place at which the window fits is equally likely; one that does not fit is drawn again, and after
    ten tries the whole image is taken. Szegedy et al. 2015, section 6 ("distributed evenly", "between 8% and 100%");
    as in `torchvision.transforms.RandomResizedCrop`.

    Args:
        shape: (n, K).
        side: pixels on each side of the images.
        least: the smallest area.
    """
    tries = (TRIES, *shape)
    area = side**2 * generator.uniform(least, 1, size=tries)
    ratio = np.exp(generator.uniform(*np.log(RATIO), size=tries))
    high, wide = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
    fits = (np.minimum(high, wide) >= 1) & (np.maximum(high, wide) <= side)
    chosen, any_fits = fits.argmax(0)[np.newaxis], fits.any(0)
    sides = [np.where(any_fits, np.take_along_axis(one, chosen, 0)[0], side).astype(np.int64) for one in (high, wide)]
    down, right = (generator.integers(0, side - one, endpoint=True).astype(np.int16) for one in sides)
    return down, right, np.stack(sides, axis=-1).astype(np.int16)


def cropped(images: Tensor, places: Tensor, sides: Tensor, size: int) -> Tensor:
    """Windows (n, K, C, size, size) of images (n, C, S, S), resized by the triangle filter, antialiased.

    **Guarantee.** Each view is a function of its own image and window. They are computed in blocks whose shape depends
    on public sizes alone, the last one filled up with copies, so that not even rounding tells how many there are.

    Args:
        images: floating-point.
        places: (n, K, 2), top and left of each window.
        sides: (n, K, 2), its height and width.
        size: pixels on each side of the result.
    """
    n, count = places.shape[:2]
    block = max(1, min(LARGEST_BLOCK, WEIGHTS // (2 * count * size * images.shape[-1])))
    views = images.new_empty(n, count, images.shape[1], size, size)
    for start in range(0, n, block):
        rows = torch.arange(start, start + block, device=images.device).clamp(max=n - 1)
        views[start : start + block] = resized(images[rows], places[rows], sides[rows], size)[: n - start]
    return views


def resized(images: Tensor, places: Tensor, sides: Tensor, size: int) -> Tensor:
    """As `cropped`, all at once.

    Resizing is linear, and vertical and horizontal apart: the image times one matrix of weights on each side.
    """
    n, count, length = *places.shape[:2], images.shape[-1]
    place, side = places.unsqueeze(-1).to(images.dtype), sides.unsqueeze(-1).to(images.dtype)  # (n, K, 2, 1)
    scale = side / size
    centre = place + (torch.arange(size, device=images.device, dtype=images.dtype) + 0.5) * scale  # (n, K, 2, size)
    pixel = torch.arange(length, device=images.device, dtype=images.dtype) + 0.5
    weights = (pixel - centre.unsqueeze(-1)).abs_().div_(-scale.clamp(min=1).unsqueeze(-1)).add_(1).clamp_(min=0)
    inside = (pixel > place) & (pixel < place + side)  # (n, K, 2, S): nothing beyond the window's edge is seen
    weights.mul_(inside.unsqueeze(-2))
    weights.div_(weights.sum(-1, keepdim=True))  # (n, K, 2, size, S)
    down, right = weights.unbind(2)
    rows = down.reshape(n, count * size, length) @ images.transpose(1, 2).reshape(n, length, -1)
    columns = right.reshape(n * count, size, length).transpose(1, 2)
    return (rows.reshape(n * count, -1, length) @ columns).reshape(n, count, size, -1, size).transpose(2, 3)
