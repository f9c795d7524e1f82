"""Random windows of any size and aspect ratio, and their resizing: Inception crops as views (Szegedy et al. 2015)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RATIO = (3 / 4, 4 / 3)
"""Between which the aspect ratio of a random window lies, width to height."""
TRIES = 10
"""How often a random window that does not fit is drawn again."""


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


def resized(image: Tensor, places: Tensor, sides: Tensor, size: int) -> Tensor:
    """Windows (K, C, size, size) of one image (C, S, S), resized by the triangle filter, antialiased.

    Resizing is linear, and vertical and horizontal apart: the image times one matrix of weights on each side.

    Args:
        image: floating-point.
        places: (K, 2), top and left of each window.
        sides: (K, 2), its height and width.
        size: pixels on each side of the result.
    """
    length = image.shape[-1]
    place, side = places.unsqueeze(-1).to(image.dtype), sides.unsqueeze(-1).to(image.dtype)  # (K, 2, 1)
    scale = side / size
    centre = place + (torch.arange(size, device=image.device, dtype=image.dtype) + 0.5) * scale  # (K, 2, size)
    pixel = torch.arange(length, device=image.device, dtype=image.dtype) + 0.5
    reach = scale.clamp(min=1).unsqueeze(-1)
    weights = (1 - (pixel - centre.unsqueeze(-1)).abs() / reach).clamp(min=0)  # (K, 2, size, S)
    inside = (pixel > place) & (pixel < place + side)  # (K, 2, S): nothing beyond the window's edge is seen
    weights = weights * inside.unsqueeze(2)
    down, right = (weights / weights.sum(-1, keepdim=True)).unbind(1)  # each (K, size, S)
    rows = down.flatten(0, 1) @ image.transpose(0, 1).flatten(1)  # (K size, C S)
    return (
        (rows.reshape(len(down), -1, length) @ right.transpose(1, 2))
        .reshape(len(down), size, len(image), size)
        .transpose(1, 2)
    )
