"""timm models, named `timm:NAME`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.models.networks.nf_resnet import set_skipinit
from sfumato.models.weights.pretrained import zero_classifier

PREFIX = "timm:"
_DECIDED = frozenset({"cache_dir", "checkpoint_path", "img_size", "in_chans", "num_classes", "weights"})
"""Options that users cannot set, like all `pretrained...` options: a statement would not cover what they bring."""


def check(name: str, options: Mapping[str, Any]) -> None:
    """Refuses a name that timm does not have, and options that users cannot set, before the model is built."""
    import timm

    short = name.removeprefix(PREFIX)
    if not timm.is_model(short):
        near = difflib.get_close_matches(short, timm.list_models(), n=3)
        raise SfumatoError(
            f"model {name!r}: timm {timm.__version__} has no model of that name",
            f"did you mean {', '.join(near)}" if near else "timm.list_models() lists its models",
        )
    refused = sorted(option for option in options if option in _DECIDED or option.startswith("pretrained"))
    if refused:
        listing = ", ".join(f"{option}={options[option]}" for option in refused)
        raise SfumatoError(
            f"model {name!r} cannot be given {listing}",
            "give weights by `pretrained` (`weights` for a backbone); classes, channels and size come from the source",
        )


def require(name: str) -> None:
    """Refuses another model than timm's for timm's pre-trained weights."""
    if not name.startswith(PREFIX):
        raise SfumatoError(
            f"pretrained 'timm' needs a timm model, got model {name!r}",
            "choose timm:NAME, or give the path of a safetensors file",
        )


def create(
    name: str,
    options: Mapping[str, Any],
    *,
    classes: int | None = None,
    channels: int = 3,
    size: tuple[int, int] | None = None,
    downloaded: bool = False,
) -> nn.Module:
    """Creates the model `timm:NAME`. `size` is passed on if the model depends on it (as ViTs do).

    Dropout and stochastic depth are off unless enabled by `options` (De et al. 2022, appendix C.1). The option
    `skipinit` sets the initial gains of a normalizer-free network. All other options go to `timm.create_model`; those
    that set weights, classes, channels or a size are refused.

    Args:
        classes: number of classes; None for the classifier of the downloaded weights.
        size: height and width (H, W); None for the model's default.
        downloaded: whether to load the weights that timm downloads; otherwise the model is untrained.

    Raises:
        SfumatoError: timm has no such model, cannot build it for this size or fetch its weights, or an option is
            refused.
    """
    import timm

    check(name, options)
    short = name.removeprefix(PREFIX)
    settings: dict[str, Any] = {"pretrained": downloaded, "in_chans": channels, **options}
    if classes is not None:
        settings["num_classes"] = classes
    skipinit = settings.pop("skipinit", None)
    sized: dict[str, Any] = {} if size is None else {"img_size": size}
    try:
        try:
            model = timm.create_model(short, **settings, **sized)
        except TypeError as error:
            # Networks for any image size, such as most convolutional ones, have no `img_size`.
            if "img_size" not in str(error):
                raise
            model = timm.create_model(short, **settings)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = (
            "check the network, or give a safetensors file of its weights (`weights` of a backbone, else `pretrained`)"
            if downloaded
            else "choose another model, option or image size"
        )
        images = f" for {channels} x {size[0]} x {size[1]} images" if size else ""
        raise SfumatoError(f"model {name!r} cannot be created{images}: {reason}", remedy) from error
    if skipinit is not None:
        set_skipinit(model, skipinit, name=name)
    return model


def create_downloaded(
    name: str, options: Mapping[str, Any], *, classes: int, channels: int, size: tuple[int, int], head: str = "new"
) -> nn.Module:
    """Creates the model `timm:NAME` with downloaded weights.

    Args:
        head: "new" for a classifier of zeros, "pretrained" for the stored one.

    Raises:
        SfumatoError: `name` is not a timm model, it has no weights, they cannot be fetched, or their head has another
            number of classes.
    """
    require(name)
    model = create(name, options, classes=classes, channels=channels, size=size, downloaded=True)
    stored = getattr(model, "pretrained_cfg", {}).get("num_classes")
    if head == "new":
        zero_classifier(model)
    elif stored != classes:
        raise SfumatoError(f"the weights of {name!r} have a head for {stored} classes, not {classes}", "give head new")
    return model
