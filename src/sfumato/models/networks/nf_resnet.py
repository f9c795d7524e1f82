"""Normalizer-free ResNets (Brock et al. 2021, arXiv 2101.08692) as in De et al. 2022, appendix C.1."""

from __future__ import annotations

from torch import nn

from sfumato._checks import SfumatoError, number

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 200: (3, 24, 36, 3)}
"""Residual blocks in each of the four stages, by depth."""

GAIN = "skipinit_gain"


def create(depth: int, *, classes: int, channels: int, skipinit: float = 0.0) -> nn.Module:
    """timm's NF-ResNet with a learned gain at the end of every residual branch, and no regulariser.

    Weights are initialised with a Gaussian of variance 1 / fan_in, biases with zero (De et al. 2022, section 3.3).

    Args:
        depth: 50, 101 or 200.
        classes: number of classes.
        channels: colour channels C of the images.
        skipinit: initial gain: 0 in Brock et al. 2021, 1 in De et al. 2022 when training from scratch.
    """
    import timm

    if depth not in BLOCKS:
        raise SfumatoError(
            f"the depth of an NF-ResNet must be one of {', '.join(map(str, BLOCKS))}, got {depth}",
            "choose one of these, as in nf-resnet-50",
        )
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
        nn.init.constant_(gain, number("skipinit", value, remedy="give 0 or 1"))
