"""Random crops of varying size and aspect ratio (Inception crops, Szegedy et al. 2015) and their resizing, as views in
training or once for a backbone."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, positive_integer

RATIO = (3 / 4, 4 / 3)
"""Range of the aspect ratio of a random window, width to height."""
TRIES = 10
"""Number of draws for a random window that fits."""
LARGEST_BLOCK, WEIGHTS = 64, 1 << 19
"""Largest number of images resized at once, and of entries in their weight matrices."""


def windows(
    generator: np.random.Generator, shape: tuple[int, int], *, side: int, least: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random windows on square images: top and left (n, K), and height and width (n, K, 2), int16.

    The area is uniform between `least` and 1 of the image's, the aspect ratio (width to height) log-uniform between 3:4
    and 4:3, and the position uniform among those where the window fits. A window that does not fit is drawn again;
    after ten tries the whole image is used. Szegedy et al. 2015, section 6 ("distributed evenly", "between 8% and
    100%"); as in `torchvision.transforms.RandomResizedCrop`.

    Args:
        shape: (n, K).
        side: pixels on each side of the images.
        least: smallest share of the area.
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

    **Guarantee.** Each view is a function of its own image and window. Views are computed in blocks whose shape depends
    on public sizes alone. The last block is padded with copies, so that not even rounding reveals the number of images.

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
    """Like `cropped`, all at once.

    Resizing is linear and separable: the image is multiplied by one weight matrix on each side.
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


AREA = 0.08
"""Smallest share of the area in a random crop in Szegedy et al. 2015."""


@dataclass(frozen=True, kw_only=True)
class InceptionCrops:
    """K random crops of an image, with at least 8% of its area and aspect ratio 3:4 to 4:3, resized to one size.

    Area uniform, logarithm of the ratio uniform: Szegedy et al. 2015; as in `torchvision.transforms.RandomResizedCrop`.

    **Guarantee.** With the generators of `image_generator` a window is a function of its own image and of the owner's
    key (unit: one example; adjacency: any). Generators by position would break this: the views are stored, and removing
    one image would change those of all later images.

    Args:
        count: K.
        resolution: pixels on each side of a view.
        interpolation: "bilinear" or "bicubic", antialiased.
        flip: whether each view is mirrored left to right with probability 1/2.
        area: smallest share of the image's area in a window.

    >>> crops = InceptionCrops(count=2, resolution=8)
    >>> crops.apply(torch.zeros(3, 1, 20, 20), [np.random.default_rng(place) for place in range(3)]).shape
    torch.Size([3, 2, 1, 8, 8])
    """

    count: int
    resolution: int
    interpolation: str = "bilinear"
    flip: bool = False
    area: float = AREA

    def __post_init__(self) -> None:
        positive_integer("views", self.count)
        positive_integer("resolution", self.resolution)

    def apply(self, pixels: Tensor, generators: Sequence[np.random.Generator]) -> Tensor:
        """Views (n, K, C, R, R) of images (n, C, H, W), floating-point pixels from 0 to 255.

        Args:
            pixels: on any device.
            generators: one for each image.
        """
        if pixels.dim() != 4 or len(pixels) != len(generators):
            raise SfumatoError(
                f"pixels {tuple(pixels.shape)} and {len(generators)} generators do not match",
                "give images (n, C, H, W) and a generator for each",
            )
        views = [
            [self._view(image, own) for _ in range(self.count)] for image, own in zip(pixels, generators, strict=True)
        ]
        return torch.stack([torch.stack(row) for row in views]).clamp_(0, 255)

    def _view(self, image: Tensor, generator: np.random.Generator) -> Tensor:
        from torchvision.transforms.v2 import functional  # slow to import

        top, left, height, width = _window(image.shape[-2], image.shape[-1], generator, self.area)
        side = [self.resolution, self.resolution]
        view = functional.resized_crop(
            image, top, left, height, width, side, functional.InterpolationMode(self.interpolation), antialias=True
        )
        return view.flip(-1) if self.flip and generator.random() < 0.5 else view


def image_generator(owner_key: bytes, image: np.ndarray) -> np.random.Generator:
    """The random generator of an image: a function of its pixels and the owner's key."""
    code = hmac.new(owner_key, b"views" + image.tobytes(), hashlib.sha256).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(code[:16], "big")))


def _window(height: int, width: int, generator: np.random.Generator, least: float = AREA) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random window; the whole image if none of ten draws fits."""
    for _ in range(TRIES):
        area = height * width * generator.uniform(least, 1.0)
        ratio = np.exp(generator.uniform(*np.log(RATIO)))
        wide, high = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
        if 0 < wide <= width and 0 < high <= height:
            top, left = (int(generator.integers(0, rest, endpoint=True)) for rest in (height - high, width - wide))
            return top, left, high, wide
    return 0, 0, height, width
