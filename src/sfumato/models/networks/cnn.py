"""The smallest image models: a convolutional network with group norm, and a linear baseline."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.models.weights.pretrained import zero_classifier


class SmallCNN(nn.Module):
    """Convolutions with group norm and ReLU, pooling to 4 x 4 positions, and a linear head initialised to zero.

    Args:
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) of the images, at least 8 pixels each.
    """

    def __init__(self, *, classes: int, channels: int, size: tuple[int, int]):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.norm1 = nn.GroupNorm(8, 32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.norm2 = nn.GroupNorm(8, 64)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.head = nn.Linear(64 * 16, classes)
        zero_classifier(self)

    def forward(self, images: Tensor) -> Tensor:
        """Maps float images (N, C, H, W) to logits (N, classes)."""
        features = F.relu(self.norm1(self.conv1(images)))
        features = F.max_pool2d(features, 2)
        features = F.relu(self.norm2(self.conv2(features)))
        return self.head(self.pool(features).flatten(1))


class Linear(nn.Module):
    """One linear layer on all C * H * W pixels, initialised to zero.

    Args:
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) of the images in pixels.
    """

    def __init__(self, *, classes: int, channels: int, size: tuple[int, int]):
        super().__init__()
        self.head = nn.Linear(channels * size[0] * size[1], classes)
        zero_classifier(self)

    def forward(self, images: Tensor) -> Tensor:
        """Maps float images (N, C, H, W) to logits (N, classes)."""
        return self.head(images.flatten(1))
