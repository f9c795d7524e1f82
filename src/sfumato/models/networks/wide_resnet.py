"""The Wide-ResNets of De et al. 2022 for training from scratch under differential privacy.

There are two: the network of appendix C.1, and the network of their released code (google-deepmind/jax_privacy, 2022,
`image_classification/models/cifar.py`), to which their accuracies refer. Both have the pre-activation structure of
Zagoruyko and Komodakis 2016 (arXiv 1605.07146): three groups of (depth - 4) / 6 blocks with 16k, 32k and 64k channels,
group norm with 16 groups in place of batch norm, weight standardisation in every convolution, no dropout. Norm and
standardisation can be disabled, as in the paper's ablation (table 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.models.normalisation.norms import FanInConv2d, GainedWSConv2d, WSConv2d

GROUPS = 16
NORMS = ("group", "none")
FORMS = ("c1", "de2022")
"""The network of appendix C.1, and the released one."""


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The layers of a network: weight standardisation or not, group norm or none, and which of the two forms."""

    norm: str = "group"
    standardise: bool = True
    groups: int = GROUPS
    released: bool = False

    def convolution(self, channels: int, width: int, kernel: int, *, stride: int = 1) -> nn.Conv2d:
        """A convolution that preserves the size up to the stride. In the released form `padded` pads for stride 2."""
        standardised = GainedWSConv2d if self.released else WSConv2d
        padding = 0 if self.released and stride > 1 else kernel // 2
        return (standardised if self.standardise else FanInConv2d)(
            channels, width, kernel, stride=stride, padding=padding
        )

    def normalisation(self, channels: int) -> nn.Module:
        """Group norm or identity."""
        return nn.GroupNorm(self.groups, channels) if self.norm == "group" else nn.Identity()

    def activated(self, norm: nn.Module, x: Tensor) -> Tensor:
        """act(norm(x)), or norm(act(x)) in the released form. The shape is that of x."""
        return norm(F.relu(x)) if self.released else F.relu(norm(x))

    def padded(self, x: Tensor, stride: int) -> Tensor:
        """Pads the input of a 3 x 3 convolution of stride 2 in the released form.

        This is the "same" padding of the authors' library, which pads an even length only at the end.
        """
        if not self.released or stride == 1:
            return x
        return F.pad(x, (x.shape[3] % 2, 1, x.shape[2] % 2, 1))


class Block(nn.Module):
    """x + conv(act(norm(conv(act(norm(x)))))), with a 1 x 1 projection of act(norm(x)) where the shape changes.

    In the released form every act(norm(x)) is norm(act(x)), and the first block of each group always has a projection,
    with a separate norm. Input (N, C, H, W), output (N, D, H / stride, W / stride).
    """

    def __init__(self, channels: int, width: int, stride: int, layers: Layers, *, first: bool):
        super().__init__()
        self.layers, self.stride = layers, stride
        self.norm1 = layers.normalisation(channels)
        self.conv1 = layers.convolution(channels, width, 3, stride=stride)
        self.norm2 = layers.normalisation(width)
        self.conv2 = layers.convolution(width, width, 3)
        projects = first if layers.released else stride != 1 or channels != width
        self.projection = layers.convolution(channels, width, 1, stride=stride) if projects else None
        self.norm_around = layers.normalisation(channels) if projects and layers.released else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, D, H / stride, W / stride)."""
        layers, inner = self.layers, self.layers.activated(self.norm1, x)
        skip = x
        if self.projection is not None:
            skip = self.projection(inner if self.norm_around is None else layers.activated(self.norm_around, x))
        branch = self.conv1(layers.padded(inner, self.stride))
        return skip + self.conv2(layers.activated(self.norm2, branch))


class WideResNet(nn.Module):
    """Wide-ResNet of the given depth and width, from images (N, C, H, W) to logits (N, classes).

    Args:
        depth: 6n + 4 for a whole n of at least 1: 10, 16, 22, 28, 40, ...
        width: factor k on the channels 16, 32, 64.
        classes: number of classes.
        channels: colour channels C of the images.
        form: "c1" for the network of appendix C.1 of De et al. 2022, "de2022" for the released one: norm after the
            activation, a separate norm and activation before each projection, a projection in the first block of every
            group, and a learned gain per output channel of a standardised convolution.
        norm: "group" for group norm on the residual branch, "none" for no normalisation layers.
        standardise: whether convolutions standardise their weights.
        groups: number of groups of group norm, a divisor of 16. With width 1 and the paper's 16 groups, the first
            layers normalise each channel separately; 4 groups have as many channels each as 16 groups at width 4.

    Raises:
        SfumatoError: a depth that is not 6n + 4, a count below 1, an unknown form or norm, or groups that do not
            divide 16.
    """

    def __init__(
        self,
        *,
        depth: int,
        width: int,
        classes: int,
        channels: int,
        form: str = "c1",
        norm: str = "group",
        standardise: bool = True,
        groups: int = GROUPS,
    ):
        super().__init__()
        released = one_of("form", form, FORMS) == "de2022"
        one_of("norm", norm, NORMS)
        if not isinstance(standardise, bool):
            raise SfumatoError(f"standardise must be True or False, got {standardise!r}", "give True or False")
        if GROUPS % positive_integer("groups", groups):
            raise SfumatoError(f"groups must divide {GROUPS}, got {groups}", "give 1, 2, 4, 8 or 16")
        self.layers = layers = Layers(norm=norm, standardise=standardise, groups=groups, released=released)
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
                stride = 2 if group > 0 and index == 0 else 1
                blocks.append(Block(current, base * width, stride, layers, first=index == 0))
                current = base * width
        self.blocks = nn.Sequential(*blocks)
        self.norm = layers.normalisation(current)
        self.head = nn.Linear(current, classes)
        nn.init.normal_(self.head.weight, std=current**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Maps float images (N, C, H, W) to logits (N, classes)."""
        features = self.layers.activated(self.norm, self.blocks(self.stem(images)))
        return self.head(features.mean((2, 3)))
