"""A linear model on the pixels: the smallest thing that learns, and a baseline."""

from __future__ import annotations

from torch import Tensor, nn


class Linear(nn.Module):
    """One linear layer on all C * H * W pixels, starting at zero.

    Args:
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) of the images in pixels.
    """

    def __init__(self, *, classes: int, channels: int, size: tuple[int, int]):
        super().__init__()
        self.head = nn.Linear(channels * size[0] * size[1], classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) to logits (N, classes)."""
        return self.head(images.flatten(1))
