"""Images that come in arrays, to the parts of a source: what the readers of such do alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sfumato.data.classes import renumbered
from sfumato.data.declared import Order, check_size
from sfumato.data.identity.codes import codes_of
from sfumato.data.images.decoding import prepare_array
from sfumato.data.images.levels import Levels
from sfumato.data.parts import Parts, Reading, RecordSets
from sfumato.data.records import Records


def parts_of(
    sides: Mapping[str, Mapping[str, Any]],
    order: Order,
    *,
    names: tuple[str, ...],
    where: str,
    classes: tuple[str, ...] | None = None,
    size_rule: str = "the data set's own",
    **reading: Any,
) -> Parts:
    """Both parts, of images at the declared size; the larger training images are cut out of the arrays as well.

    Args:
        sides: of "train" and "test" the images (N, H, W, C), uint8 or of 16 bits, their labels, and whatever else
            `Records` holds of them.
        names: what the labels are positions in.
        where: what to call the data set in a refusal.
        classes: the class list; None for the declared one, or else `names`.
        size_rule: how the size came about where it was not declared.
        reading: what else is to be said of it, as `Reading` has it.
    """
    declared = order.declared
    height, width, depth = sides["train"]["images"].shape[1:]
    shorter = min(height, width)
    size = declared.pixels.size or check_size(shorter, "declare a size for the images to be brought to")
    channels, levels = declared.pixels.channels or depth, declared.pixels.levels

    def part(images: np.ndarray, labels: np.ndarray, **beside: Any) -> Records:
        shown = _in_eight_bits(images, levels)
        known = labels if labels.ndim == 2 else renumbered(labels, names, declared.labels.classes, where)
        # The first of what is stored: the same under all levels.
        codes = codes_of(order.owner_key, images, shown)
        return Records(images=prepare_array(shown, size=size, channels=channels), labels=known, codes=codes, **beside)

    train, test = (part(**sides[name]) for name in ("train", "test"))
    side = declared.purpose.larger_side(size) if shorter > size else None
    zoomed = None
    if side is not None:
        originals = _in_eight_bits(sides["train"]["images"], levels)
        zoomed = replace(train, images=prepare_array(originals, size=side, channels=channels))
    return Parts(
        records=RecordSets(train=train, test=test, zoomed=zoomed),
        classes=classes or declared.labels.classes or names,
        reading=Reading(
            size_rule="declared" if declared.pixels.size else size_rule,
            cropped_share=1 - shorter / max(height, width),
            **reading,
        ),
    )


def _in_eight_bits(images: np.ndarray, levels: Levels | None) -> np.ndarray:
    if images.dtype == np.uint8 or levels is None:
        return images
    result = np.empty(images.shape, np.uint8)
    for index, image in enumerate(images):
        result[index] = levels.applied(image, f"image {index}")
    return result
