"""Atoms: directions that patches of images lie along, learnt by spherical k-means (Coates and Ng 2012).

A patch is made even (its mean removed, its contrast brought near 1) and whitened, and each atom's response to it is the
positive part of their cosine-like similarity, less a threshold ("triangle" encoding is its relative; Coates, Lee and
Ng 2011). Evening apart, all of this is affine, so a response is one product with a filter and an offset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH = 6
"""Pixels on each side of a patch."""
EVENNESS = 10.0 / 127.5**2
"""Added to a patch's variance, for pixels from -1 to 1: what is fainter than this stays faint."""
_WHITENESS = 0.1
_PATCHES, _ROUNDS, _AT_ONCE = 300_000, 20, 20_000


class Atoms(NamedTuple):
    """What makes responses of even patches: `even(patches) @ filters + offsets`, and of these the positive part.

    Args:
        filters: (C * WIDTH^2, n).
        offsets: (n,).
    """

    filters: Tensor
    offsets: Tensor


def even(patches: Tensor) -> Tensor:
    """Patches (..., d) of pixels from -1 to 1, each without its mean and of contrast near 1."""
    centered = patches - patches.mean(-1, keepdim=True)
    variance = centered.square().sum(-1, keepdim=True) / (patches.shape[-1] - 1)
    return centered * (variance + EVENNESS).rsqrt()


def learn(images: Tensor, count: int, *, threshold: float, seed: int = 0) -> Atoms:
    """So many atoms of the patches of public images.

    Args:
        images: (N, C, H, W), from -1 to 1.
        count: n.
        threshold: what a similarity must exceed to count.
        seed: which patches are taken, and which atoms the search begins with.
    """
    rng = np.random.default_rng(seed)
    patches = even(_patches(images, rng))
    center = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T))
    white = vectors * (values + _WHITENESS).rsqrt() @ vectors.T
    patches = (patches - center) @ white
    atoms = F.normalize(patches[torch.from_numpy(rng.choice(len(patches), count, replace=False))])
    for _ in range(_ROUNDS):
        sums = torch.zeros_like(atoms)
        for part in patches.split(_AT_ONCE):
            likeness, nearest = (part @ atoms.T).max(1)
            sums.index_add_(0, nearest, part * likeness[:, None])
        unused = sums.norm(dim=1) == 0
        sums[unused] = patches[torch.from_numpy(rng.choice(len(patches), int(unused.sum())))]
        atoms = F.normalize(sums)
    filters = white @ atoms.T
    return Atoms(filters.contiguous(), -(center @ filters) - threshold)


def _patches(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Patches (n, C * WIDTH^2) from places drawn at random, in the order of `F.unfold`."""
    which = rng.integers(0, len(images), _PATCHES)[:, None, None]
    top, left = (rng.integers(0, extent - WIDTH + 1, _PATCHES)[:, None, None] for extent in images.shape[2:])
    rows, columns = top + np.arange(WIDTH)[:, None], left + np.arange(WIDTH)
    found = images.permute(0, 2, 3, 1).numpy()[which, rows, columns]
    return torch.from_numpy(found).permute(0, 3, 1, 2).flatten(1)
