"""Wide-ResNet for training from random initialization under differential privacy (De et al. 2022, appendix C.1).

Pre-activation structure of Zagoruyko and Komodakis 2016 (arXiv 1605.07146): three groups of (depth - 4) / 6 blocks with
16k, 32k and 64k channels. Batch norm is replaced by group norm of 16 groups on the residual branch; every convolution
has its weight standardised; no dropout. Both can be left out, as in the paper's ablation (table 2). The norm can follow
the activation in place of going before it, as Sander et al. 2023 (arXiv 2210.03403) found to do better.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.models.networks.standardise import FanInConv2d, WSConv2d

GROUPS = 16
NORMS = ("group", "none")
ORDERS = ("norm-first", "activation-first")


@dataclass(frozen=True, kw_only=True)
class Layers:
    """What a network is built from: convolutions with weight standardisation or without, group norm or none, and which
    comes first before a convolution, norm or activation.
    """

    norm: str = "group"
    standardise: bool = True
    groups: int = GROUPS
    order: str = "norm-first"

    def convolution(self, channels: int, width: int, kernel: int, *, stride: int = 1) -> nn.Conv2d:
        """A convolution that keeps the size, but for the stride."""
        kind = WSConv2d if self.standardise else FanInConv2d
        return kind(channels, width, kernel, stride=stride, padding=kernel // 2)

    def normalisation(self, channels: int) -> nn.Module:
        """Group norm, or nothing."""
        return nn.GroupNorm(self.groups, channels) if self.norm == "group" else nn.Identity()

    def activated(self, norm: nn.Module, x: Tensor) -> Tensor:
        """act(norm(x)), or norm(act(x)): of the shape of x."""
        return F.relu(norm(x)) if self.order == "norm-first" else norm(F.relu(x))


class Block(nn.Module):
    """x + conv(act(norm(conv(act(norm(x)))))), with a 1 x 1 projection of act(norm(x)) where the shape changes.

    Activation first it is x + conv(norm(act(conv(norm(act(x)))))), and the projection still one of act(norm(x)).

    Input (N, C, H, W), output (N, D, H / stride, W / stride).
    """

    def __init__(self, channels: int, width: int, stride: int, layers: Layers):
        super().__init__()
        self.layers = layers
        self.norm1 = layers.normalisation(channels)
        self.conv1 = layers.convolution(channels, width, 3, stride=stride)
        self.norm2 = layers.normalisation(width)
        self.conv2 = layers.convolution(width, width, 3)
        changes = stride != 1 or channels != width
        self.projection = layers.convolution(channels, width, 1, stride=stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, D, H / stride, W / stride)."""
        layers, inner = self.layers, self.layers.activated(self.norm1, x)
        around = x
        if self.projection is not None:
            around = self.projection(inner if layers.order == "norm-first" else F.relu(self.norm1(x)))
        return around + self.conv2(layers.activated(self.norm2, self.conv1(inner)))


class WideResNet(nn.Module):
    """Wide-ResNet of the given depth and width; images (N, C, H, W) to logits (N, classes).

    Args:
        depth: 6n + 4 for a whole n of at least 1: 10, 16, 22, 28, 40, ...
        width: factor k on the channels 16, 32, 64.
        classes: number of classes.
        channels: colour channels C of the images.
        norm: "group" for group norm on the residual branch, "none" for no normalisation layers.
        standardise: whether convolutions standardise their weights.
        groups: of group norm, a divisor of 16. With width 1 and the paper's 16, the first layers normalise each channel
            by itself; 4 keeps as many channels in a group as 16 do with width 4.
        order: "norm-first", or "activation-first" for the norm behind the activation on the residual branches and
            before the classifier, not on the projections (order 3 in the code of Sander et al. 2023). Parameters and
            their names are the same.

    Raises:
        SfumatoError: a depth that is not 6n + 4, a count below 1, an unknown norm or order, another order where there
            is no norm, or groups that do not divide 16.
    """

    def __init__(
        self,
        *,
        depth: int,
        width: int,
        classes: int,
        channels: int,
        norm: str = "group",
        standardise: bool = True,
        groups: int = GROUPS,
        order: str = "norm-first",
    ):
        super().__init__()
        one_of("norm", norm, NORMS)
        if one_of("order", order, ORDERS) != "norm-first" and norm == "none":
            raise SfumatoError(f"order={order} with norm=none, where there is no norm to order", "leave one out")
        if not isinstance(standardise, bool):
            raise SfumatoError(f"standardise must be True or False, got {standardise!r}", "give one of the two")
        if GROUPS % positive_integer("groups", groups):
            raise SfumatoError(f"groups must divide {GROUPS}, got {groups}", "give 1, 2, 4, 8 or 16")
        self.layers = layers = Layers(norm=norm, standardise=standardise, groups=groups, order=order)
        positive_integer("depth", depth)
        positive_integer("width", width)
        if depth < 10 or (depth - 4) % 6:
            raise SfumatoError(
                f"the depth of a Wide-ResNet must be 6n + 4 for a whole n of at least 1, got {depth}",
                "choose 10, 16, 22, 28 or 40, as in wrn-16-4",
            )
        self.stem = layers.convolution(channels, 16, 3)
        blocks, current = [], 16
        for group, base in enumerate((16, 32, 64)):
            for index in range((depth - 4) // 6):
                blocks.append(Block(current, base * width, 2 if group > 0 and index == 0 else 1, layers))
                current = base * width
        self.blocks = nn.Sequential(*blocks)
        self.norm = layers.normalisation(current)
        self.head = nn.Linear(current, classes)
        nn.init.normal_(self.head.weight, std=current**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) to logits (N, classes)."""
        features = self.layers.activated(self.norm, self.blocks(self.stem(images)))
        return self.head(features.mean((2, 3)))
