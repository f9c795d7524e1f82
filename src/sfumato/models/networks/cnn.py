"""A small convolutional network with group norm, for tiny images and small data sets."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError

_SMALLEST_SIDE = 8


class SmallCNN(nn.Module):
    """Convolutions with group norm and ReLU, pooled to 4 x 4 positions, and a linear head that starts at zero.

    Args:
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) of the images, at least 8 pixels each.
    """

    def __init__(self, *, classes: int, channels: int, size: tuple[int, int]):
        super().__init__()
        if min(size) < _SMALLEST_SIDE:
            raise SfumatoError(
                f"cnn needs images of at least {_SMALLEST_SIDE} pixels a side, got {size[0]} x {size[1]}",
                "choose the model linear, or larger images",
            )
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.norm1 = nn.GroupNorm(8, 32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.norm2 = nn.GroupNorm(8, 64)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.head = nn.Linear(64 * 16, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) to logits (N, classes)."""
        features = F.relu(self.norm1(self.conv1(images)))
        features = F.max_pool2d(features, 2)
        features = F.relu(self.norm2(self.conv2(features)))
        return self.head(self.pool(features).flatten(1))
