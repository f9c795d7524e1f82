"""The features of a source under a fixed public backbone, computed once, to a cache on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato import models
from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato._files import write
from sfumato.data import (
    BACKBONE,
    PARTS,
    Cache,
    Contents,
    Images,
    InceptionCrops,
    Part,
    Source,
    Transform,
    Views,
    facts,
    open_source,
    own_codes,
    randomness_of,
    refuse_absent,
    user_codes,
)
from sfumato.data.images.crops import AREA
from sfumato.gradients import keeps_apart, outputs_alone, outputs_together
from sfumato.models import Backbone, Expects
from sfumato.observers.notebook import shown
from sfumato.observers.progress import Progress, Silence
from sfumato.randomness import owner_key as own_key
from sfumato.runs import pins
from sfumato.runs.checkpoint import stored_materials, to_bytes
from sfumato.runs.owner.public_records import refuse_trained_on
from sfumato.training.inputs import ahead
from sfumato.training.preparation.origins import origins_of_backbone
from sfumato.training.preparation.prepare import choose_device

CROPS = ("central", "inception")
CUDA_BATCH = 256
CPU_BATCHES, CPU_PIXELS = (4, 128), 4 * 224**2
"""Bounds of a batch on the CPU, and its pixels for each thread: larger activations are slower to have than to fill."""


def features(
    source: str | Source,
    backbone: str,
    *,
    directory: str | os.PathLike[str],
    weights: str | None = None,
    resolution: int | None = None,
    resize: int | None = None,
    model: str | None = None,
    crop: str = "central",
    crop_area: float | None = None,
    views: int | None = None,
    flip: bool = False,
    dtype: str = "float32",
    batch: int | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Cache:
    """Compute the features of a source under a fixed public backbone, to a cache on disk that is a source itself.

    A cache that was begun with the same arguments goes on where it was cut; only what is missing is computed.

    Args:
        source: a spelling such as "folder:photos", whose images are then read in the size and the colours that the
            backbone expects, or an opened `Source`.
        backbone: "timm:NAME", "torchvision:NAME", or the directory of a run of `pretrain`. Its weights must come from
            public data: what they tell of their images is not covered by any promise for the source.
        directory: the cache's; `sfumato.train("head,norm=12.5", "features:DIRECTORY", ...)` trains on it.
        weights: a safetensors file in place of what the backbone's library downloads.
        resolution: pixels on each side of what the backbone sees; None for what it was trained with.
        resize: to how many pixels a side images are brought before they are cropped; None for what it was trained with.
        model: the function that builds the network of a run that trained one of your own, as in "package:function".
        crop, crop_area: see `Showing`.
        views: see `Showing`; None for one, or with `flip` for the image and its mirror image.
        flip: see `Showing`.
        dtype: "float32", "float16" or "bfloat16": how features are stored.
        batch: images at a time.
        device: where to compute; None for cuda where there is one.
        progress: where to report to.

    **Guarantee.** That of `compute`: each row is a function of its own image, so a promise for training on the cache is
    one for training on the images.
    """
    if isinstance(source, str):
        refuse_absent(source)
    else:
        source.require_images("a cache of features")
    network, expects = models.load_backbone(
        backbone, weights=weights, resolution=resolution, resize=resize, model=model
    )
    if isinstance(source, str):
        source = open_source(source, owner_key=own_key(), **declared_by(network, expects, source))
    contents = contents_for(
        source,
        network,
        expects,
        Showing(
            crop=crop,
            crop_area=crop_area,
            views=default_views(crop, flip=flip) if views is None else views,
            flip=flip,
        ),
        dtype=dtype,
        origins=origins_of_backbone(backbone, weights),
        trained_on=stored_materials(weights or backbone),
    )
    cache = Cache(directory)
    progress = shown(progress)
    begin(cache, contents, progress)
    compute(
        cache,
        contents,
        source,
        network,
        owner_key=own_key(),
        device=choose_device(device),
        batch=batch,
        progress=progress,
    )
    return cache


def declared_by(backbone: Backbone, expects: Expects, spec: str) -> dict[str, Any]:
    """What a backbone says of images that nobody declared: their colours, and for files how large they are read."""
    from_files = spec.partition(":")[0] in ("folder", "csv")
    return {"channels": backbone.architecture.channels} | ({"size": expects.enlarged} if from_files else {})


def default_views(crop: str, *, flip: bool) -> int:
    """K by rule."""
    return 2 if flip and crop == "central" else 1


@dataclass(frozen=True, kw_only=True)
class Showing:
    """How training images are shown to the backbone. Test images are always shown once, by their middle.

    Where training images are shown by random windows, their middles are kept as well: that is what they are scored on.

    Args:
        crop: "central" for the middle, "inception" for random windows.
        views: K. Central ones are the image, or with `flip` the image and its mirror image.
        flip: whether views are mirrored: of random windows each by a coin.
        crop_area: of random windows, the least share of the image's area; None for 8%, as in Szegedy et al. 2015.
    """

    crop: str = "central"
    crop_area: float | None = None
    views: int = 1
    flip: bool = False

    def __post_init__(self) -> None:
        one_of("crop", self.crop, CROPS)
        if self.crop_area is not None and self.crop == "central":
            raise SfumatoError(
                f"crop_area is {self.crop_area}, and crop central shows no random windows",
                "give `crop=inception`, or leave `crop_area` out",
            )
        Views(crop_area=1.0 if self.crop_area is None else self.crop_area)  # refuses what is no share of an area
        positive_integer("views", self.views, remedy="give the number of views of each example, such as 1 or 4")
        if self.crop == "central" and self.views != (2 if self.flip else 1):
            raise SfumatoError(
                f"views must be {2 if self.flip else 1} with crop central {'and' if self.flip else 'without'} flip, "
                f"got {self.views}: there is only the image{' and its mirror image' if self.flip else ''}",
                "give `crop=inception` for more, or `views=2` with `flip=True`",
            )


def contents_for(
    source: Source,
    backbone: Backbone,
    expects: Expects,
    showing: Showing,
    *,
    dtype: str = "float32",
    origins: Sequence[str] = ("unknown",),
    trained_on: Sequence[str] = (),
) -> Contents:
    """What the cache of this source under this backbone is to be.

    Args:
        origins: what stands behind the backbone's weights, as statements say it.
        trained_on: `Source.stored_digest` of what they were trained on without privacy.

    Errors: `SfumatoError` where that is the source itself, and the source is private.
    """
    refuse_trained_on(source, trained_on)
    seen = Images(size=backbone.architecture.size, channels=backbone.architecture.channels).synthetic(2)
    weights = pins.weights_digest(backbone.state_dict())
    return Contents(
        width=backbone.width,
        counts={"train": len(source.train), "test": len(source.test)},
        source=facts(source),
        views=showing.views,
        middle=showing.crop == "inception",
        dtype=dtype,
        backbone=backbone.architecture.to_dict(),
        digest=hashlib.sha256(f"{pins.model_digest(backbone, seen)} {weights}".encode()).hexdigest(),
        weights=weights,
        origins=list(origins),
        trained_on=list(trained_on),
        transform=transform_of(source, expects).to_dict(),
        crop={
            "crop": showing.crop,
            "flip": showing.flip,
            **({} if showing.crop_area is None else {"area": showing.crop_area}),
        },
        test_fraction=source.test_fraction,
    )


def transform_of(source: Source, expects: Expects) -> Transform:
    """How a source's images become what a backbone expects."""
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


