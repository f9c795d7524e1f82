"""ResNet-18 for small images (He et al. 2016; Davody et al. 2020, table 1): a 3 x 3 stem without pooling."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.models.normalisation.norms import Norms

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
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) of the images; not used, but the network fails on images that are too small.
        norm, norm_last, mod: as for `Norms`. Private training refuses batch norm, the paper's choice.
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
        self.norm_of_logits = norms.of_logits(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Maps float images (N, C, H, W) to logits (N, classes)."""
        features = self.blocks(F.relu(self.norm(self.stem(images))))
        return self.norm_of_logits(self.head(features.mean((2, 3))))
