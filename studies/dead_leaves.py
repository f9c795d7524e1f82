"""Makes a dictionary from synthetic images: atoms and whitening.

This command made the files in sfumato/models/priors, in a few minutes on two cores. The same seed gives the same
dictionary, up to differences in rounding between processors.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from joblib import Parallel, delayed
from scipy.ndimage import gaussian_filter
from torch import Tensor

from sfumato.cli.output import console
from sfumato.cli.parser import argument
from sfumato.models.networks.dictionary import AT_ONCE
from sfumato.models.networks.prior import (
    COLOUR,
    GREY,
    WIDTH,
    Atoms,
    Prior,
    SecondLayer,
    Whitening,
    first_layer,
    haar,
    map_patches,
    normalise_patches,
    pooled,
    responses,
)
from studies import command

TOGETHER = 100
"""Images per random generator. Image i depends on the seed and on i // 100, not on the number of images."""
_SHAPES = 120
_SMALLEST, _LARGEST = 1.0, 24.0  # radii, pixels of 32
_WARM, _GREEN = np.array([[0.7, 0.0, -0.7]]), np.array([[0.4, -0.8, 0.4]])


def dead_leaves(count: int, *, seed: int = 0, side: int = 32, processes: int = -1) -> np.ndarray:
    """Images uint8 (count, side, side, 3).

    Args:
        count: number of images. The first images do not depend on the count.
        seed: random seed.
        side: H and W in pixels.
        processes: number of processes; -1 for one per processor.
    """

    def drawn(group: int) -> np.ndarray:
        rng = np.random.default_rng((seed, group))
        return np.stack([_leaves(rng, side) for _ in range(TOGETHER)])

    groups: Any = Parallel(processes)(delayed(drawn)(group) for group in range(-(-count // TOGETHER)))
    return np.concatenate(groups)[:count]


def grey(images: np.ndarray) -> np.ndarray:
    """The luma of colour images (N, H, W, 3), uint8 (N, H, W, 1), with Pillow's weights."""
    return (images @ np.array([[299], [587], [114]]) // 1000).astype(np.uint8)


def _colours(rng: np.random.Generator, count: int) -> np.ndarray:
    """Colours (count, 3) from 0 to 1: varied lightness and little hue, as in photographs."""
    lightness = rng.beta(1.2, 1.2, (count, 1))
    hue = rng.normal(0, 0.12, (count, 1)) * _WARM + rng.normal(0, 0.06, (count, 1)) * _GREEN
    return np.clip(lightness + hue, 0, 1)


def _leaves(rng: np.random.Generator, side: int) -> np.ndarray:
    """One image of ellipses, rectangles and triangles, plain, shaded or with a grating, drawn front to back."""
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


_WHITENESS = 0.1
_PATCHES, _ROUNDS, _AT_ONCE = 300_000, 20, 20_000
_LEAST = 0.03
"""Added to each eigenvalue, relative to their mean, so that rare directions are not amplified."""
POWER = 0.75
"""1 for full whitening, 0 for none. Slightly less than 1 reduces noise in directions with little information."""
_LEVELS = 127


def learn(images: Tensor, count: int, *, threshold: float, seed: int = 0) -> Atoms:
    """Learns atoms from the patches of public images.

    Args:
        images: (N, C, H, W), from -1 to 1.
        count: n, the number of atoms.
        threshold: similarity at which a response becomes positive.
        seed: seed of the choice of patches and initial atoms.
    """
    rng = np.random.default_rng(seed)
    return atoms_of(normalise_patches(_patches(images, rng)), count, threshold=threshold, rng=rng)


def atoms_of(patches: Tensor, count: int, *, threshold: float, rng: np.random.Generator) -> Atoms:
    """Learns atoms of normalised patches (P, d) by spherical k-means, after whitening the patches.

    Args:
        patches: of public images.
        count: n, the number of atoms.
        threshold: similarity at which a response becomes positive.
        rng: chooses the initial atoms, and replaces those that no patch resembles most.
    """
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
    """Patches (n, C * WIDTH^2) from random places, in the order of `F.unfold`."""
    which = rng.integers(0, len(images), _PATCHES)[:, None, None]
    top, left = (rng.integers(0, extent - WIDTH + 1, _PATCHES)[:, None, None] for extent in images.shape[2:])
    rows, columns = top + np.arange(WIDTH)[:, None], left + np.arange(WIDTH)
    found = images.permute(0, 2, 3, 1).numpy()[which, rows, columns]
    return torch.from_numpy(found).permute(0, 3, 1, 2).flatten(1)


def whitening(features: Tensor, power: float = POWER, *, sums: float = 1.0, keep: int | None = None) -> Whitening:
    """The whitening of public features (N, n, 4), by their mean and covariance over the N images.

    Args:
        power: 1 for equal variances, 0 for the original ones.
        sums: weight of the sum of the quarters; that of their differences is 1.
        keep: k, how many directions of each Haar component to keep, those of the largest variances; None for n.
    """
    center, deviation = features.mean((0, 2)), features.transpose(1, 2).flatten(0, 1).std(0) + 1e-4
    parts = haar((features - center[:, None]) / deviation[:, None])
    found = [torch.linalg.eigh(part.T @ part / len(part)) for part in parts.unbind(2)]
    values = torch.stack([one.eigenvalues.clamp(min=0) for one in found])
    least = _LEAST * values.mean()
    kept = slice(-keep if keep else None, None)  # eigenvalues ascend
    values, vectors = values[:, kept], torch.stack([one.eigenvectors[:, kept] for one in found])
    step = vectors.abs().amax(1, keepdim=True) / _LEVELS
    scales = step.squeeze(1) * (values + least).clamp(min=1e-12) ** (-power / 2)
    scales[0] *= sums
    return Whitening(center, deviation, (vectors / step).round().to(torch.int8), scales)


ATOMS = (800, 400)
"""Number of atoms of each scale, the finest first."""
THRESHOLDS = (0.25, 0.25)


class Details(NamedTuple):
    """How a dictionary is made.

    Args:
        power: whitening power.
        sums: weight of the sum of the quarters beside their differences.
        second: m, the number of the second layer's atoms; 0 for none.
    """

    power: float
    sums: float
    second: int


KINDS = {COLOUR: Details(power=POWER, sums=1.5, second=1600), GREY: Details(power=0.5, sums=1.0, second=0)}
"""Of each kind. Drawings, which are often grey, differ more from synthetic images than photographs do."""
IMAGES = 12_000
DIRECTIONS, PATCHES_OF_AN_IMAGE, THRESHOLD = 44, 25, 0.2
SUMS_OF_SECOND = 2.5
"""Of the second layer: d, patches of each synthetic image to learn atoms of, the threshold, the weight of sums."""
_FOR_DIRECTIONS = 2_000


def learn_second(images: Tensor, atoms: Atoms, count: int, *, seed: int = 0) -> SecondLayer:
    """Learns a second layer from public images.

    Args:
        images: (N, C, H, W), from -1 to 1.
        atoms: of the finest scale.
        count: m, the number of atoms.
        seed: seed of the choice of patches and initial atoms.
    """
    rng = np.random.default_rng(seed)

    def maps(some: Tensor) -> Tensor:
        return pooled(first_layer(some, atoms))

    seen = torch.cat([maps(some).flatten(0, 2) for some in images[:_FOR_DIRECTIONS].split(AT_ONCE)])
    center, deviation = seen.mean(0), seen.std(0) + 1e-4
    values, vectors = torch.linalg.eigh(torch.cov(((seen - center) / deviation).T))
    values, vectors = values.flip(0)[:DIRECTIONS], vectors.flip(1)[:, :DIRECTIONS]
    matrix = vectors * (values + _LEAST * values.mean()).rsqrt() / deviation[:, None]
    shift = -(center @ matrix)
    patches = []
    for some in images.split(AT_ONCE):
        of_some = map_patches(maps(some) @ matrix + shift).flatten(1, 2)
        chosen = rng.integers(0, of_some.shape[1], (len(some), PATCHES_OF_AN_IMAGE))
        patches.append(of_some[torch.arange(len(some))[:, None], torch.from_numpy(chosen)].flatten(0, 1))
    learnt = atoms_of(torch.cat(patches), count, threshold=THRESHOLD, rng=rng)
    return SecondLayer(matrix, shift, learnt.filters.half().float(), learnt.offsets)


def make(
    kind: str,
    *,
    images: int = IMAGES,
    atoms: tuple[int, ...] = ATOMS,
    thresholds: tuple[float, ...] = THRESHOLDS,
    details: Details | None = None,
    seed: int = 0,
) -> Prior:
    """A dictionary of this kind.

    Args:
        kind: "colour", whose features are means over an image and its mirror image, or "grey".
        images: number of synthetic images.
        atoms, thresholds: for each scale, the finest first.
        details: None for those of the kind.
        seed: seed of the images and of the search for atoms.
    """
    details = KINDS[kind] if details is None else details
    drawn = dead_leaves(images, seed=seed)
    if kind == GREY:
        drawn = grey(drawn)
    shown = torch.from_numpy(drawn).permute(0, 3, 1, 2) / 127.5 - 1
    scales: list[Atoms] = []
    smaller = shown
    for place, (count, threshold) in enumerate(zip(atoms, thresholds, strict=True)):
        if place:
            smaller = F.avg_pool2d(smaller, 2)
        learnt = learn(smaller, count, threshold=threshold, seed=seed)
        scales.append(Atoms(learnt.filters.half().float(), learnt.offsets))
    layer = learn_second(shown, scales[0], details.second, seed=seed) if details.second else None
    found = [responses(some, scales, layer, mirrored=kind == COLOUR) for some in shown.split(AT_ONCE)]
    first, *deeper = (torch.cat(layers) for layers in zip(*found, strict=True))
    second = [whitening(some, details.power, sums=SUMS_OF_SECOND, keep=details.second // 2) for some in deeper]
    return Prior(tuple(scales), whitening(first, details.power, sums=details.sums), layer, *second)


def write(prior: Prior, path: Path, *, made_of: dict[str, Any]) -> None:
    """Writes the dictionary to a file, with 16-bit filters."""
    named = {name: value.half() if "filters" in name else value for name, value in prior.constants().items()}
    metadata = {"made_of": json.dumps(made_of, sort_keys=True)}
    safetensors.torch.save_file({name: value.contiguous() for name, value in named.items()}, path, metadata)


@dataclass(frozen=True, kw_only=True)
class DeadLeaves:
    """Make a dictionary from synthetic images."""

    out: str = argument("OUT.safetensors")
    """The file to write."""
    kind: Literal["colour", "grey"] = COLOUR
    """The kind of images."""
    images: int = IMAGES
    """Number of synthetic images."""
    seed: int = 0
    """Seed of the images and of the search for atoms."""

    def run(self) -> None:
        """Make the dictionary and write it."""
        made_of = {"images": self.images, "atoms": ATOMS, "thresholds": THRESHOLDS, "seed": self.seed}
        recorded = {"kind": self.kind, **made_of, **KINDS[self.kind]._asdict()}
        write(make(self.kind, **made_of), Path(self.out), made_of=recorded)
        console.note(f"{self.out}: {Path(self.out).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(command.main("dead_leaves"))
