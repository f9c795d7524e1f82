"""LeNets and the network of TensorFlow's CIFAR-10 tutorial.

LeNet-300-100 and LeNet-5 are those of LeCun et al. 1998, the second with bounded activations, which suit private
training (Papernot et al. 2021). The wider LeNet is used for handwriting in federated learning (McMahan et al. 2017, Xu
et al. 2022). The tutorial network has the form of Abadi et al. 2016 (arXiv 1607.00133).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import one_of
from sfumato.models.norms import Norms
from sfumato.models.pretrained import zero_classifier


class SmallCNN(nn.Module):
    """Convolutions with group norm and ReLU, pooling to 4 x 4 positions, and a linear head initialised to zero.

    Args:
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
        features = F.relu(self.norm1(self.conv1(images)))
        features = F.max_pool2d(features, 2)
        features = F.relu(self.norm2(self.conv2(features)))
        return self.head(self.pool(features).flatten(1))


class Linear(nn.Module):
    """One linear layer on all C * H * W pixels, initialised to zero."""

    def __init__(self, *, classes: int, channels: int, size: tuple[int, int]):
        super().__init__()
        self.head = nn.Linear(channels * size[0] * size[1], classes)
        zero_classifier(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


CROP = 24
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


class Layers(nn.Module):
    """Convolutions with pooling, then linear layers. All layers but the last have a normalisation and an activation.

    The submodules are conv1, conv2, ..., hidden1, hidden2, ..., head, and norm1, norm2, ..., norm_of_logits.

    Args:
        convolutions: in the order of execution.
        units: number of inputs of the first linear layer, and of outputs of each linear layer.
        norms: the normalisations.
        activation: applied after each normalisation.
        pool: applied after each convolution.
    """

    def __init__(
        self,
        convolutions: Sequence[nn.Conv2d],
        units: Sequence[int],
        norms: Norms,
        activation: Callable[[Tensor], Tensor] = torch.relu,
        pool: nn.Module | None = None,
    ):
        super().__init__()
        self._convolutions, self._hidden, self._activation = len(convolutions), len(units) - 2, activation
        for number, layer in enumerate(convolutions, 1):
            self.add_module(f"conv{number}", layer)
            self.add_module(f"norm{number}", norms.after_convolution(layer.out_channels))
        self.pool = pool
        for number, (before, width) in enumerate(pairwise(units[:-1]), 1):
            self.add_module(f"hidden{number}", nn.Linear(before, width))
            self.add_module(f"norm{self._convolutions + number}", norms.after_linear(width))
        self.head = nn.Linear(units[-2], units[-1])
        self.norm_of_logits = norms.for_logits(units[-1])

    def forward(self, images: Tensor) -> Tensor:
        features = images
        for number in range(1, self._convolutions + 1):
            features = self.pool(self._activated(f"conv{number}", number, features))  # type: ignore[misc]
        features = features.flatten(1)
        for number in range(1, self._hidden + 1):
            features = self._activated(f"hidden{number}", self._convolutions + number, features)
        return self.norm_of_logits(self.head(features))

    def _activated(self, layer: str, norm: int, features: Tensor) -> Tensor:
        return self._activation(getattr(self, f"norm{norm}")(getattr(self, layer)(features)))


class LeNet300100(Layers):
    """Hidden layers of 300 and 100 units with ReLU: 266,610 parameters on 28 x 28 grey images.

    Args:
        norm, norm_last: as `NormSettings`.
    """

    def __init__(
        self, *, classes: int, channels: int, size: tuple[int, int], norm: str = "none", norm_last: bool | int = False
    ):
        super().__init__((), (channels * size[0] * size[1], 300, 100, classes), Norms(norm, norm_last))


class LeNet5(Layers):
    """Two convolutions of 5 x 5 with pooling, then three linear layers: 61,706 parameters on 28 x 28 grey images.

    The default activation is tanh: bounded activations keep per-example gradients small, so that less is lost to
    clipping (Papernot et al. 2021, arXiv 2007.14191). The last layer is initialised to zero, so the first steps are
    those of a linear model on the features, whose gradients agree between examples. If the logits are normalised, it is
    not, because a normalisation cannot scale zeros.

    Args:
        size: height and width (H, W) of the images, at least 12 pixels each.
        norm, norm_last: as `NormSettings`.
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
        norms, act = Norms(norm, norm_last), ACTIVATIONS[one_of(ACTIVATIONS, activation=activation)]
        # 28 x 28 images are padded to the 32 x 32 of the original network; larger images are not padded.
        padding = 2 if min(size) < 32 else 0
        height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in size)
        convolutions = nn.Conv2d(channels, 6, 5, padding=padding), nn.Conv2d(6, 16, 5)
        super().__init__(convolutions, (16 * height * width, 120, 84, classes), norms, act, nn.AvgPool2d(2))
        if not norms.last:
            zero_classifier(self)


class LeNet(Layers):
    """Two padded convolutions of 5 x 5 with 32 and 64 channels, ReLU and max-pooling, and one linear layer.

    With 128 outputs on 28 x 28 grey images it has 453,632 parameters, as the network of Xu et al. 2022 (arXiv
    2211.10844) for EMNIST. Weights are initialised with Glorot's uniform distribution, biases with zero.
    """

    def __init__(self, *, classes: int, channels: int, size: tuple[int, int]):
        convolutions = nn.Conv2d(channels, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        height, width = (-(-side // 4) for side in size)
        # An odd last row or column is pooled alone.
        pool = nn.MaxPool2d(2, ceil_mode=True)
        super().__init__(convolutions, (64 * height * width, classes), Norms("none"), pool=pool)
        for name, parameter in self.named_parameters():
            nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.xavier_uniform_(parameter)


class TFTutorial(Layers):
    """Two convolutions of 5 x 5 with 64 channels, ReLU and max-pooling, and two hidden layers of 384 units.

    Larger images are center-cropped to 24 x 24. Pooling over 2 x 2 gives the 12 x 12 x 64 and 6 x 6 x 64 of Abadi et
    al. 2016, section 5. They have two layers of 384 units instead of the tutorial's 384 and 192, and do not mention its
    local response normalisation. 1,144,138 parameters on colour images with ten classes.

    Args:
        norm, norm_last: as `NormSettings`.
    """

    def __init__(
        self, *, classes: int, channels: int, size: tuple[int, int], norm: str = "none", norm_last: bool | int = False
    ):
        convolutions = nn.Conv2d(channels, 64, 5, padding=2), nn.Conv2d(64, 64, 5, padding=2)
        height, width = (min(side, CROP) // 4 for side in size)
        units = 64 * height * width, 384, 384, classes
        super().__init__(convolutions, units, Norms(norm, norm_last), pool=nn.MaxPool2d(2))

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(center_crop(images))


def center_crop(images: Tensor) -> Tensor:
    """Center crop of images (N, C, H, W) to 24 x 24; a shorter side is kept.

    >>> center_crop(torch.zeros(1, 3, 32, 20)).shape
    torch.Size([1, 3, 24, 20])
    """
    top, left = (max(0, side - CROP) // 2 for side in images.shape[2:])
    return images[:, :, top : top + CROP, left : left + CROP]
