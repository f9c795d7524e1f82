"""VGG networks for small images (Simonyan and Zisserman 2014), with or without normalisation after each layer.

`vgg` is the network of Davody et al. 2020, table 1. They print no layout for their `vgg16`. It has normalisation layers
"after all except the last trainable layer", and so cannot have the three linear layers of the original. Here it has the
13 convolutions of configuration D and one linear layer, as is usual for CIFAR-10.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from sfumato.models.normalisation.norms import Norms

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
        norm, norm_last, mod: as for `Norms`.
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
        self.norm_of_logits = norms.of_logits(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Maps float images (N, C, H, W) to logits (N, classes)."""
        return self.norm_of_logits(self.head(self.layers(images)))


light = partial(VGG, LIGHT, (512,), norm="none")
vgg16 = partial(VGG, CONFIGURATION_D, ())