def begin(cache: Cache, contents: Contents, progress: Progress | None = None) -> int:
    """Lay the cache down, or see what stands of it; how many records are still to be computed."""
    cache.begin(contents)
    for name in cache.discard_damaged():
        (progress or Silence()).report(f"{cache.path / name} is damaged, and is computed anew")
    return sum(len(rows) for part in PARTS for _, rows in cache.missing(part))


def default_batch(device: torch.device, side: int) -> int:
    """Images of this side at a time, by rule."""
    if device.type == "cuda":
        return CUDA_BATCH
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
    """Write what is missing of the cache, and say whether the backbone could take ordinary batches.

    Args:
        cache: a new place, or a cache that began with these very contents.
        contents: as `contents_for` gave them for this source and backbone.
        owner_key: keys the random windows.
        batch: images at a time; None for a rule's.

    **Guarantee.** Each row is a function of its own image, of the owner's key and of public weights: the backbone runs
    on ordinary batches where `keeps_apart` finds that it may, else on one image at a time (`outputs_alone`), always on
    the same number of images (short batches are filled up with zeros), so that not even rounding tells how many there
    are. So a cache is a per-record preprocessing, and whatever is promised for training on it is promised for training
    on the images (unit: one example; adjacency: any).
    """
    progress = progress or Silence()
    if source.cache is not None:
        raise SfumatoError("the source holds features already", "give a source of images")
    cache.begin(contents)
    if not (cache.path / BACKBONE).is_file():
        write(cache.path / BACKBONE, to_bytes(dict(backbone.state_dict()), {}), private=True)
    place = torch.device(device)
    transform = Transform.from_dict(contents.transform or {})
    features, size, together = by_records(backbone.to(place), transform, place, batch)
    total, done = sum(contents.counts.values()), 0
    progress.begin("computing features", total)
    for name, part in (("train", source.train), ("test", source.test)):
        shown = _shown(contents, transform, owner_key, place) if name == "train" else _middle(transform, place)
        each = max(1, size // contents.stored) if name == "train" else size
        left, codes = dict(cache.missing(name)), own_codes(part, owner_key)
        users, groups = user_codes(part, owner_key), part.groups
        for piece, rows in contents.pieces(name):
            if piece not in left:
                done += len(rows)
                continue
            found = []
            for block in _blocks(part, rows, shown, features, size=size, each=each):
                found.append(block)
                done += len(block)
                progress.advance(done)
            some = slice(rows.start, rows.stop)
            cache.write(
                piece,
                torch.cat(found),
                part.labels[some],
                codes[some],
                users=None if users is None else users[some],
                groups=None if groups is None else groups[some],
            )
    return together


def by_records(
    backbone: Backbone, transform: Transform, device: torch.device, batch: int | None = None
) -> tuple[Callable[[Tensor], Tensor], int, bool]:
    """Features (n, D) of at most so many images (n, C, R, R) at a time, that number, and whether they run together.

    **Guarantee.** Each row is a function of its own image and of the weights: see `compute`.
    """
    side = transform.resolution or transform.size
    size = batch or default_batch(device, side)
    shape = (transform.channels, side, side)
    generator = torch.Generator().manual_seed(0)
    together = keeps_apart(backbone, torch.randn(size, *shape, generator=generator).to(device))

    def features(images: Tensor) -> Tensor:
        filled = torch.cat([images, images.new_zeros(size - len(images), *shape)]) if len(images) < size else images
        return (outputs_together if together else outputs_alone)(backbone, filled)[: len(images)]

    return features, size, together


def features_either_way(
    source: Source, backbone: Backbone, expects: Expects, *, device: str = "cpu", progress: Progress | None = None
) -> Tensor:
    """Features (N, D) of all images of a source, training part first: sums over each image and its mirror image.

    **Guarantee.** Each row is a function of its own image and of public weights: see `compute`.
    """
    progress, place = progress or Silence(), torch.device(device)
    transform = transform_of(source, expects)
    features, size, _ = by_records(backbone.to(place), transform, place)
    found: list[Tensor] = []
    progress.begin("computing features", len(source.train) + len(source.test))
    for part in (source.train, source.test):
        for start in range(0, len(part), size):
            shown = transform(torch.from_numpy(part.take(slice(start, start + size))).to(place))
            found.append((features(shown) + features(shown.flip(-1))).cpu())
            progress.advance(sum(map(len, found)))
    return torch.cat(found)


Shown = Callable[[np.ndarray], Tensor]


def _blocks(
    part: Part, rows: range, shown: Shown, features: Callable[[Tensor], Tensor], *, size: int, each: int
) -> Iterator[Tensor]:
    """Features (n, S, D) of the records in these rows, `each` of them at a time; the next are read meanwhile."""
    blocks = [slice(start, min(start + each, rows.stop)) for start in range(rows.start, rows.stop, each)]
    for images in ahead(part, blocks):
        views = shown(images)
        flat = torch.cat([features(some) for some in views.flatten(0, 1).split(size)])
        yield flat.unflatten(0, views.shape[:2]).cpu()


def _middle(transform: Transform, device: torch.device) -> Shown:
    return lambda images: transform(torch.from_numpy(images).to(device)).unsqueeze(1)


def _shown(contents: Contents, transform: Transform, owner_key: bytes, device: torch.device) -> Shown:
    """What is stored of training images uint8 (n, H, W, C): (n, S, C, R, R), their middles first."""
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
        views = windows.apply(pixels, [randomness_of(owner_key, image) for image in images])
        views = transform.normalised(views.flatten(0, 1)).unflatten(0, views.shape[:2])
        return torch.cat([middle(images), views], dim=1)

    return cut
