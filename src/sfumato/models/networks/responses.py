"""Responses of a dictionary's atoms, averaged over the quarters of an image.

The first layer compares patches of the image with atoms (Coates, Ng and Lee 2011). The second one compares patches of
the first layer's pooled responses with atoms of its own (Coates and Ng 2012, "Learning feature representations with
k-means", section 5), after they were reduced to a few directions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.models.priors.stored import POOL, SIDE, STRIDE, WIDTH, Atoms, SecondLayer, normalise_patches


def responses(
    images: Tensor, scales: Sequence[Atoms], second: SecondLayer | None = None, *, mirrored: bool
) -> list[Tensor]:
    """Computes the responses of atoms in each quarter of the images: square roots of mean responses.

    Args:
        images: (N, C, H, W), from -1 to 1.
        scales: atoms of each scale, the finest first. Each further one is for images of half the side.
        second: second layer; None for the first one alone.
        mirrored: whether to average over the image and its mirror image.

    Returns:
        (N, n, 4) for the n atoms of all scales and, with a second layer, (N, m, 4) for its m atoms.
    """
    means = _means(images, scales, second)
    if mirrored:
        of_mirror_images = _means(images.flip(3), scales, second)
        means = [(mean + other) / 2 for mean, other in zip(means, of_mirror_images, strict=True)]
    return [mean.sqrt().transpose(1, 2) for mean in means]


def _means(images: Tensor, scales: Sequence[Atoms], second: SecondLayer | None) -> list[Tensor]:
    """Mean responses in each quarter: (N, 4, n) and, with a second layer, (N, 4, m)."""
    first, deeper = [], []
    for place, atoms in enumerate(scales):
        if place:
            images = F.avg_pool2d(images, 2)
        maps = first_layer(images, atoms)
        first.append(_in_quarters(maps))
        if second is not None and not place:
            deeper.append(_in_quarters(_second_layer(maps, second)))
    return [torch.cat(first, 2), *deeper]


def first_layer(images: Tensor, atoms: Atoms) -> Tensor:
    """Positive responses at each place of the images (N, C, H, W): (N, H - WIDTH + 1, W - WIDTH + 1, n)."""
    size = [side - WIDTH + 1 for side in images.shape[2:]]
    patches = F.pad(normalise_patches(F.unfold(images, WIDTH).transpose(1, 2)), (0, 1), value=1.0)
    affine = torch.cat([atoms.filters, atoms.offsets.unsqueeze(0)])  # a separate addition would need another pass
    return (patches @ affine).clamp_(min=0).unflatten(1, size)


def pooled(maps: Tensor) -> Tensor:
    """Square roots of mean responses in overlapping windows: maps (N, h, w, n) to (N, h', w', n)."""
    return F.avg_pool2d(maps.permute(0, 3, 1, 2), POOL, STRIDE).permute(0, 2, 3, 1).sqrt()


def map_patches(maps: Tensor) -> Tensor:
    """Patches of maps (N, h, w, d), scaled to variance 1: (N, h - SIDE + 1, w - SIDE + 1, SIDE^2 d)."""
    found = maps.unfold(1, SIDE, 1).unfold(2, SIDE, 1).flatten(3)
    return F.normalize(found, dim=3) * found.shape[3] ** 0.5


def _second_layer(maps: Tensor, second: SecondLayer) -> Tensor:
    """Positive responses (N, h, w, m) to patches of the first layer's maps."""
    patches = map_patches(pooled(maps) @ second.matrix + second.shift)
    return F.linear(patches, second.filters.T, second.offsets).clamp_(min=0)


def _in_quarters(maps: Tensor) -> Tensor:
    """Means (N, 4, n) of maps (N, h, w, n) over each quarter."""
    height, width = maps.shape[1:3]
    return _quarters(height, width).to(maps) @ maps.flatten(1, 2)


def _quarters(height: int, width: int) -> Tensor:
    """Weights (4, height * width) that average over each quarter. Quarters share the middle row or column."""
    halves = []
    for side in (height, width):
        positions, middle = torch.arange(side), -(-side // 2)
        half = torch.stack([positions < middle, positions >= side - middle]).float()
        halves.append(half / middle)
    return torch.einsum("ih,jw->ijhw", *halves).reshape(4, -1)
