"""Early checks of a model spec, before any records are read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from sfumato._checks import SfumatoError
from sfumato.models import custom
from sfumato.models.name import parse
from sfumato.models.networks import zoo
from sfumato.models.registry import OF_TEXTS, build_untrained, create_for_texts, refuse_of_texts
from sfumato.models.weights.head import NAME, create_head

USUAL_SIDES = (32, 64, 224, 8)
"""Image sides in pixels for which a network is built on trial if the size is unknown."""


def check(
    spelling: str,
    *,
    records: str | None = None,
    channels: int | None = None,
    size: int | None = None,
    pretrained: str | None = None,
) -> None:
    """Refuses a spec for which no model can be built, before any records are read.

    A small network is built on the meta device, for images of a common size if the size is unknown. A timm or custom
    model is only looked up.

    Args:
        spelling: a model spec for `create` or `create_for_texts`, or a head (`create_head`).
        records: "images" or "texts"; None if not known before the source is read.
        channels, size: channels and size of the images, if known.
        pretrained: as for `create`; a path is not opened.

    Raises:
        SfumatoError: as for `create`.
    """
    base, options = parse(spelling)
    if pretrained == "timm" and records != "texts":
        zoo.require(base)
    if base == NAME and records is None:
        create_head(spelling, classes=2, width=1)
    elif base.startswith(zoo.PREFIX):
        zoo.check(base, options)
    elif custom.is_own(spelling):
        custom.function_of(base)
    elif records == "texts" or (base in OF_TEXTS and records is None):
        with torch.random.fork_rng(devices=[]):
            create_for_texts(spelling, classes=2, vocabulary=16, length=4)
    else:
        refuse_of_texts(spelling, base)
        _try(base, options, channels=channels, size=size)


def _try(name: str, options: Mapping[str, Any], *, channels: int | None, size: int | None) -> None:
    """Refuses a network that cannot be built for any of these image sizes and channel counts."""
    sides, channel_counts = USUAL_SIDES if size is None else (size,), (1, 3) if channels is None else (channels,)
    refused: SfumatoError | None = None
    for side, count in itertools.product(sides, channel_counts):
        try:
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                build_untrained(name, options, classes=2, channels=count, size=(side, side))
        except SfumatoError as error:
            refused = refused or error
        except (NotImplementedError, RuntimeError):  # not supported on the meta device; checked later with the data
            return
        else:
            return
    if refused is not None:
        raise refused
