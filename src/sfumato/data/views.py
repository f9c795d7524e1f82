"""K augmented views of each example, whose mean gradient is clipped as one (augmentation multiplicity), and random
crops of varying size and aspect ratio (Inception crops, Szegedy et al. 2015), in training or once for a backbone."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sfumato import _checks, _devices
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
    sides = [
        np.where(any_fits, np.take_along_axis(length, chosen, 0)[0], side).astype(np.int64) for length in (high, wide)
    ]
    down, right = (generator.integers(0, side - length, endpoint=True).astype(np.int16) for length in sides)
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
        positive_integer(views=self.count, resolution=self.resolution)

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
            [self._view(image, generator) for _ in range(self.count)]
            for image, generator in zip(pixels, generators, strict=True)
        ]
        return torch.stack([torch.stack(row) for row in views]).clamp_(0, 255)

    def _view(self, image: Tensor, generator: np.random.Generator) -> Tensor:
        from torchvision.transforms.v2 import functional  # slow to import

        top, left, height, width = _random_window(image.shape[-2], image.shape[-1], generator, self.area)
        side = [self.resolution, self.resolution]
        view = functional.resized_crop(
            image, top, left, height, width, side, functional.InterpolationMode(self.interpolation), antialias=True
        )
        return view.flip(-1) if self.flip and generator.random() < 0.5 else view


def image_generator(owner_key: bytes, image: np.ndarray) -> np.random.Generator:
    """The random generator of an image: a function of its pixels and the owner's key."""
    code = hmac.new(owner_key, b"views" + image.tobytes(), hashlib.sha256).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(code[:16], "big")))


