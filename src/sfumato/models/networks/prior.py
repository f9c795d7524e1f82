"""The dictionaries included in the package: one file of a few megabytes for colour images, and one for grey images.

Atoms are directions of image patches, learnt by spherical k-means (Coates and Ng 2012). A patch is normalised (mean
removed, contrast near 1) and whitened. The response of an atom is the positive part of its similarity to the patch,
similar to a cosine, minus a threshold (related to the "triangle" encoding of Coates, Lee and Ng 2011). Except for the
normalisation all of this is affine, so a response is one product with a filter plus an offset.

Responses are whitened by the statistics of public features. Features are means over the quarters of an image. For
synthetic images the quarters have the same distribution, so the covariance of sums and differences of quarters (Haar
basis) has four blocks of n x n instead of one of 4n x 4n: a sixteenth of the time, and a quarter of the numbers to
store. The eigenvectors of each block are stored as 8-bit integers. Rounding changes the map, but it remains a public
linear map.

The responses of the first layer are averaged over the quarters of an image. A second layer compares patches of the
first layer's pooled responses with atoms of its own (Coates and Ng 2012, "Learning feature representations with
k-means", section 5), after they were reduced to a few directions.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from sfumato._checks import SfumatoError

WIDTH = 6
"""Pixels on each side of a patch."""
EVENNESS = 10.0 / 127.5**2
"""Added to a patch's variance, for pixels from -1 to 1, so that faint patches are not amplified."""


class Atoms(NamedTuple):
    """Filters and offsets of atoms. Responses are the positive part of `even(patches) @ filters + offsets`.

    Args:
        filters: (C * WIDTH^2, n).
        offsets: (n,).
    """

    filters: Tensor
    offsets: Tensor


def normalise_patches(patches: Tensor) -> Tensor:
    """Normalises patches (..., d) of pixels from -1 to 1: zero mean and contrast near 1."""
    centered = patches - patches.mean(-1, keepdim=True)
    variance = centered.square().sum(-1, keepdim=True) / (patches.shape[-1] - 1)
    return centered * (variance + EVENNESS).rsqrt()


class Whitening(NamedTuple):
    """Maps features of quarters (N, n, 4) to whitened features (N, 4k).

    Args:
        center, deviation: (n,), of each atom over images and quarters.
        vectors: int8 (4, n, k), for each Haar component a column for each direction.
        scales: (4, k), factor of each direction.
    """

    center: Tensor
    deviation: Tensor
    vectors: Tensor
    scales: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Whitened features (N, 4k)."""
        parts = haar((features - self.center[:, None]) / self.deviation[:, None])
        maps = zip(parts.unbind(2), self.vectors.to(parts.dtype), self.scales, strict=True)
        return torch.cat([part @ vectors * scales for part, vectors, scales in maps], 1)


def haar(features: Tensor) -> Tensor:
    """Sums and differences of the quarters (top left, top right, bottom left, bottom right), orthonormal: (N, n, 4)."""
    signs = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    return features @ torch.tensor(signs, dtype=features.dtype, device=features.device).T.div(2)


COLOUR, GREY = "colour", "grey"


POOL, STRIDE = 3, 2
"""Side and stride of the windows over which the second layer's inputs are averaged."""
SIDE = 3
"""Places on each side of the second layer's patches."""


class SecondLayer(NamedTuple):
    """Atoms of patches of the finest scale's pooled responses.

    Args:
        matrix, shift: (n, d) and (d,), from the pooled responses of n atoms to d directions.
        filters, offsets: (d * SIDE^2, m) and (m,), as in `Atoms`.
    """

    matrix: Tensor
    shift: Tensor
    filters: Tensor
    offsets: Tensor


class Prior(NamedTuple):
    """A dictionary: the atoms of each scale, the finest first, each further one for images of half the side; the joint
    whitening of their responses; and a second layer with the whitening of its responses, or None."""

    scales: tuple[Atoms, ...]
    whitening: Whitening
    second: SecondLayer | None = None
    second_whitening: Whitening | None = None

    def constants(self) -> dict[str, Tensor]:
        """All of its tensors by name, as a model holds them."""
        constants = dict(self.whitening._asdict())
        for place, atoms in enumerate(self.scales):
            constants |= {f"filters_{place}": atoms.filters, f"offsets_{place}": atoms.offsets}
        for part in (self.second, self.second_whitening):
            constants |= {} if part is None else {f"second_{name}": value for name, value in part._asdict().items()}
        return constants

    @classmethod
    def from_constants(cls, constants: Mapping[str, Tensor]) -> Prior:
        """The dictionary of these tensors."""
        count = sum(name.startswith("filters_") for name in constants)
        scales = tuple(Atoms(constants[f"filters_{place}"], constants[f"offsets_{place}"]) for place in range(count))
        white = Whitening(*(constants[name] for name in Whitening._fields))
        if "second_filters" not in constants:
            return cls(scales, white)
        second = SecondLayer(*(constants[f"second_{name}"] for name in SecondLayer._fields))
        return cls(scales, white, second, Whitening(*(constants[f"second_{name}"] for name in Whitening._fields)))


def prior_for(channels: int) -> Prior:
    """The stored dictionary for images with this number of channels.

    Raises:
        SfumatoError: neither 1 nor 3.
    """
    if channels not in (1, 3):
        raise SfumatoError(
            f"the dictionaries are for images of 1 or 3 channels, got {channels}", "choose another model, such as cnn"
        )
    return _stored(COLOUR if channels == 3 else GREY)


def creation_arguments(name: str) -> dict[str, Any]:
    """The arguments of `studies.dead_leaves.make` with which a stored dictionary was made."""
    with as_file(_place(name)) as path, safe_open(path, "pt") as file:
        return json.loads(file.metadata()["made_of"])


@functools.cache
def _stored(name: str) -> Prior:
    with as_file(_place(name)) as path:
        return read(path)


def _place(name: str) -> Any:
    return files("sfumato.models") / "priors" / f"{name}.safetensors"


def read(path: Path) -> Prior:
    """Reads a dictionary that `studies.dead_leaves.write` wrote."""
    loaded = safetensors.torch.load_file(path)
    return Prior.from_constants({name: value.float() if "filters" in name else value for name, value in loaded.items()})


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
    patches = maps.unfold(1, SIDE, 1).unfold(2, SIDE, 1).flatten(3)
    return F.normalize(patches, dim=3) * patches.shape[3] ** 0.5


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
