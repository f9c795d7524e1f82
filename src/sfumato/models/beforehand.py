"""What can be refused of a model's spelling before any records are read."""

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
"""Pixels: for images of these sizes a network is built on trial where their size is not known."""


def check(
    spelling: str,
    *,
    records: str | None = None,
    channels: int | None = None,
    size: int | None = None,
    pretrained: str | None = None,
) -> None:
    """Refuse a spelling of which no model could be built for these records, before any of them are read.

    Args:
        spelling: as `create` and `create_for_texts` take it, or a head (`create_head`).
        records: "images" or "texts"; None where the source does not say beforehand.
        channels, size: of the images, where they are known.
        pretrained: as `create`; a path is not looked at.

    Raises:
        SfumatoError: as `create`. A small network is built on the meta device, for images of some usual size where
            none is known; one of timm, or of the caller's own, is only looked up.
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
    """Refuse a network that can be built for none of these images."""
    sides, colours = USUAL_SIDES if size is None else (size,), (1, 3) if channels is None else (channels,)
    refused: SfumatoError | None = None
    for side, count in itertools.product(sides, colours):
        try:
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                build_untrained(name, options, classes=2, channels=count, size=(side, side))
        except SfumatoError as error:
            refused = refused or error
        except (NotImplementedError, RuntimeError):  # what the meta device cannot do is found out with the data
            return
        else:
            return
    if refused is not None:
        raise refused