def _random_window(
    height: int, width: int, generator: np.random.Generator, least: float = AREA
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random window; the whole image if none of ten draws fits."""
    for _ in range(TRIES):
        area = height * width * generator.uniform(least, 1.0)
        ratio = np.exp(generator.uniform(*np.log(RATIO)))
        wide, high = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
        if 0 < wide <= width and 0 < high <= height:
            top, left = (int(generator.integers(0, rest, endpoint=True)) for rest in (height - high, width - wide))
            return top, left, high, wide
    return 0, 0, height, width


SMALLEST_CROP = 2
"""Pixels: the fewest that the smallest random window has on a side, on average."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewDraws:
    """The random draws for n examples x K views, separate from the images so that a batch can be split anywhere.

    Args:
        down: int16 (n, K), pixels by which a view's window moves down.
        right: int16 (n, K), pixels by which it moves to the right.
        mirrored: bool (n, K), whether the view is mirrored left to right.
        sides: for random crops, int16 (n, K, 2), their height and width; `down` and `right` are then their upper left
            corners. None for windows of the size of a view.

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

    def followed_by(self, *others: ViewDraws) -> ViewDraws:
        """The draws of these examples followed by those of the others."""
        draws = {name: [moves, *(getattr(other, name) for other in others)] for name, moves in vars(self).items()}
        return ViewDraws(**{name: np.concatenate(arrays) for name, arrays in draws.items() if arrays[0] is not None})


@dataclass(frozen=True, kw_only=True)
class Views:
    """The number of views of an example, and how they are made.

    A view is a window on the image, shifted by a few pixels in each direction, and mirrored or not: De et al. 2022,
    section 3.1 and appendix C.2. Small images keep their scale, and pixels beyond the edge are filled by reflection
    (`shift`). For large images the window is cut from an enlarged version and stays inside it (`zoom`). Or the view is
    a random crop of another size and aspect ratio, resized (`crop_area`): Szegedy et al. 2015.

    **Guarantee.** A view is a function of its own example and of draws that are independent of the data, so the mean
    gradient over an example's views depends on that example alone, and clipping it once bounds it (unit: one example;
    adjacency: any).

    Args:
        count: K, views of each example.
        shift: largest shift in pixels, below the image's side. Without shift, flip and zoom a view is the image itself.
        flip: mirror every other view left to right; a coin decides whether the first one is. So each view is mirrored
            with probability 1/2, and half of an example's views are. Not for digits or letters.
        zoom: size of the image relative to a view, which is cut from it at a random place; 1 for none, 1.2 in De et al.
            2022. Images that already have this size are not resized (`open_source` reads them from the originals).
            Images of the size of a view are enlarged first, which blurs them.
        crop_area: smallest share of the image's area in a random crop (`windows`); 1 for no crops. Inception crops use
            0.08 in Szegedy et al. 2015, and 0.05 in the pipeline of Mehta et al. 2022. With `zoom` the crops are cut
            from the larger image.

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
        _checks.positive_integer(views=self.count, remedy="give the number of views of each example, such as 1 or 16")
        _checks.whole_number(least=0, shift=self.shift, remedy="give a number of pixels, 0 for none")
        _checks.within(1, 4, zoom=self.zoom, remedy="give 1.2, or 1 for none")
        remedy = "give the smallest share of the image that a random crop shows, such as 0.08, or 1 for no random crops"
        _checks.positive(most=1, crop_area=self.crop_area, remedy=remedy)
        if self.shift and (self.zoom > 1 or self.crops):
            other = f"crop_area {self.crop_area}" if self.crops else f"zoom {self.zoom}"
            problem = f"shift {self.shift} and {other} are both given, and each moves the image"
            raise SfumatoError(problem, "give shift for small images, zoom or crop_area for large ones")

    @property
    def crops(self) -> bool:
        """Whether views are random crops of varying size and aspect ratio."""
        return self.crop_area < 1

    @property
    def moves(self) -> bool:
        """Whether views show different parts of an image, which cached trunk features cannot represent."""
        return self.shift > 0 or self.zoom > 1 or self.crops

    def side(self, size: int) -> int:
        """Pixels on each side of the image from which views of `size` pixels are cut."""
        return round(self.zoom * size)

    def shift_range(self, size: int) -> int:
        """Pixels between the first and the last possible position of a view of `size` pixels."""
        return 2 * self.shift or self.side(size) - size

    def refuse_for_texts(self) -> None:
        """Refuse views that move, mirror or enlarge: of a text there is only the text."""
        if self != Views():
            changed = {name: value for name, value in vars(self).items() if value != getattr(Views, name)}
            listing = ", ".join(f"{'views' if name == 'count' else name} {value}" for name, value in changed.items())
            raise SfumatoError(f"{listing} is for images; texts have no views", "leave it out")

    def check(self, size: int) -> None:
        """Refuse images too small for the shift, or for the smallest crop. `size`: pixels on the shorter side."""
        _checks.whole_number(most=size - 1, shift=self.shift, remedy=f"images have {size} pixels: give a smaller shift")
        side = self.side(size)
        if self.crops and self.crop_area * side**2 < SMALLEST_CROP**2:
            raise SfumatoError(
                f"crop_area {self.crop_area} of {side} pixels a side is a crop of less than {SMALLEST_CROP}x"
                f"{SMALLEST_CROP} pixels",
                f"give at least {min(1, math.ceil(1e4 * (SMALLEST_CROP / side) ** 2) / 1e4):g}",
            )

    def draw(self, generator: np.random.Generator, n: int, *, size: int) -> ViewDraws:
        """Draws uniformly for n >= 0 examples with views of `size` pixels on each side."""
        shape, sides = (n, self.count), None
        if self.crops:
            down, right, sides = windows(generator, shape, side=self.side(size), least=self.crop_area)
        else:
            room = self.shift_range(size)
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
        """Makes K views of each image. Only the draws, a few bytes per view, are copied from the host, in one copy.

        Shifts by whole pixels and mirroring only select pixels (`shift`, `flip`, and `zoom` of images read at the
        larger size), so the result has the same bits on every device. Interpolation (`zoom` of other images,
        `crop_area`) uses torch's `interpolate` and matrix products, whose summation order depends on the device. Its
        results repeat on the same device, and differ between devices by some parts in 2^24.

        Args:
            images: (n, C, H, W), on any device; floating-point if they are resized, else of any dtype.
            draws: of the same n examples. Slices of both give the same slices of the result.
            size: pixels on each side of a view; the images have this size, or `side(size)`. None for views of the size
                of the images.

        Returns:
            (n, K, C, H, W), like `images`, or (n, K, C, size, size).
        """
        cropped = images.ndim == 4 and images.shape[2] == images.shape[3] and draws.sides is not None
        if images.ndim != 4 or draws.down.shape != (len(images), self.count) or (self.crops and not cropped):
            raise SfumatoError(
                f"images {tuple(images.shape)} and draws {draws.down.shape} do not match",
                f"give images (n, C, H, W), square for random crops, and draws of n examples with {self.count} views",
            )
        n, channels, *sides = images.shape
        if size is not None and sides not in ([size, size], [self.side(size)] * 2):
            raise SfumatoError(
                f"images {tuple(images.shape)} must have sides of {size} or {self.side(size)} pixels",
                "read them for this size and zoom",
            )
        height, width = sides if size is None else (size, size)
        self.check(min(height, width))
        if self.crops:
            return self._crops(images, draws, height)
        if not (self.moves or self.flip):
            return images.unsqueeze(1).expand(-1, self.count, -1, -1, -1)
        down, right, mirrored = _to_device(images.device, draws.down, draws.right, draws.mirrored)
        rows, columns = _window(down, height), _window(right, width)
        columns = torch.where(mirrored.bool().unsqueeze(-1), columns.flip(-1), columns)
        if self.zoom > 1:
            larger = [self.side(height), self.side(width)]
            if sides != larger:
                images = functional.interpolate(images, larger, mode="bilinear", align_corners=False)
            rows, columns = rows + self.shift_range(height) // 2, columns + self.shift_range(width) // 2
        else:
            rows, columns = _reflected(rows, height), _reflected(columns, width)
        pixels = (rows.unsqueeze(-1) * images.shape[3] + columns.unsqueeze(-2)).reshape(
            n, self.count, 1, height * width
        )
        flat = images.reshape(n, 1, channels, images.shape[2] * images.shape[3]).expand(-1, self.count, -1, -1)
        return flat.gather(3, pixels.expand(-1, -1, channels, -1)).reshape(n, self.count, channels, height, width)

    def _crops(self, images: Tensor, draws: ViewDraws, size: int) -> Tensor:
        """Random crops (n, K, C, size, size) of square images, each example independently."""
        assert draws.sides is not None
        side = self.side(size)
        if images.shape[2] != side:
            images = functional.interpolate(images, [side, side], mode="bilinear", align_corners=False)
        high, wide = np.moveaxis(draws.sides, -1, 0)
        *windows, mirrored = _to_device(images.device, draws.down, draws.right, high, wide, draws.mirrored)
        places, sides = torch.stack(windows[:2], dim=-1), torch.stack(windows[2:], dim=-1)
        shown = cropped(images, places, sides, size)
        return torch.where(mirrored.bool()[:, :, None, None, None], shown.flip(-1), shown)


def _to_device(device: torch.device, *moves: np.ndarray) -> tuple[Tensor, ...]:
    """The draws, each (n, K), as int16 on the device, in one copy."""
    return _devices.to_device(np.stack([move.astype(np.int16, copy=False) for move in moves]), device).unbind()


def _window(offsets: Tensor, length: int) -> Tensor:
    """Pixel positions after a shift: int64 (n, K, length)."""
    return torch.arange(length, device=offsets.device) + offsets.long().unsqueeze(-1)


def _reflected(positions: Tensor, length: int) -> Tensor:
    """Positions reflected into the image at its edge pixels, which are not repeated."""
    return (length - 1) - ((length - 1) - positions.abs()).abs()
