"""LeNet-300-100 and LeNet-5 (LeCun et al. 1998), the second with the bounded activations that suit private training
(Papernot et al. 2021), and the wider LeNet that federated learning trains on handwriting (McMahan et al. 2017, Xu et
al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of
from sfumato.models.normalisation.norms import Norms

_SMALLEST_SIDE = 12
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


class LeNet300100(nn.Module):
    """Hidden layers of 300 and 100 units with ReLU: 266,610 parameters on 28 x 28 grey images.

    Args:
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) of the images in pixels.
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
        self.hidden1 = nn.Linear(channels * size[0] * size[1], 300)
        self.norm1 = norms.after_linear(300)
        self.hidden2 = nn.Linear(300, 100)
        self.norm2 = norms.after_linear(100)
        self.head = nn.Linear(100, classes)
        self.norm_of_logits = norms.of_logits(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) to logits (N, classes)."""
        features = torch.relu(self.norm1(self.hidden1(images.flatten(1))))
        features = torch.relu(self.norm2(self.hidden2(features)))
        return self.norm_of_logits(self.head(features))


class LeNet5(nn.Module):
    """Two convolutions of 5 x 5 with pooling, then three linear layers: 61,706 parameters on 28 x 28 grey images.

    The activation is tanh: bounded activations keep per-example gradients small, so that less is lost to clipping
    (Papernot et al. 2021, arXiv 2007.14191). The last layer starts at zero, so that the first steps are those of a
    linear model on the features, whose gradients agree between examples; but not where its output is normalised, since
    there is nothing to divide by at zero.

    Args:
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) of the images, at least 12 pixels each.
        norm, norm_last: as `Norms`.
        activation: "tanh" or "relu".
    """

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        size: tuple[int, int],
        norm: str = "none",
        norm_last: bool | int = False,
        activation: str = "tanh",
    ):
        super().__init__()
        if min(size) < _SMALLEST_SIDE:
            raise SfumatoError(
                f"lenet5 needs images of at least {_SMALLEST_SIDE} pixels a side, got {size[0]} x {size[1]}",
                "choose the model cnn, or larger images",
            )
        norms = Norms(norm, norm_last)
        self._activation = ACTIVATIONS[one_of("activation", activation, ACTIVATIONS)]
        # 28 x 28 images are padded to the 32 x 32 of the original network; larger ones need no frame.
        padding = 2 if min(size) < 32 else 0
        height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in size)
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=padding)
        self.norm1 = norms.after_convolution(6)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.norm2 = norms.after_convolution(16)
        self.pool = nn.AvgPool2d(2)
        self.hidden1 = nn.Linear(16 * height * width, 120)
        self.norm3 = norms.after_linear(120)
        self.hidden2 = nn.Linear(120, 84)
        self.norm4 = norms.after_linear(84)
        self.head = nn.Linear(84, classes)
        self.norm_of_logits = norms.of_logits(classes)
        if not norms.last:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) to logits (N, classes)."""
        act = self._activation
        features = self.pool(act(self.norm1(self.conv1(images))))
        features = self.pool(act(self.norm2(self.conv2(features)))).flatten(1)
        features = act(self.norm4(self.hidden2(act(self.norm3(self.hidden1(features))))))
        return self.norm_of_logits(self.head(features))


class LeNet(nn.Module):
    """Two padded convolutions of 5 x 5 with 32 and 64 channels, ReLU and max-pooling, and one linear layer.

    With 128 outputs on 28 x 28 grey images it has 453,632 parameters, as the network of Xu et al. 2022 (arXiv
    2211.10844) for EMNIST. Weights start from Glorot's uniform distribution, biases at zero.

    Args:
        classes: number of outputs: classes, or the numbers of an embedding.
        channels: colour channels C.
        size: height and width (H, W) of the images.
    """

    def __init__(self, *, classes: int, channels: int, size: tuple[int, int]):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        # A last odd row or column is pooled by itself.
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        height, width = (-(-side // 4) for side in size)
        self.head = nn.Linear(64 * height * width, classes)
        for name, parameter in self.named_parameters():
            nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.xavier_uniform_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) to (N, classes)."""
        features = self.pool(torch.relu(self.conv1(images)))
        features = self.pool(torch.relu(self.conv2(features)))
        return self.head(features.flatten(1))
