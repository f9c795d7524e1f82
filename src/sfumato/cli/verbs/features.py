"""sfumato features: computes the features of all images under a fixed public backbone, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato import _devices
from sfumato._checks import SfumatoError, positive_integer
from sfumato._devices import is_follower
from sfumato.cli.options.choices import SharedWork, SourceChoices, source_spec
from sfumato.cli.options.run_options import DeviceOptions, EndsWithJson
from sfumato.cli.output import console
from sfumato.cli.output.console import Facts, Note
from sfumato.cli.parser import argument, option
from sfumato.data.paths import stem_of
from sfumato.observers.progress import open_with_progress

if TYPE_CHECKING:
    from sfumato.data import Cache
    from sfumato.observers.progress import Progress
    from sfumato.training.caching import StoredViews


@dataclass(frozen=True, kw_only=True)
class Features(SharedWork, EndsWithJson, DeviceOptions, SourceChoices):
    """Compute the features of a source once, with a fixed public backbone, into a cache on disk.

    A cache is a source: sfumato train features:PATH trains a private classifier on it. Repeat the command to resume an
    interrupted one. For instance: sfumato features folder:photos --backbone timm:vit_base_patch16_224
    """

    what: str = argument("SOURCE")
    """The images, spelled as for sfumato train, such as folder:PATH."""
    backbone: str
    """Public network: timm:NAME, torchvision:NAME, or a run of sfumato pretrain."""
    weights: str | None = option("PATH")
    """Safetensors file with the backbone's weights. (default: downloaded by its library)"""
    model: str | None = option("package:function")
    """The function that builds a model of your own (package:function)."""
    resolution: int | None = option("PIXELS", "what it was trained with")
    """Input size of the backbone in pixels."""
    resize: int | None = option("PIXELS", "what it was trained with")
    """Size to which images are resized before they are cropped to the resolution."""
    crop: str = option("central|inception", "central", default="central")
    """How training images are cropped: central, or at random as in Inception."""
    crop_area: float | None = option("SHARE", "0.08")
    """For random crops: smallest share of the image's area."""
    views: int | None = None
    """K, the versions of each training image: random crops, or the image and its mirror image. (default: 1; 2 for
    central crops with --flip True)"""
    flip: bool | None = option("True|False", "False")
    """Whether views are mirrored."""
    whiten_by: str | None = option("SOURCE")
    """Public source of images, by the second moment of whose features the features are whitened."""
    dtype: str = option("float32|float16|bfloat16", "float32", default="float32")
    """Type in which features are stored."""
    batch: int | None = option("NUMBER", "by rule")
    """Number of images at a time."""

    examples: int | None = option("N", "counted in the data")
    """N, declared. Otherwise it is counted, and statements say that it was read from the data."""
    private: bool = False
    """The data are private, although the source is a public one."""
    output: str | None = option("PATH")
    """Directory of the cache. (default: caches/ and the source's name)"""

    def run(self) -> None:
        """Compute the missing features."""
        from sfumato.data import refuse_absent

        refuse_absent(self.what)
        from sfumato.data import Cache

        if self.what.startswith("features:"):
            raise SfumatoError(f"{self.what} already holds features", "give a source of images")
        from sfumato.training import caching

        flip = bool(self.flip)
        views = caching.default_views(self.crop, flip=flip) if self.views is None else self.views
        showing = caching.StoredViews(crop=self.crop, crop_area=self.crop_area, views=views, flip=flip)
        positive_integer(optional=True, batch=self.batch)
        device = _devices.select(self.device)
        self.set_threads()
        cache = Cache(self.output or f"caches/{stem_of(self.what)}")
        with self.progress_bars() as progress:
            missing, together, seconds = self._computed(cache, showing, device, progress)
        if not is_follower():
            self._report(cache, missing, together, seconds)

    def _computed(self, cache: Cache, showing: StoredViews, device: str, progress: Progress) -> tuple[int, bool, float]:
        """Fill the cache. Returns the number of missing records, whether images were batched, and the seconds taken."""
        import time

        from sfumato import models
        from sfumato.randomness import owner_key
        from sfumato.runs.checkpoint import stored_materials
        from sfumato.training import caching, computing
        from sfumato.training.preparation.building import origins_of_backbone

        sides = {"resolution": self.resolution, "resize": self.resize}
        backbone, expects = models.load_backbone(self.backbone, weights=self.weights, model=self.model, **sides)
        declared = caching.declarations_from(backbone, expects, self.what)
        source = open_with_progress(source_spec(self, self.what, **declared), progress)
        began = time.monotonic()
        backbone, seen = caching.whiten(
            source,
            backbone,
            expects,
            self.whiten_by,
            origins=origins_of_backbone(self.backbone, self.weights),
            trained_on=stored_materials(self.weights or self.backbone),
            device=device,
            progress=progress,
        )
        contents = caching.contents_for(source, backbone, expects, showing, dtype=self.dtype, **seen)
        missing = caching.begin(cache, contents, progress)
        keywords = {"owner_key": owner_key(), "device": device, "batch": self.batch, "progress": progress}
        together = computing.compute(cache, contents, source, backbone, **keywords)
        return missing, together, time.monotonic() - began

    def _report(self, cache: Cache, computed: int, together: bool, seconds: float) -> None:
        contents = cache.contents
        data = {
            "cache": str(cache.path),
            "train": contents.counts["train"],
            "test": contents.counts["test"],
            "width": contents.width,
            "whiten_by": self.whiten_by,
            "views": contents.views,
            "crop": contents.crop["crop"],
            "dtype": contents.dtype,
            "bytes": sum(path.stat().st_size for path in cache.path.iterdir()),
            "computed": computed,
            "seconds": round(seconds, 3),
            "one_by_one": not together,
        }
        alone = Note("note: the backbone ran on one image at a time, because images of a batch might affect each other")
        secret = Note("note: features reveal much about their images; keep the cache as private as the images")
        console.show(
            data,
            Facts(data),
            None if together else alone,
            None if contents.source["public"] else secret,
            Note(f"next: sfumato train features:{cache.path}"),
            json=self.json,
        )
