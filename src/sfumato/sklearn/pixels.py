"""Converts arrays, as scikit-learn passes them, to images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError

SQUARE = "square"
"""The `image_shape` for rows of numbers that are not images: the smallest square that holds a row."""
SMALLEST = 8
"""Smallest side of such a square, in pixels. The default model requires it."""

Shape = tuple[int, int, int]


def shape_of(image_shape: Any, shape: Sequence[int]) -> Shape:
    """The shape (H, W, C) of the images in an array.

    Args:
        image_shape: (H, W), (H, W, C) or "square"; required for flat images (N, D).
        shape: the array's shape: (N, D), (N, H, W) or (N, H, W, C).

    >>> shape_of((8, 8), (100, 64)), shape_of(None, (100, 32, 32, 3)), shape_of("square", (100, 5))
    ((8, 8, 1), (32, 32, 3), (8, 8, 1))
    """
    if len(shape) > 4:
        remedy = "give (N, H, W), (N, H, W, C), or flat images (N, D) with image_shape"
        raise SfumatoError(f"X must be an array of images, got shape {shape}", remedy)
    actual: Any = None if len(shape) == 2 else (*shape[1:], 1)[:3]
    width = shape[1]
    if image_shape is None and actual is None:
        side = math.isqrt(width)
        example = f"({side}, {side})" if side * side == width else "(H, W) or (H, W, C)"
        raise SfumatoError(
            f"X is flat, with {width} features per image, and image_shape is not given", f"give image_shape={example}"
        )
    if image_shape == SQUARE and actual is None:
        side = max(SMALLEST, math.isqrt(width - 1) + 1)
        return side, side, 1
    if image_shape is None or image_shape == SQUARE:
        assert actual is not None
        return _checked(actual)
    two_or_three = not isinstance(image_shape, str) and len(image_shape) in (2, 3)
    declared = _checked((*image_shape, 1)[:3] if two_or_three else image_shape)
    if actual is None and math.prod(declared) != width:
        problem = f"image_shape {tuple(image_shape)} has {math.prod(declared)} values, but X has {width} features"
        raise SfumatoError(problem, "give the shape from which the images were flattened")
    if actual is not None and actual != declared:
        raise SfumatoError(
            f"image_shape is {tuple(image_shape)}, but X has images {actual}", "leave it out, or reshape X"
        )
    return declared


def _checked(shape: Any) -> Shape:
    """Returns the shape (H, W, C); refuses one that is not a shape of images."""
    sides: tuple[Any, ...] = () if isinstance(shape, str) else tuple(shape)
    whole = len(sides) == 3 and all(isinstance(side, int | np.integer) for side in sides)
    if not whole or min(sides) < 1 or sides[2] not in (1, 3):
        remedy = "give (H, W), (H, W, 1) or (H, W, 3): channels come last"
        raise SfumatoError(f"images must have one or three channels, got shape {shape!r}", remedy)
    height, width, channels = map(int, sides)
    return height, width, channels


def as_images(flat: np.ndarray, shape: Shape, value_range: Sequence[float] | None) -> np.ndarray:
    """Converts flat rows (N, D) to images, uint8 (N, H, W, C). A square is padded with black.

    Args:
        value_range: the values of black and white; values outside this range are clipped. None for uint8, and for
            numbers from 0 to 1.

    Raises:
        SfumatoError: values lie outside [0, 1] and no range was declared. The range is not read from private records.
    """
    levels = flat if flat.dtype == np.uint8 and value_range is None else _scaled(flat, value_range)
    missing = math.prod(shape) - levels.shape[1]
    return np.pad(levels, ((0, 0), (0, missing))).reshape(-1, *shape)


def clipping_note(flat: np.ndarray, value_range: Sequence[float] | None) -> str | None:
    """A warning if values lie outside the declared range. It depends on the private values: for the owner alone."""
    if value_range is None or not ((flat < value_range[0]) | (flat > value_range[1])).any():
        return None
    return (
        f"values of X outside value_range {tuple(value_range)} are clipped to it (a private fact); give the "
        "range of the values as they come here, after any scaling"
    )


def _scaled(flat: np.ndarray, value_range: Sequence[float] | None) -> np.ndarray:
    """Scales values to uint8 levels from 0 to 255."""
    if value_range is None:
        if flat.dtype.kind in "iu" or not ((flat >= 0) & (flat <= 1)).all():
            raise SfumatoError(
                f"X is {flat.dtype}, and value_range is not given",
                "give the values of black and white, such as value_range=(0, 255); only uint8 and floating-point "
                "numbers from 0 to 1 need none",
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
        raise SfumatoError(problem, "give the values of black and white, such as (0, 255)")
    return low, high
