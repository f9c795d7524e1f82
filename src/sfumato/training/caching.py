"""The features of a source under a fixed public backbone, computed once, to a cache on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sfumato import _devices, models
from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.data import PARTS, Cache, Contents, Images, Source, Views, choose_reader, facts, open_source, refuse_absent
from sfumato.models import Backbone, ExpectedInput
from sfumato.observers.progress import NoProgress, Progress, default_progress
from sfumato.randomness import owner_key as own_key
from sfumato.runs import pins
from sfumato.runs.checkpoint import stored_materials
from sfumato.runs.owner import uses
from sfumato.runs.owner.store import refuse_trained_on, remember_public
from sfumato.training import launch
from sfumato.training.computing import compute, second_moment, transform_of
from sfumato.training.preparation.building import origins_of_backbone
from sfumato.training.public_examples import draw

CROPS = ("central", "inception")


def features(
    source: Any,
    backbone: str,
    *,
    directory: str | os.PathLike[str],
    dtype: str = "float32",
    batch: int | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    **choices: Any,
) -> Cache:
    """Compute the features of a source under a frozen public backbone and write them to a cache, itself a source.

    A cache that was begun with the same arguments is resumed: only missing features are computed. Processes of torchrun
    share the work, and the first one writes the cache.

    Args:
        source: a spelling such as "folder:photos", whose images are then read with the size and colours that the
            backbone expects, or an opened `Source`.
        backbone: "timm:NAME", "torchvision:NAME", or the directory of a run of `pretrain`. Its weights must come from
            public data: a guarantee for the source does not cover what they reveal about their own images.
        directory: of the cache; `sfumato.train("head,norm=12.5", "features:DIRECTORY", ...)` trains on it.
        dtype: "float32", "float16" or "bfloat16", the type in which features are stored.
        batch: number of images per batch.
        device: where to compute; None for an accelerator if there is one.
        progress: where to report progress.
        choices: fields of `StoredViews` (by default one view, or with `flip` the image and its mirror image), and

            weights: a safetensors file in place of the weights that the backbone's library downloads.

            resolution: side of the backbone's input in pixels; None for that of its training.

            resize: side in pixels to which images are resized before they are cropped; None for that of its training.

            model: the function that builds the network of a run with your own model, "package:function".

            whiten_by: a public source of images by which features are whitened: see `whiten`.

    **Guarantee.** That of `compute`: each row is a function of its own image, so a guarantee for training on the cache
    holds for training on the images.
    """
    if isinstance(source, str):
        refuse_absent(source)
    elif isinstance(source, Source):
        source.require_images("a cache of features")
    of_network = {name: choices.pop(name, None) for name in ("weights", "resolution", "resize", "model")}
    if choices.get("views") is None:
        choices["views"] = default_views(choices.get("crop", "central"), flip=choices.get("flip", False))
    whiten_by, progress = choices.pop("whiten_by", None), default_progress(progress)
    showing = StoredViews(**choices)
    network, expects = models.load_backbone(backbone, **of_network)
    if not isinstance(source, Source):
        source = open_source(source, owner_key=own_key(), **declarations_from(network, expects, source))
    cache, device = Cache(directory), _devices.select(device)
    seen = {
        "origins": origins_of_backbone(backbone, of_network["weights"]),
        "trained_on": stored_materials(of_network["weights"] or backbone),
    }
    with launch.join_if_started() as workers:
        network, seen = whiten(source, network, expects, whiten_by, device=device, progress=progress, **seen)
        contents = contents_for(source, network, expects, showing, dtype=dtype, **seen)
        begin(cache, contents, progress)
        how = {"owner_key": own_key(), "device": device, "batch": batch, "progress": progress}
        compute(cache, contents, source, network, **how)
        workers.broadcast_bool(True)
    return cache


def declarations_from(backbone: Backbone, expects: ExpectedInput, spec: Any) -> dict[str, Any]:
    """Declarations for images that follow from the backbone: the channels, and for files the size."""
    from_files = choose_reader(spec).kind in ("folder", "csv", "hf", "dataset", "frame")
    return {"channels": backbone.architecture.channels} | ({"size": expects.enlarged} if from_files else {})


def default_views(crop: str, *, flip: bool) -> int:
    """The default number of views K."""
    return 2 if flip and crop == "central" else 1


@dataclass(frozen=True, kw_only=True)
class StoredViews:
    """The views of training images for the backbone. Test images always have one view, the centre crop.

    With random crops the centre crops of training images are stored as well, for evaluation.

    Args:
        crop: "central" for the centre crop, "inception" for random crops.
        views: K. With central crops: the image, or with `flip` the image and its mirror image.
        flip: whether views are mirrored, random crops with probability one half.
        crop_area: smallest share of the image's area in a random crop; None for 8%, as in Szegedy et al. 2015.
    """

    crop: str = "central"
    crop_area: float | None = None
    views: int = 1
    flip: bool = False

    def __post_init__(self) -> None:
        one_of(CROPS, crop=self.crop)
        if self.crop_area is not None and self.crop == "central":
            raise SfumatoError(
                f"crop_area is {self.crop_area}, but crop central has no random crops",
                "give `crop=inception`, or leave `crop_area` out",
            )
        Views(crop_area=1.0 if self.crop_area is None else self.crop_area)  # validates the share of the area
        positive_integer(views=self.views, remedy="give the number of views of each example, such as 1 or 4")
        if self.crop == "central" and self.views != (2 if self.flip else 1):
            raise SfumatoError(
                f"views must be {2 if self.flip else 1} with crop central {'and' if self.flip else 'without'} flip, "
                f"got {self.views}: there is only the image{' and its mirror image' if self.flip else ''}",
                "give `crop=inception` for more, or `views=2` with `flip=True`",
            )


def contents_for(
    source: Source,
    backbone: Backbone,
    expects: ExpectedInput,
    stored_views: StoredViews,
    *,
    dtype: str = "float32",
    origins: Sequence[str] = ("unknown",),
    trained_on: Sequence[str] = (),
) -> Contents:
    """The contents of the cache of this source under this backbone.

    Args:
        origins: the origins of the backbone's weights, in the words of statements.
        trained_on: `Source.stored_digest` of the data that the weights were trained on without privacy.

    Errors: `SfumatoError` if they were trained on the source itself and the source is private.
    """
    refuse_trained_on(source, trained_on)
    seen = Images(size=backbone.architecture.size, channels=backbone.architecture.channels).synthetic(2)
    weights = pins.weights_digest(backbone.state_dict())
    return Contents(
        width=backbone.width,
        counts={"train": len(source.train), "test": len(source.test)},
        source=facts(source),
        views=stored_views.views,
        middle=stored_views.crop == "inception",
        dtype=dtype,
        backbone=backbone.architecture.to_dict(),
        digest=hashlib.sha256(f"{pins.model_digest(backbone, seen)} {weights}".encode()).hexdigest(),
        weights=weights,
        origins=list(origins),
        trained_on=list(trained_on),
        transform=transform_of(source, expects).to_dict(),
        crop={
            "crop": stored_views.crop,
            "flip": stored_views.flip,
            **({} if stored_views.crop_area is None else {"area": stored_views.crop_area}),
        },
        test_fraction=source.test_fraction,
    )


WHITENED_BY = 10_000
"""The most public images whose second moment is computed, drawn with the public seed `DRAWN_BY` if there are more."""


def whiten(
    source: Source,
    backbone: Backbone,
    expects: ExpectedInput,
    spec: str | None,
    *,
    origins: Sequence[str],
    trained_on: Sequence[str],
    device: str = "cpu",
    progress: Progress | None = None,
) -> tuple[Backbone, dict[str, Sequence[str]]]:
    """The backbone, followed by the map that whitens its features by those of a public source, and what it has seen.

    Args:
        source: the source of the features.
        spec: the public source; None for the backbone as it is.
        origins, trained_on: of the backbone's weights, as for `contents_for`.

    Returns:
        The backbone, and `origins` and `trained_on` with those of the public images.

    **Guarantee.** The map is a function of the public images and weights alone. It is part of the backbone, so each row
    of a cache stays a function of its own image: see `compute`. Records of the public source that are private in
    `source` are refused as those of pre-training are, by their keyed codes.

    Errors: `SfumatoError` for a source without images, and for one that holds private records of `source`.
    """
    seen: dict[str, Sequence[str]] = {"origins": origins, "trained_on": trained_on}
    if spec is None:
        return backbone, seen
    if spec.startswith("features:"):
        raise SfumatoError(f"whiten_by {spec} holds features, but images are needed", "give a source of images")
    refuse_absent(spec)
    declared = declarations_from(backbone, expects, spec)
    public = open_source(spec, owner_key=own_key(), public=True, open_set=True, **declared)
    public.require_images("whiten_by")
    remember_public(public)
    refuse_trained_on(source, [public.stored_digest], whitening=spec)
    if (note := uses.declared_public_note(public)) is not None:
        (progress or NoProgress()).report(note)
    images, workers = draw(public.train, WHITENED_BY), launch.current_workers()
    moment, digest = torch.zeros(backbone.width, backbone.width, dtype=torch.float64), ""
    if workers.is_leader:
        how = {"device": device, "progress": progress}
        moment, digest = second_moment(images, backbone, transform_of(public, expects), **how)
    moment, digest = workers.gather(moment)[0], workers.broadcast({"by": digest})["by"]
    further = ["public images", *(["filtered data"] if public.filtered else [])]
    return models.whitened(backbone.cpu(), moment, images=len(images), by=digest), {
        "origins": sorted({*origins, *further}),
        "trained_on": sorted({*trained_on, public.stored_digest}),
    }


def begin(cache: Cache, contents: Contents, progress: Progress | None = None) -> int:
    """Create the cache, or check the existing one. Returns the number of records still to be computed.

    Only the leader does this; other workers return 0.
    """
    if not launch.current_workers().is_leader:
        return 0
    cache.begin(contents)
    for name in cache.discard_damaged():
        (progress or NoProgress()).report(f"{cache.path / name} is damaged and will be computed again")
    return sum(len(rows) for part in PARTS for _, rows in cache.missing(part))
