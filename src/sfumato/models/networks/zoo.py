"""Models of timm, named `timm:NAME`."""

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
"""Options that the program decides, beside all of `pretrained...`: a statement would not know of what they bring."""


def check(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a name that timm does not have, and options that the program decides, before anything is built."""
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
            "give weights by `pretrained` (of a backbone by `weights`); classes, colours and size are the source's",
        )


def require(name: str) -> None:
    """Refuse a model that is not timm's where its weights are to be timm's."""
    if not name.startswith(PREFIX):
        raise SfumatoError(
            f"pretrained 'timm' needs a model of timm, got model {name!r}",
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
    """The model `timm:NAME`; `size` is passed on where the model depends on it (as ViTs do).

    Dropout and stochastic depth are off unless `options` ask for them (De et al. 2022, appendix C.1). The option
    `skipinit` sets where the gains of a normalizer-free network start; all others go to `timm.create_model`, but for
    those that bring weights, classes, colours or a size of their own, which are refused.

    Args:
        classes: None for the classifier that the model's own weights have.
        size: None for the model's own.
        downloaded: with the weights that timm downloads; otherwise it is untrained.

    Raises:
        SfumatoError: timm has no such model, cannot build it for this size or fetch its weights, or is given an option
            that is refused.
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
            # A network that takes any size, as most convolutional ones do, has no such argument.
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
        raise SfumatoError(f"model {name!r} cannot be made{images}: {reason}", remedy) from error
    if skipinit is not None:
        set_skipinit(model, skipinit, name=name)
    return model


def create_downloaded(
    name: str, options: Mapping[str, Any], *, classes: int, channels: int, size: tuple[int, int], head: str = "new"
) -> nn.Module:
    """The model `timm:NAME` with the weights that timm downloads, and a classifier of zeros, or with `head`
    "pretrained" its own.

    Raises:
        SfumatoError: `name` is no model of timm, it has no weights, they cannot be fetched, or have no such head.
    """
    require(name)
    model = create(name, options, classes=classes, channels=channels, size=size, downloaded=True)
    known = getattr(model, "pretrained_cfg", {}).get("num_classes")
    if head == "new":
        zero_classifier(model)
    elif known != classes:
        raise SfumatoError(f"the weights of {name!r} have a head for {known} classes, not {classes}", "give head new")
    return model
