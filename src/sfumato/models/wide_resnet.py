"""Wide-ResNet for training from random initialization under differential privacy (De et al. 2022, appendix C.1).

Pre-activation structure of Zagoruyko and Komodakis 2016 (arXiv 1605.07146): three groups of (depth - 4) / 6 blocks with
16k, 32k and 64k channels. Batch norm is replaced by group norm of 16 groups on the residual branch; every convolution
has its weight standardised; no dropout.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.models.standardise import WSConv2d

GROUPS = 16


class Block(nn.Module):
    """x + conv(act(norm(conv(act(norm(x)))))), with a 1 x 1 projection of act(norm(x)) where the shape changes.

    Input (N, C, H, W), output (N, D, H / stride, W / stride).
    """

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv1 = WSConv2d(channels, width, 3, stride=stride, padding=1)
        self.norm2 = nn.GroupNorm(GROUPS, width)
        self.conv2 = WSConv2d(width, width, 3, padding=1)
        changes = stride != 1 or channels != width
        self.projection = WSConv2d(channels, width, 1, stride=stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, D, H / stride, W / stride)."""
        activated = F.relu(self.norm1(x))
        shortcut = x if self.projection is None else self.projection(activated)
        return shortcut + self.conv2(F.relu(self.norm2(self.conv1(activated))))


class WideResNet(nn.Module):
    """Wide-ResNet of the given depth and width; images (N, C, H, W) to logits (N, classes).

    Args:
        depth: 6n + 4 for a whole n of at least 1: 10, 16, 22, 28, 40, ...
        width: factor k on the channels 16, 32, 64.
        classes: number of classes.
        channels: colour channels C of the images.

    Raises:
        SfumatoError: a depth that is not 6n + 4, or a count below 1.
    """

    def __init__(self, *, depth: int, width: int, classes: int, channels: int):
        super().__init__()
        positive_integer("depth", depth)
        positive_integer("width", width)
        if depth < 10 or (depth - 4) % 6:
            raise SfumatoError(
                f"the depth of a Wide-ResNet must be 6n + 4 for a whole n of at least 1, got {depth}",
                "choose 10, 16, 22, 28 or 40, as in wrn-16-4",
            )
        self.stem = WSConv2d(channels, 16, 3, padding=1)
        blocks, current = [], 16
        for group, base in enumerate((16, 32, 64)):
            for index in range((depth - 4) // 6):
                blocks.append(Block(current, base * width, 2 if group > 0 and index == 0 else 1))
                current = base * width
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(GROUPS, current)
        self.head = nn.Linear(current, classes)
        nn.init.normal_(self.head.weight, std=current**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) to logits (N, classes)."""
        features = F.relu(self.norm(self.blocks(self.stem(images))))
        return self.head(features.mean((2, 3)))
