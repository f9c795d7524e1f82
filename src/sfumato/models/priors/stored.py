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
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
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
        named = dict(self.whitening._asdict())
        for place, atoms in enumerate(self.scales):
            named |= {f"filters_{place}": atoms.filters, f"offsets_{place}": atoms.offsets}
        for part in (self.second, self.second_whitening):
            named |= {} if part is None else {f"second_{name}": value for name, value in part._asdict().items()}
        return named

    @classmethod
    def from_constants(cls, named: Mapping[str, Tensor]) -> Prior:
        """The dictionary of these tensors."""
        count = sum(name.startswith("filters_") for name in named)
        scales = tuple(Atoms(named[f"filters_{place}"], named[f"offsets_{place}"]) for place in range(count))
        white = Whitening(*(named[name] for name in Whitening._fields))
        if "second_filters" not in named:
            return cls(scales, white)
        second = SecondLayer(*(named[f"second_{name}"] for name in SecondLayer._fields))
        return cls(scales, white, second, Whitening(*(named[f"second_{name}"] for name in Whitening._fields)))


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
    return files("sfumato.models.priors") / f"{name}.safetensors"


def read(path: Path) -> Prior:
    """Reads a dictionary that `studies.dead_leaves.write` wrote."""
    named = safetensors.torch.load_file(path)
    return Prior.from_constants({name: value.float() if "filters" in name else value for name, value in named.items()})
