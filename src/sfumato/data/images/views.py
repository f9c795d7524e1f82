"""K augmented views of each example, whose mean gradient is clipped as one (augmentation multiplicity)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sfumato import _checks, _devices
from sfumato._checks import SfumatoError
from sfumato.data.images.windows import cropped, windows

SMALLEST_CROP = 2
"""Pixels: the fewest that the smallest random window has on a side, on average."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewDraws:
    """The random moves of n examples x K views, apart from the images so that a batch can be cut anywhere.

    Args:
        down: int16 (n, K), pixels by which a view's window moves down.
        right: int16 (n, K), pixels by which it moves to the right.
        mirrored: bool (n, K), whether left and right change places.
        sides: of random crops, int16 (n, K, 2), the height and width of each, whose upper left corner `down` and
            `right` then are; None for windows as large as a view.

    >>> draws = Views(count=2, shift=1).draw(np.random.default_rng(0), 3, size=8)
    >>> len(draws), len(draws[1:])
    (3, 2)
    """

    down: np.ndarray
    right: np.ndarray
    mirrored: np.ndarray
    sides: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.down)

    def __getitem__(self, chosen: slice) -> ViewDraws:
        return ViewDraws(**{name: moves[chosen] for name, moves in vars(self).items() if moves is not None})

    def followed_by(self, other: ViewDraws) -> ViewDraws:
        """Those of these examples and of others after them."""
        pairs = {name: (moves, getattr(other, name)) for name, moves in vars(self).items()}
        return ViewDraws(**{name: np.concatenate(pair) for name, pair in pairs.items() if pair[0] is not None})


