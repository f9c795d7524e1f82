"""Dead leaves: synthetic images of shapes that hide one another, with the statistics of photographs, from a seed.

Sizes follow a power law, so that an image looks alike at each scale, as photographs do (Lee, Mumford and Huang 2001,
"Occlusion models for natural images"). Networks learn useful features from such images (Baradad et al. 2021,
arXiv 2106.05963). No photograph was looked at for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy.ndimage import gaussian_filter

TOGETHER = 100
"""Images that are drawn from one generator: image i follows from the seed and from i // 100, however many there are."""
_SHAPES = 120
_SMALLEST, _LARGEST = 1.0, 24.0  # radii, pixels of 32
_WARM, _GREEN = np.array([[0.7, 0.0, -0.7]]), np.array([[0.4, -0.8, 0.4]])


def leaves(count: int, *, seed: int = 0, side: int = 32, processes: int = -1) -> np.ndarray:
    """Images uint8 (count, side, side, 3).

    Args:
        count: how many; the first ones are the same whatever the count is.
        seed: of all of them.
        side: H and W, pixels.
        processes: how many draw at a time; -1 for one on each processor.
    """

    def drawn(group: int) -> np.ndarray:
        rng = np.random.default_rng((seed, group))
        return np.stack([_leaves(rng, side) for _ in range(TOGETHER)])

    groups: Any = Parallel(processes)(delayed(drawn)(group) for group in range(-(-count // TOGETHER)))
    return np.concatenate(groups)[:count]


def grey(images: np.ndarray) -> np.ndarray:
    """The lightness of colour images (N, H, W, 3), uint8 (N, H, W, 1), by the weights that Pillow takes."""
    return (images @ np.array([[299], [587], [114]]) // 1000).astype(np.uint8)


def _colours(rng: np.random.Generator, count: int) -> np.ndarray:
    """(count, 3) from 0 to 1: mostly light and dark, little hue, as in photographs."""
    lightness = rng.beta(1.2, 1.2, (count, 1))
    hue = rng.normal(0, 0.12, (count, 1)) * _WARM + rng.normal(0, 0.06, (count, 1)) * _GREEN
    return np.clip(lightness + hue, 0, 1)


def _leaves(rng: np.random.Generator, side: int) -> np.ndarray:
    """One image: ellipses, rectangles and triangles, plain, shaded or with a grating, from the front to the back."""
    y, x = np.mgrid[0:side, 0:side].astype(np.float32)
    image, covered = np.zeros((side, side, 3)), np.zeros((side, side), bool)
    radius = (_SMALLEST**-2 - rng.random(_SHAPES) * (_SMALLEST**-2 - _LARGEST**-2)) ** -0.5  # density ~ radius^-3
    radius *= side / 32
    center = rng.uniform(-0.15 * side, 1.15 * side, (_SHAPES, 2))
    near = _colours(rng, _SHAPES)
    far = np.clip(near + rng.normal(0, 0.15, (_SHAPES, 1)), 0, 1)
    angle, stretch = rng.uniform(0, np.pi, _SHAPES), np.exp(rng.normal(0, 0.5, _SHAPES))
    form, surface = rng.integers(0, 3, _SHAPES), rng.random(_SHAPES)
    for i in range(_SHAPES):
        dx, dy = x - center[i, 0], y - center[i, 1]
        along = (np.cos(angle[i]) * dx + np.sin(angle[i]) * dy) / (radius[i] * stretch[i])
        across = (np.cos(angle[i]) * dy - np.sin(angle[i]) * dx) / (radius[i] / stretch[i])
        if form[i] == 0:
            inside = along**2 + across**2 < 1
        elif form[i] == 1:
            inside = np.maximum(abs(along), abs(across)) < 1
        else:
            inside = (across > -1) & (across + 1.7 * abs(along) < 1)
        inside &= ~covered
        if not inside.any():
            continue
        shade = np.clip(0.5 + 0.5 * along[inside], 0, 1)[:, None] * (surface[i] > 0.4)
        image[inside] = near[i] * (1 - shade) + far[i] * shade
        if surface[i] > 0.6:
            wave = np.cos(2 * angle[i]) * dx[inside] + np.sin(2 * angle[i]) * dy[inside]
            image[inside] += 0.08 * rng.random() * np.sin(rng.uniform(0.2, 2) * wave)[:, None]
        covered |= inside
        if covered.all():
            break
    image[~covered] = _colours(rng, 1)
    blur = rng.uniform(0.3, 0.9)
    image = gaussian_filter(image + rng.normal(0, 0.01, image.shape), (blur, blur, 0))
    return (255 * np.clip(image, 0, 1)).astype(np.uint8)
