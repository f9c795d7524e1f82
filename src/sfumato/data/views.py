"""K augmented views of each example, whose mean gradient is clipped as one (augmentation multiplicity)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sfumato import _checks
from sfumato._checks import SfumatoError


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """The dice of n examples x K views, apart from the pictures so that a batch can be cut anywhere.

    Args:
        down: int16 (n, K), pixels by which a view's window moves down, -shift..shift.
        right: int16 (n, K), pixels by which it moves to the right.
        mirrored: bool (n, K), whether left and right change places.

    >>> draws = Views(count=2, shift=1).draw(np.random.default_rng(0), 3)
    >>> len(draws), len(draws[1:])
    (3, 2)
    """

    down: np.ndarray
    right: np.ndarray
    mirrored: np.ndarray

    def __len__(self) -> int:
        return len(self.down)

    def __getitem__(self, chosen: slice) -> Draws:
        return Draws(down=self.down[chosen], right=self.right[chosen], mirrored=self.mirrored[chosen])


@dataclass(frozen=True, kw_only=True)
class Views:
    """How many views of an example are shown, and how they differ.

    A view is the picture moved by up to `shift` pixels each way, its edge filled by reflection, and mirrored or not:
    De et al. 2022, section 3.2 and appendix C.2 (random crops with reflect padding, random flips).

    **Guarantee.** A view is a function of its own example and of dice that know no data, so the mean gradient over an
    example's views depends on that example alone and one clipping bounds it (unit: one example; adjacency: any).

    Args:
        count: K, views of each example. 1 shows the picture itself, with no augmentation at all.
        shift: pixels, at most one less than the picture's side.
        flip: whether every other view is mirrored left to right, beginning with either by a coin: each view is with
            probability 1/2, and half of an example's views are. Not for digits or letters.

    >>> Views().apply(torch.zeros(5, 1, 8, 8), Views().draw(np.random.default_rng(0), 5)).shape
    torch.Size([5, 1, 1, 8, 8])
    """

    count: int = 1
    shift: int = 4
    flip: bool = False

    def __post_init__(self):
        _checks.positive_integer("views", self.count)
        if self.shift != 0 or isinstance(self.shift, (bool, float)):
            _checks.positive_integer("shift", self.shift, remedy="give a whole number of pixels, 0 for none")

    def check(self, size: int) -> None:
        """Refuse pictures too small for the shift. `size`: pixels on the shorter side."""
        if self.count > 1 and self.shift >= size:
            raise SfumatoError(
                f"shift must be smaller than the image, got {self.shift} for {size} pixels",
                f"give a shift of at most {size - 1}, or a single view",
            )

    def draw(self, generator: np.random.Generator, n: int) -> Draws:
        """Throw the dice for n examples, 0 included. Every move is equally likely."""
        shape = (n, self.count)
        if self.count == 1:
            still = np.zeros(shape, np.int16)
            return Draws(down=still, right=still, mirrored=np.zeros(shape, bool))
        reach = {"low": -self.shift, "high": self.shift, "endpoint": True, "dtype": np.int16}
        down, right = generator.integers(size=shape, **reach), generator.integers(size=shape, **reach)
        coins = generator.integers(2, size=(n, 1), dtype=np.uint8)
        mirrored = (np.arange(self.count) + coins) % 2 == 1
        return Draws(down=down, right=right, mirrored=mirrored & self.flip)

    def apply(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Show each picture K times.

        Args:
            images: (n, C, H, W), of any dtype, on any device.
            draws: of the same n examples. Slices of both give the same slices of the result.

        Returns:
            (n, K, C, H, W), like `images`.
        """
        if images.ndim != 4 or draws.down.shape != (len(images), self.count):
            raise SfumatoError(
                f"images {tuple(images.shape)} and draws {draws.down.shape} do not belong together",
                f"give images (n, C, H, W) and draws of the same n examples with {self.count} views",
            )
        if self.count == 1:
            return images.unsqueeze(1)
        n, channels, height, width = images.shape
        self.check(min(height, width))
        rows = _moved(draws.down, height)
        columns = _moved(draws.right, width)
        columns = np.where(draws.mirrored[..., np.newaxis], columns[..., ::-1], columns)
        pixels = (rows[..., :, np.newaxis] * width + columns[..., np.newaxis, :]).reshape(
            n, self.count, 1, height * width
        )
        index = torch.from_numpy(pixels).to(images.device)
        flat = images.reshape(n, 1, channels, height * width).expand(-1, self.count, -1, -1)
        return flat.gather(3, index.expand(-1, -1, channels, -1)).reshape(n, self.count, channels, height, width)


def _moved(offsets: np.ndarray, length: int) -> np.ndarray:
    """Pixel positions after a move, int64 (n, K, length), reflected at the edge pixels, which are not repeated."""
    positions = np.abs(np.arange(length) + offsets[..., np.newaxis].astype(np.int64))
    return (length - 1) - np.abs((length - 1) - positions)
