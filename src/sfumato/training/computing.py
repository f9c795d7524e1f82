"""Features of images under a frozen backbone, computed in batches and written to a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.data import (
    BACKBONE,
    PARTS,
    Cache,
    Contents,
    InceptionCrops,
    Part,
    Source,
    Transform,
    image_generator,
    own_codes,
    user_codes,
)
from sfumato.data.views import AREA
from sfumato.gradients import batched_outputs, is_batch_independent, per_example_outputs
from sfumato.models import Backbone, ExpectedInput
from sfumato.observers.progress import NoProgress, Progress
from sfumato.runs import pins
from sfumato.runs.checkpoint import to_bytes
from sfumato.training import launch
from sfumato.training.inputs import read_ahead
from sfumato.training.workers import Workers

DEVICE_BATCH = 256
CPU_BATCHES, CPU_PIXELS = (4, 128), 4 * 224**2
"""Smallest and largest batch on the CPU, and its pixels per thread: allocating larger activations slows it down."""


def transform_of(source: Source, expects: ExpectedInput) -> Transform:
    """The transform from a source's images to the backbone's inputs."""
    return Transform(
        size=source.size,
        channels=source.channels,
        mean=expects.mean,
        std=expects.std,
        resolution=expects.resolution,
        enlarged=expects.enlarged,
        interpolation=expects.interpolation,
        bit_depth=source.bit_depth,
        window=source.window,
    )


def default_batch(device: torch.device, side: int) -> int:
    """The default batch size for images of this side."""
    if device.type != "cpu":
        return DEVICE_BATCH
    fewest, most = CPU_BATCHES
    return max(fewest, min(most, torch.get_num_threads() * CPU_PIXELS // side**2))


def compute(
    cache: Cache,
    contents: Contents,
    source: Source,
    backbone: Backbone,
    *,
    owner_key: bytes,
    device: str = "cpu",
    batch: int | None = None,
    progress: Progress | None = None,
) -> bool:
    """Compute the missing part of the cache. Returns whether the backbone could run on ordinary batches.

    Several workers share the images; the leader writes, and determines the batch size.

    Args:
        cache: an empty directory, or a cache begun with the same contents.
        contents: from `contents_for`, for this source and backbone.
        owner_key: keys the random crops.
        batch: number of images per batch; None for the default.

    **Guarantee.** Each row is a function of its own image, of the owner's key and of public weights. The backbone runs
    on ordinary batches where `is_batch_independent` finds that it may, otherwise on one image at a time
    (`per_example_outputs`). Batches always have the same number of images (short ones are filled up with zeros), so
    that not even rounding depends on how many there are. So a cache is a per-record preprocessing, and a guarantee for
    training on it is one for training on the images (unit: one example; adjacency: any).
    """
    progress, workers = progress or NoProgress(), launch.current_workers()
    if source.cache is not None:
        raise SfumatoError("the source already holds features", "give a source of images")
    place, transform = torch.device(device), Transform.from_dict(contents.transform or {})
    begun: dict[str, Any] = {}
    if workers.is_leader:
        begun["missing"] = _create(cache, contents, backbone)
        begun["batch"] = batch or default_batch(place, transform.resolution or transform.size)
    begun = workers.broadcast(begun)
    facts = {"data": str(contents.source["fingerprint"]), "backbone": str(contents.digest)}
    workers.refuse_different(facts | {"what is to be computed": contents.identity} | pins.environment())
    features, size, ordinary = feature_function(backbone.to(place), transform, place, begun["batch"])
    done = 0
    progress.begin("computing features", sum(contents.counts.values()))
    for name, part in (("train", source.train), ("test", source.test)):
        shown = _load_views(contents, transform, owner_key, place) if name == "train" else _middle(transform, place)
        each = max(1, size // contents.stored) if name == "train" else size
        codes = own_codes(part, owner_key)
        users, groups = user_codes(part, owner_key), part.groups
        for piece, rows in contents.pieces(name):
            if piece in begun["missing"]:
                found = _rows(
                    *(workers, part, rows, shown, features),
                    size=size,
                    each=each,
                    advance=lambda some, before=done: progress.advance(before + some),
                )
                if workers.is_leader:
                    some = slice(rows.start, rows.stop)
                    cache.write(
                        piece,
                        found,
                        part.labels[some],
                        codes[some],
                        users=None if users is None else users[some],
                        groups=None if groups is None else groups[some],
                    )
            done += len(rows)
    return ordinary


def _create(cache: Cache, contents: Contents, backbone: Backbone) -> list[str]:
    """Create the cache with its backbone. Returns the names of the missing pieces."""
    cache.begin(contents)
    if not (cache.path / BACKBONE).is_file():
        write(cache.path / BACKBONE, to_bytes(dict(backbone.state_dict()), {}), private=True)
    return [piece for part in PARTS for piece, _ in cache.missing(part)]


def feature_function(
    backbone: Backbone, transform: Transform, device: torch.device, batch: int | None = None
) -> tuple[Callable[[Tensor], Tensor], int, bool]:
    """A function to features (n, D) from at most N images (n, C, R, R), N, and whether images are batched together.

    **Guarantee.** Each row is a function of its own image and of the weights: see `compute`.
    """
    side = transform.resolution or transform.size
    size = batch or default_batch(device, side)
    shape = (transform.channels, side, side)
    generator = torch.Generator().manual_seed(0)
    ordinary = is_batch_independent(backbone, torch.randn(size, *shape, generator=generator).to(device))

    def features(images: Tensor) -> Tensor:
        filled = torch.cat([images, images.new_zeros(size - len(images), *shape)]) if len(images) < size else images
        return (batched_outputs if ordinary else per_example_outputs)(backbone, filled)[: len(images)]

    return features, size, ordinary


def features_with_mirror(
    source: Source, backbone: Backbone, expects: ExpectedInput, *, device: str = "cpu", progress: Progress | None = None
) -> Tensor:
    """Features (N, D) of all images of a source, training part first: sums over each image and its mirror image.

    **Guarantee.** Each row is a function of its own image and of public weights: see `compute`.
    """
    progress, place = progress or NoProgress(), torch.device(device)
    transform = transform_of(source, expects)
    features, size, _ = feature_function(backbone.to(place), transform, place)
    found: list[Tensor] = []
    progress.begin("computing features", len(source.train) + len(source.test))
    for part in (source.train, source.test):
        for start in range(0, len(part), size):
            shown = transform(torch.from_numpy(part.take(slice(start, start + size))).to(place))
            found.append((features(shown) + features(shown.flip(-1))).cpu())
            progress.advance(sum(map(len, found)))
    return torch.cat(found)


def second_moment(
    images: Part, backbone: Backbone, transform: Transform, *, device: str = "cpu", progress: Progress | None = None
) -> tuple[Tensor, str]:
    """Mean of z z^T over the features z of public images, float64 (D, D), and the SHA-256 of the images.

    Args:
        images: public images. None of them may be private.
        transform: from the images to the backbone's inputs.
    """
    progress, place = progress or NoProgress(), torch.device(device)
    features, size, _ = feature_function(backbone.to(place), transform, place)
    total, digest = torch.zeros(backbone.width, backbone.width, dtype=torch.float64), hashlib.sha256()
    progress.begin("computing features of public images", len(images))
    for start in range(0, len(images), size):
        pixels = images.take(slice(start, start + size))
        digest.update(np.ascontiguousarray(pixels).data)
        found = features(transform(torch.from_numpy(pixels).to(place))).cpu().double()
        total += found.T @ found
        progress.advance(start + len(pixels))
    return total / len(images), digest.hexdigest()


Shown = Callable[[np.ndarray], Tensor]


def _rows(
    workers: Workers,
    part: Part,
    rows: range,
    shown: Shown,
    features: Callable[[Tensor], Tensor],
    *,
    size: int,
    each: int,
    advance: Callable[[int], None],
) -> Tensor:
    """Features (n, S, D) of the records in these rows, in pieces of `each`, shared among the workers.

    The next piece is read meanwhile.

    Args:
        advance: called with the number of records done, assuming equally fast workers.
    """

    def computed(own: Sequence[np.ndarray]) -> Iterator[Tensor]:
        for number, images in enumerate(read_ahead(part, own), start=1):
            views = shown(images)
            flat = torch.cat([features(some) for some in views.flatten(0, 1).split(size)])
            yield flat.unflatten(0, views.shape[:2]).cpu()
            advance(min(number * each * workers.count, len(rows)))

    return workers.compute_rows(np.split(np.arange(rows.start, rows.stop), range(each, len(rows), each)), computed)


def _middle(transform: Transform, device: torch.device) -> Shown:
    return lambda images: transform(torch.from_numpy(images).to(device)).unsqueeze(1)


def _load_views(contents: Contents, transform: Transform, owner_key: bytes, device: torch.device) -> Shown:
    """The stored views (n, S, C, R, R) of training images uint8 (n, H, W, C), centre crops first."""
    crop, flip = contents.crop["crop"], contents.crop["flip"]
    middle = _middle(transform, device)
    if crop == "central":
        return (lambda images: torch.cat([middle(images), middle(images).flip(-1)], dim=1)) if flip else middle
    assert transform.resolution is not None
    windows = InceptionCrops(
        count=contents.views,
        resolution=transform.resolution,
        interpolation=transform.interpolation,
        flip=flip,
        area=contents.crop.get("area", AREA),
    )

    def cut(images: np.ndarray) -> Tensor:
        pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float()
        views = windows.apply(pixels, [image_generator(owner_key, image) for image in images])
        views = transform.normalise(views.flatten(0, 1)).unflatten(0, views.shape[:2])
        return torch.cat([middle(images), views], dim=1)

    return cut