@dataclass(frozen=True, kw_only=True)
class Views:
    """How many views of an example are shown, and how they differ.

    A view is a window on the image, moved by a few pixels each way, and mirrored or not: De et al. 2022, section 3.1
    and appendix C.2. Small images keep their scale, and what the window sees beyond the edge is filled by reflection
    (`shift`); of large ones the window is cut out of a larger version, in which it stays inside (`zoom`). Or it is a
    random window of another size and aspect ratio, resized to that of a view (`crop_area`): Szegedy et al. 2015.

    **Guarantee.** A view is a function of its own example and of draws that know no data, so the mean gradient over an
    example's views depends on that example alone and one clipping bounds it (unit: one example; adjacency: any).

    Args:
        count: K, views of each example.
        shift: pixels, at most one less than the image's side. With neither shift, flip nor zoom a view is the image
            itself.
        flip: whether every other view is mirrored left to right, beginning with either by a coin: each view is with
            probability 1/2, and half of an example's views are. Not for digits or letters.
        zoom: 1 for none, else how much larger than a view the image is that a window is cut out of, at any place; 1.2
            in De et al. 2022. Images that are as large as that already are cut as they are (`open_source` reads them
            from their originals); those of a view's own size are enlarged first, which blurs them.
        crop_area: 1 for none, else the least share of the image's area that a random window covers (`windows`), an
            Inception crop: 0.08 in Szegedy et al. 2015, 0.05 in the pipeline of Mehta et al. 2022. With `zoom` windows
            are cut out of the larger image.

    >>> views = Views(count=3, shift=2)
    >>> views.apply(torch.zeros(5, 1, 8, 8), views.draw(np.random.default_rng(0), 5, size=8)).shape
    torch.Size([5, 3, 1, 8, 8])
    """

    count: int = 1
    shift: int = 0
    flip: bool = False
    zoom: float = 1.0
    crop_area: float = 1.0

    def __post_init__(self):
        _checks.positive_integer(
            "views", self.count, remedy="give the number of views of each example, such as 1 or 16"
        )
        _checks.not_negative("shift", self.shift, remedy="give a number of pixels")
        if self.shift != 0 or isinstance(self.shift, (bool, float)):
            _checks.positive_integer("shift", self.shift, remedy="give a whole number of pixels, 0 for none")
        if not 1 <= _checks.number("zoom", self.zoom) <= 4:
            raise SfumatoError(f"zoom must lie between 1 and 4, got {self.zoom!r}", "give 1.2, or 1 for none")
        if self.shift and self.zoom > 1:
            raise SfumatoError(
                f"shift {self.shift} and zoom {self.zoom} are both given",
                "give shift for small images, zoom for large ones",
            )
        if not 0 < _checks.number("crop_area", self.crop_area) <= 1:
            raise SfumatoError(
                f"crop_area must be a share of the image's area, above 0 and at most 1, got {self.crop_area!r}",
                "give the smallest share that a random crop shows, such as 0.08, or 1 for no random crops",
            )
        if self.shift and self.crops:
            raise SfumatoError(
                f"shift {self.shift} and crop_area {self.crop_area} are both given",
                "give shift 0: random crops move already",
            )

    @property
    def crops(self) -> bool:
        """Whether views are random windows of any size and aspect ratio."""
        return self.crop_area < 1

    @property
    def moves(self) -> bool:
        """Whether views see different parts of an image, which a trunk's features of it would not tell."""
        return self.shift > 0 or self.zoom > 1 or self.crops

    def side(self, size: int) -> int:
        """Pixels on each side of the image that views of `size` pixels are cut out of."""
        return round(self.zoom * size)

    def room(self, size: int) -> int:
        """How many pixels there are between the first place of a view of `size` pixels and its last one."""
        return 2 * self.shift or self.side(size) - size

    def refuse_for_texts(self) -> None:
        """Refuse views that move, mirror or enlarge: of a text there is only the text."""
        if self != Views():
            odd = {name: value for name, value in vars(self).items() if value != getattr(Views, name)}
            listing = ", ".join(f"{'views' if name == 'count' else name} {value}" for name, value in odd.items())
            raise SfumatoError(f"{listing} is for images, and a text has no views", "leave it out")

    def check(self, size: int) -> None:
        """Refuse images too small for the shift, or for the smallest crop. `size`: pixels on the shorter side."""
        if self.shift >= size:
            raise SfumatoError(
                f"shift must be smaller than the image, got {self.shift} for {size} pixels",
                f"give a shift of at most {size - 1}",
            )
        side = self.side(size)
        if self.crops and self.crop_area * side**2 < SMALLEST_CROP**2:
            raise SfumatoError(
                f"crop_area {self.crop_area} of {side} pixels a side is a crop of less than {SMALLEST_CROP}x"
                f"{SMALLEST_CROP} pixels",
                f"give at least {min(1, math.ceil(1e4 * (SMALLEST_CROP / side) ** 2) / 1e4):g}",
            )

    def draw(self, generator: np.random.Generator, n: int, *, size: int) -> ViewDraws:
        """Draw for n examples, 0 included, of views `size` pixels a side. Every move is equally likely."""
        shape, sides = (n, self.count), None
        if self.crops:
            down, right, sides = windows(generator, shape, side=self.side(size), least=self.crop_area)
        else:
            room = self.room(size)
            reach = {"low": -(room // 2), "high": room - room // 2, "endpoint": True, "dtype": np.int16}
            down, right = (
                generator.integers(size=shape, **reach) if room else np.zeros(shape, np.int16) for _ in range(2)
            )
        mirrored = np.zeros(shape, bool)
        if self.flip:
            coins = generator.integers(2, size=(n, 1), dtype=np.uint8)
            mirrored = (np.arange(self.count) + coins) % 2 == 1
        return ViewDraws(down=down, right=right, mirrored=mirrored, sides=sides)

    def apply(self, images: Tensor, draws: ViewDraws, *, size: int | None = None) -> Tensor:
        """Show each image K times. Only the moves, a few bytes a view, come from the host, in one copy.

        The same bits on every device where views are moved by whole pixels and mirrored: then pixels are only picked
        out (`shift`, `flip`, and `zoom` of images that are read as large as that). What is interpolated (`zoom` of
        images that are not, `crop_area`) is computed by torch's `interpolate` and by products of matrices, whose
        additions each device does in an order of its own, with or without rounding in between: there the same bits come
        again on the same device, and those of two devices differ by some parts in 2^24.

        Args:
            images: (n, C, H, W), on any device; of any dtype where nothing is resized, else floating-point.
            draws: of the same n examples. Slices of both give the same slices of the result.
            size: pixels on each side of a view, of which the images have as many, or `side` of them; None for views
                as large as the images.

        Returns:
            (n, K, C, H, W), like `images`, or (n, K, C, size, size).
        """
        if images.ndim != 4 or draws.down.shape != (len(images), self.count):
            raise SfumatoError(
                f"images {tuple(images.shape)} and draws {draws.down.shape} do not belong together",
                f"give images (n, C, H, W) and draws of the same n examples with {self.count} views",
            )
        n, channels, *sides = images.shape
        if size is not None and sides not in ([size, size], [self.side(size)] * 2):
            raise SfumatoError(
                f"images {tuple(images.shape)} have neither {size} nor {self.side(size)} pixels a side",
                "read them for this size and zoom",
            )
        height, width = sides if size is None else (size, size)
        self.check(min(height, width))
        if self.crops:
            return self._crops(images, draws, height)
        if not (self.moves or self.flip):
            return images.unsqueeze(1).expand(-1, self.count, -1, -1, -1)
        down, right, mirrored = _on(images.device, draws.down, draws.right, draws.mirrored)
        rows, columns = _window(down, height), _window(right, width)
        columns = torch.where(mirrored.bool().unsqueeze(-1), columns.flip(-1), columns)
        if self.zoom > 1:
            larger = [self.side(height), self.side(width)]
            if sides != larger:
                images = functional.interpolate(images, larger, mode="bilinear", align_corners=False)
            rows, columns = rows + self.room(height) // 2, columns + self.room(width) // 2
        else:
            rows, columns = _reflected(rows, height), _reflected(columns, width)
        pixels = (rows.unsqueeze(-1) * images.shape[3] + columns.unsqueeze(-2)).reshape(
            n, self.count, 1, height * width
        )
        flat = images.reshape(n, 1, channels, images.shape[2] * images.shape[3]).expand(-1, self.count, -1, -1)
        return flat.gather(3, pixels.expand(-1, -1, channels, -1)).reshape(n, self.count, channels, height, width)

    def _crops(self, images: Tensor, draws: ViewDraws, size: int) -> Tensor:
        """Random windows (n, K, C, size, size) of square images, each example by itself."""
        if images.shape[2] != images.shape[3] or draws.sides is None:
            raise SfumatoError(
                f"images {tuple(images.shape)} cannot be cropped at random by these draws",
                "give square images, and draws of the same views",
            )
        side = self.side(size)
        if images.shape[2] != side:
            images = functional.interpolate(images, [side, side], mode="bilinear", align_corners=False)
        high, wide = np.moveaxis(draws.sides, -1, 0)
        *windows, mirrored = _on(images.device, draws.down, draws.right, high, wide, draws.mirrored)
        places, sides = torch.stack(windows[:2], dim=-1), torch.stack(windows[2:], dim=-1)
        shown = cropped(images, places, sides, size)
        return torch.where(mirrored.bool()[:, :, None, None, None], shown.flip(-1), shown)


def _on(device: torch.device, *moves: np.ndarray) -> tuple[Tensor, ...]:
    """The moves, each (n, K), as int16 on the device, by one copy."""
    return _devices.sent(np.stack([one.astype(np.int16, copy=False) for one in moves]), device).unbind()


def _window(offsets: Tensor, length: int) -> Tensor:
    """Pixel positions after a move: int64 (n, K, length)."""
    return torch.arange(length, device=offsets.device) + offsets.long().unsqueeze(-1)


def _reflected(positions: Tensor, length: int) -> Tensor:
    """Positions brought back inside, reflected at the edge pixels, which are not repeated."""
    return (length - 1) - ((length - 1) - positions.abs()).abs()
