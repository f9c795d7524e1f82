"""Residual networks for small images, and VGG networks.

Wide-ResNets are those of De et al. 2022 for training from scratch under differential privacy. There are two: the
network of appendix C.1, and the network of their released code (google-deepmind/jax_privacy, 2022,
`image_classification/models/cifar.py`), to which their accuracies refer. Both have the pre-activation structure of
Zagoruyko and Komodakis 2016 (arXiv 1605.07146): three groups of (depth - 4) / 6 blocks with 16k, 32k and 64k channels,
group norm with 16 groups in place of batch norm, weight standardisation in every convolution, no dropout. Norm and
standardisation can be disabled, as in the paper's ablation (table 2).

`vgg` (Simonyan and Zisserman 2014) and `resnet-18` (He et al. 2016) are those of Davody et al. 2020, table 1. Their
`vgg16`, for which no layout is printed, has normalisation layers "after all except the last trainable layer", and so
cannot have the three linear layers of the original: here it has the 13 convolutions of its configuration D and one
linear layer, as is usual for CIFAR-10.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of, positive_integer, true_or_false
from sfumato.models.norms import FanInConv2d, GainedWSConv2d, Norms, WSConv2d

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


class WideBlock(nn.Module):
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
        released = one_of(FORMS, form=form) == "de2022"
        one_of(NORMS, norm=norm)
        true_or_false(standardise=standardise)
        one_of(("1", "2", "4", "8", "16"), groups=f"{positive_integer(groups=groups)}")
        self.layers = layers = Layers(norm=norm, standardise=standardise, groups=groups, released=released)
        positive_integer(width=width)
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
                blocks.append(WideBlock(current, base * width, stride, layers, first=index == 0))
                current = base * width
        self.blocks = nn.Sequential(*blocks)
        self.norm = layers.normalisation(current)
        self.head = nn.Linear(current, classes)
        nn.init.normal_(self.head.weight, std=current**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        features = self.layers.activated(self.norm, self.blocks(self.stem(images)))
        return self.head(features.mean((2, 3)))


WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))), with a normalised 1 x 1 projection of x where the shape changes.

    Input (N, C, H, W), output (N, D, H / stride, W / stride).
    """

    def __init__(self, channels: int, width: int, stride: int, norms: Norms, last: Norms):
        super().__init__()
        bias = norms.kind == "none"  # a normalisation has a shift itself
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=bias)
        self.norm1 = norms.after_convolution(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.norm2 = last.after_convolution(width)
        self.projection = nn.Sequential()
        if stride != 1 or channels != width:
            convolution = nn.Conv2d(channels, width, 1, stride=stride, bias=bias)
            self.projection = nn.Sequential(convolution, norms.after_convolution(width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, D, H / stride, W / stride)."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.projection(x))


class ResNet18(nn.Module):
    """A stem and four groups of two blocks: 11,173,962 parameters on colour images with ten classes.

    Args:
        size: height and width (H, W) of the images; not used, but the network fails on images that are too small.
        norm, norm_last, mod: as for `NormSettings`. Private training refuses batch norm, the paper's choice.
    """

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        size: tuple[int, int],
        norm: str = "batch",
        norm_last: bool | int = False,
        mod: bool | int = False,
    ):
        super().__init__()
        norms = Norms(norm, norm_last, mod)
        self.stem = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=norms.kind == "none")
        self.norm = norms.after_convolution(WIDTHS[0])
        blocks, current = [], WIDTHS[0]
        for width in WIDTHS:
            last = norms.before_classifier if width == WIDTHS[-1] else norms
            blocks.append(Block(current, width, 1 if width == current else 2, norms, norms))
            blocks.append(Block(width, width, 1, norms, last))
            current = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(current, classes)
        self.norm_of_logits = norms.for_logits(classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(F.relu(self.norm(self.stem(images))))
        return self.norm_of_logits(self.head(features.mean((2, 3))))


LIGHT = ((64, 64), (128, 128), (256, 256, 256, 256))
CONFIGURATION_D = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG(nn.Module):
    """3 x 3 convolutions with ReLU, max-pooling after each group, average pooling, and linear layers.

    Args:
        groups: channels of the convolutions in each group.
        hidden: units of the linear layers before the last.
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) of the images; not used, but the network fails on images that are too small.
        norm, norm_last, mod: as for `NormSettings`.
    """

    def __init__(
        self,
        groups: tuple[tuple[int, ...], ...],
        hidden: tuple[int, ...],
        *,
        classes: int,
        channels: int,
        size: tuple[int, int],
        norm: str = "batch",
        norm_last: bool | int = False,
        mod: bool | int = False,
    ):
        super().__init__()
        norms = Norms(norm, norm_last, mod)
        widths = [width for group in groups for width in group]
        last_of_group = {sum(map(len, groups[:number])) for number in range(1, len(groups) + 1)}
        layers: list[nn.Module] = []
        for number, (before, width) in enumerate(zip((channels, *widths), widths, strict=False), 1):
            kind = norms.before_classifier if number == len(widths) and not hidden else norms
            layers += [nn.Conv2d(before, width, 3, padding=1), kind.after_convolution(width), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if number in last_of_group else []
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        for number, (before, width) in enumerate(zip((widths[-1], *hidden), hidden, strict=False), 1):
            kind = norms.before_classifier if number == len(hidden) else norms
            layers += [nn.Linear(before, width), kind.after_linear(width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear((*widths, *hidden)[-1], classes)
        self.norm_of_logits = norms.for_logits(classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm_of_logits(self.head(self.layers(images)))


light = partial(VGG, LIGHT, (512,), norm="none")
vgg16 = partial(VGG, CONFIGURATION_D, ())
