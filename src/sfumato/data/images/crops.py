"""Random crops in the manner of Inception: views of an image that a backbone sees, cut out once."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data.images.windows import RATIO, TRIES

AREA = 0.08
"""Of the image's area: the smallest random window in Szegedy et al. 2015."""


@dataclass(frozen=True, kw_only=True)
class InceptionCrops:
    """K random windows on an image, of at least 8% of its area and a ratio of 3:4 to 4:3, brought to one size.

    Area uniform, logarithm of the ratio uniform: Szegedy et al. 2015; as in `torchvision.transforms.RandomResizedCrop`.

    **Guarantee.** With the generators of `randomness_of` a window is a function of its own image and of the owner's key
    (unit: one example; adjacency: any). Generators by position would not do here: the views stay for good, and those
    of all later images would change when one is taken away.

    Args:
        count: K.
        resolution: pixels on each side of a view.
        interpolation: "bilinear" or "bicubic", antialiased.
        flip: whether each view is mirrored left to right by a coin.
        area: the least share of the image's area that a window covers.

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
                f"pixels {tuple(pixels.shape)} and {len(generators)} generators do not belong together",
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


def randomness_of(owner_key: bytes, image: np.ndarray) -> np.random.Generator:
    """An image's own randomness: the same for the same pixels, and unknown to whoever lacks the owner's key."""
    code = hmac.new(owner_key, b"views" + image.tobytes(), hashlib.sha256).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(code[:16], "big")))


def _window(height: int, width: int, generator: np.random.Generator, least: float = AREA) -> tuple[int, int, int, int]:
    """Top, left, height, width of a random window; the whole image where ten tries don't fit."""
    for _ in range(TRIES):
        area = height * width * generator.uniform(least, 1.0)
        ratio = np.exp(generator.uniform(*np.log(RATIO)))
        wide, high = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
        if 0 < wide <= width and 0 < high <= height:
            top, left = (int(generator.integers(0, rest, endpoint=True)) for rest in (height - high, width - wide))
            return top, left, high, wide
    return 0, 0, height, width
