"""The network of TensorFlow's tutorial on CIFAR-10, in the form that Abadi et al. 2016 (arXiv 1607.00133) trained
privately, and that others compare with since."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.models.normalisation.norms import Norms

CROP = 24


class TFTutorial(nn.Module):
    """Two convolutions of 5 x 5 with 64 channels, ReLU and max-pooling, and two hidden layers of 384 units.

    Of larger images the middle 24 x 24 pixels are cut out. Pooling over 2 x 2 gives the 12 x 12 x 64 and 6 x 6 x 64 of
    Abadi et al. 2016, section 5, who have two layers of 384 units, where the tutorial has 384 and 192, and do not
    mention its local response normalisation. 1,144,138 parameters on coloured images with ten classes.

    Args:
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) of the images.
        norm, norm_last: as `Norms`.
    """

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        size: tuple[int, int],
        norm: str = "none",
        norm_last: bool | int = False,
    ):
        super().__init__()
        norms = Norms(norm, norm_last)
        height, width = (min(side, CROP) // 4 for side in size)
        self.conv1 = nn.Conv2d(channels, 64, 5, padding=2)
        self.norm1 = norms.after_convolution(64)
        self.conv2 = nn.Conv2d(64, 64, 5, padding=2)
        self.norm2 = norms.after_convolution(64)
        self.pool = nn.MaxPool2d(2)
        self.hidden1 = nn.Linear(64 * height * width, 384)
        self.norm3 = norms.after_linear(384)
        self.hidden2 = nn.Linear(384, 384)
        self.norm4 = norms.after_linear(384)
        self.head = nn.Linear(384, classes)
        self.norm_of_logits = norms.of_logits(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) to logits (N, classes)."""
        features = self.pool(torch.relu(self.norm1(self.conv1(middle(images)))))
        features = self.pool(torch.relu(self.norm2(self.conv2(features)))).flatten(1)
        features = torch.relu(self.norm4(self.hidden2(torch.relu(self.norm3(self.hidden1(features))))))
        return self.norm_of_logits(self.head(features))


def middle(images: Tensor) -> Tensor:
    """The middle 24 x 24 of images (N, C, H, W); a side that is shorter stays whole.

    >>> middle(torch.zeros(1, 3, 32, 20)).shape
    torch.Size([1, 3, 24, 20])
    """
    top, left = (max(0, side - CROP) // 2 for side in images.shape[2:])
    return images[:, :, top : top + CROP, left : left + CROP]
