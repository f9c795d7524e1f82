"""Arrays as scikit-learn's users have them, as images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError

SQUARE = "square"
"""An `image_shape`: rows of numbers that are no images are laid into the smallest square that holds them."""
SMALLEST = 8
"""The shortest side of such a square, in pixels: what the model of the rules needs."""

Shape = tuple[int, int, int]


def shape_of(given: Any, shape: Sequence[int]) -> Shape:
    """(H, W, C) of the images in an array of this shape.

    Args:
        given: `image_shape`, as (H, W) or (H, W, C), or "square"; needed for flat images (N, D).
        shape: (N, D), (N, H, W) or (N, H, W, C).

    >>> shape_of((8, 8), (100, 64)), shape_of(None, (100, 32, 32, 3)), shape_of("square", (100, 5))
    ((8, 8, 1), (32, 32, 3), (8, 8, 1))
    """
    if len(shape) > 4:
        remedy = "give (N, H, W), (N, H, W, C), or flat images (N, D) with image_shape"
        raise SfumatoError(f"X must be an array of images, got the shape {shape}", remedy)
    own: Any = None if len(shape) == 2 else (*shape[1:], 1)[:3]
    width = shape[1]
    if given is None and own is None:
        side = math.isqrt(width)
        known = f"({side}, {side})" if side * side == width else "(H, W) or (H, W, C)"
        raise SfumatoError(
            f"X is flat, of {width} features an image, and image_shape is not given", f"give image_shape={known}"
        )
    if given == SQUARE and own is None:
        side = max(SMALLEST, math.isqrt(width - 1) + 1)
        return side, side, 1
    if given is None or given == SQUARE:
        assert own is not None
        return _checked(own)
    wanted = _checked((*given, 1)[:3] if len(given) in (2, 3) and not isinstance(given, str) else given)
    if own is None and math.prod(wanted) != width:
        problem = f"image_shape is {tuple(given)}, of {math.prod(wanted)} numbers, and X has {width} features"
        raise SfumatoError(problem, "give the shape that the images were flattened from")
    if own is not None and own != wanted:
        raise SfumatoError(f"image_shape is {tuple(given)}, and X has images {own}", "leave it out, or reshape X")
    return wanted


def _checked(shape: Any) -> Shape:
    """The shape, of which images can be made."""
    sides: tuple[Any, ...] = () if isinstance(shape, str) else tuple(shape)
    whole = len(sides) == 3 and all(isinstance(side, int | np.integer) for side in sides)
    if not whole or min(sides) < 1 or sides[2] not in (1, 3):
        remedy = "give (H, W), (H, W, 1) or (H, W, 3): channels come last"
        raise SfumatoError(f"images must be of one or three channels, got the shape {shape!r}", remedy)
    height, width, channels = map(int, sides)
    return height, width, channels


def as_images(flat: np.ndarray, shape: Shape, value_range: Sequence[float] | None) -> np.ndarray:
    """Images uint8 (N, H, W, C) of flat rows (N, D); what a square has beyond D is black.

    Args:
        value_range: which values are black and white; values beyond are taken for these. None for uint8, and for
            numbers from 0 to 1.

    Errors: `SfumatoError` where values lie beyond and nothing was declared: it is read from no private record.
    """
    levels = flat if flat.dtype == np.uint8 and value_range is None else _scaled(flat, value_range)
    missing = math.prod(shape) - levels.shape[1]
    return np.pad(levels, ((0, 0), (0, missing))).reshape(-1, *shape)


def _scaled(flat: np.ndarray, value_range: Sequence[float] | None) -> np.ndarray:
    """Values as levels uint8, 0 to 255."""
    if value_range is None:
        if flat.dtype.kind in "iu" or not ((flat >= 0) & (flat <= 1)).all():
            raise SfumatoError(
                f"X is {flat.dtype}, and value_range is not given",
                "give which values are black and white, such as value_range=(0, 255); uint8 needs none, nor do "
                "floating-point numbers from 0 to 1",
            )
        low, high = 0.0, 1.0
    else:
        low, high = _checked_range(value_range)
    return np.rint(255 * np.clip((flat.astype(np.float64) - low) / (high - low), 0, 1)).astype(np.uint8)


def _checked_range(value_range: Any) -> tuple[float, float]:
    try:
        low, high = map(float, value_range)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        problem = f"value_range must be two numbers, the smaller first, got {value_range!r}"
        raise SfumatoError(problem, "give which values are black and white, such as (0, 255)")
    return low, high
