"""timm's MobileNetV2 and ResNet-50 with group norm in place of batch norm, which would couple examples.

The numbers of groups are those of Xu et al. 2022 (arXiv 2211.10844): 2 for MobileNetV2 and 32 for ResNet-50. timm's
pre-trained weights can be loaded if they were trained with group norm, as for `resnet50_gn`.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from sfumato.models.networks import zoo

MOBILENET_GROUPS, RESNET_GROUPS = 2, 32


def mobilenet_v2(*, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    """MobileNetV2 (Sandler et al. 2018): 2,387,840 parameters with 128 outputs on colour images.

    Args:
        classes: number of outputs: classes, or embedding dimensions.
        channels: colour channels C.
        size: height and width (H, W) of the images.
    """
    from timm.layers.norm_act import GroupNormAct

    norm = partial(GroupNormAct, num_groups=MOBILENET_GROUPS)
    return zoo.create("timm:mobilenetv2_100", {"norm_layer": norm}, classes=classes, channels=channels, size=size)


def resnet_50(*, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    """ResNet-50 (He et al. 2016): 23,770,304 parameters with 128 outputs on colour images.

    The arguments are those of `mobilenet_v2`.
    """
    from timm.layers.norm import GroupNorm

    norm = partial(GroupNorm, num_groups=RESNET_GROUPS)
    return zoo.create("timm:resnet50_gn", {"norm_layer": norm}, classes=classes, channels=channels, size=size)
