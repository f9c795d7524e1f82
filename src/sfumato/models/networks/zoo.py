"""Models of timm, named `timm:NAME`; and those of timm's making under names of their own.

Normalizer-free ResNets (Brock et al. 2021, arXiv 2101.08692) are in the manner of De et al. 2022, appendix C.1.
MobileNetV2 and ResNet-50 have group norm in place of batch norm, which would couple examples: 2 and 32 groups, as in Xu
et al. 2022 (arXiv 2211.10844). Weights of timm fit where theirs were trained with group norm too, as `resnet50_gn`'s
were.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError, number, one_of

PREFIX = "timm:"
_DECIDED = frozenset({"cache_dir", "checkpoint_path", "img_size", "in_chans", "num_classes", "weights"})
"""Options that users cannot set, like all `pretrained...` options: a statement would not cover what they bring."""


def refuse_unlisted(name: str, short: str, listed: Sequence[str], *, library: str) -> None:
    """Refuses a network whose name a library does not list."""
    if short not in listed:
        near = difflib.get_close_matches(short, listed, n=3)
        raise SfumatoError(
            f"{name!r}: {library} has no model of that name",
            f"did you mean {', '.join(near)}" if near else f"the documentation of {library} lists them",
        )


def check(name: str, options: Mapping[str, Any]) -> None:
    """Refuses a name that timm does not have, and options that users cannot set, before the model is built."""
    import timm

    short = name.removeprefix(PREFIX)
    if not timm.is_model(short):
        refuse_unlisted(name, short, timm.list_models(), library=f"timm {timm.__version__}")
    refused = sorted(option for option in options if option in _DECIDED or option.startswith("pretrained"))
    if refused:
        listing = ", ".join(f"{option}={options[option]}" for option in refused)
        raise SfumatoError(
            f"model {name!r} cannot be given {listing}",
            "give weights by `pretrained` (`weights` for a backbone); classes, channels and size come from the source",
        )


def require_timm(name: str) -> None:
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


BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 200: (3, 24, 36, 3)}
"""Residual blocks in each of the four stages, by depth."""

GAIN = "skipinit_gain"


def create_nf_resnet(depth: int, *, classes: int, channels: int, skipinit: float = 0.0) -> nn.Module:
    """timm's NF-ResNet with a learned gain at the end of every residual branch, and no regulariser.

    Weights are initialised with a Gaussian of variance 1 / fan_in, biases with zero (De et al. 2022, section 3.3).

    Args:
        depth: 50, 101 or 200.
        classes: number of classes.
        channels: colour channels C of the images.
        skipinit: initial gain: 0 in Brock et al. 2021, 1 in De et al. 2022 when training from scratch.
    """
    import timm

    one_of([*map(str, BLOCKS)], depth=f"{depth}", remedy="choose one, as in nf-resnet-50")
    model = timm.create_model(
        "nf_resnet50", depths=BLOCKS[depth], skipinit=True, num_classes=classes, in_chans=channels
    )
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    set_skipinit(model, skipinit, name=f"nf-resnet-{depth}")
    return model


def set_skipinit(model: nn.Module, value: float, *, name: str) -> None:
    """Sets the initial value of every learned gain of a normalizer-free network."""
    gains = [parameter for path, parameter in model.named_parameters() if path.endswith(GAIN)]
    if not gains:
        raise SfumatoError(f"model {name!r} has no gains to set to skipinit={value}", "leave that option out")
    for gain in gains:
        nn.init.constant_(gain, number(skipinit=value, remedy="give 0 or 1"))


MOBILENET_GROUPS, RESNET_GROUPS = 2, 32


def mobilenet_v2(*, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    """MobileNetV2 (Sandler et al. 2018): 2,387,840 parameters with 128 outputs on colour images."""
    from timm.layers.norm_act import GroupNormAct

    norm = partial(GroupNormAct, num_groups=MOBILENET_GROUPS)
    return create("timm:mobilenetv2_100", {"norm_layer": norm}, classes=classes, channels=channels, size=size)


def resnet_50(*, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    """ResNet-50 (He et al. 2016): 23,770,304 parameters with 128 outputs on colour images."""
    from timm.layers.norm import GroupNorm

    norm = partial(GroupNorm, num_groups=RESNET_GROUPS)
    return create("timm:resnet50_gn", {"norm_layer": norm}, classes=classes, channels=channels, size=size)
