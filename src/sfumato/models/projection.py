"""A public projection of features onto their principal directions over synthetic images, and onto random directions.

Both come from a fixed seed and are the same for every data set, so they cost no privacy. Together they approximately
preserve cosine similarities: exactly within the principal directions, and on average over projections outside of them
(Johnson and Lindenstrauss 1984). The principal directions come first, so a map of the first coordinates has the most
effect (`Mapped`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sfumato._checks import positive_integer
from sfumato.models.trial import evaluating
from sfumato.models.weights.trunk import Trunk

SEED = 0
"""Public seed of the synthetic images and of the random directions."""
IMAGES = 1024
"""Number of synthetic images for the principal directions."""
CONTRAST, SHARED = 0.5, 2.0
"""Standard deviation of synthetic pixels, on the scale of -1 to 1; weight of the component shared by all channels
relative to the component of each channel."""
_BATCH = 64


def synthetic_images(count: int, *, channels: int, size: tuple[int, int], seed: int = SEED) -> Iterator[Tensor]:
    """Generates synthetic images: noise with a 1/f amplitude spectrum, as in photographs (Field 1987), in batches.

    Args:
        count: number of images.
        channels, size: colour channels C, height and width (H, W).
        seed: public seed.

    Yields:
        (n, C, H, W) float32 from -1 to 1.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.fft.fftfreq(side).abs() for side in size)
    frequency = torch.hypot(rows[:, None], columns[None, :])
    frequency[0, 0] = 1 / max(size)
    for start in range(0, count, _BATCH):
        number = min(_BATCH, count - start)
        noise = torch.randn(number, channels + 1, *size, generator=generator)
        fields = torch.fft.ifft2(torch.fft.fft2(noise) / frequency).real
        images = fields[:, :channels] + (SHARED * fields[:, channels:] if channels > 1 else 0)
        yield (images * (CONTRAST / images.std())).clamp(-1, 1)


@torch.no_grad()
def projection(trunk: Trunk, *, shape: tuple[int, int, int], dimension: int, principal: int) -> Tensor:
    """Computes the projection matrix of a trunk's features (W) to dimension D, (D, W) float32.

    Rows are orthogonal. The first P are the principal directions of the features over synthetic images, of length 1.
    The others are random within the complement, of length sqrt((W - P) / (D - P)), so that scalar products are
    preserved on average. If D is at least W, columns are orthonormal, and scalar products are preserved exactly.

    Args:
        trunk: maps images (N, C, H, W) to features (N, W), without randomness; its training mode is restored.
        shape: C, H, W of the images.
        dimension: D.
        principal: P, at most D.

    **Guarantee.** A function of public constants and of the trunk's weights. No data are read.
    """
    width, dimension = trunk.width, positive_integer("dimension", dimension)
    number = min(positive_integer("principal", principal), dimension, width)
    images = synthetic_images(IMAGES, channels=shape[0], size=shape[1:])
    with evaluating(trunk):
        features = torch.cat([trunk(batch).double() for batch in images])
    features -= features.mean(0)
    rows = torch.zeros(0, width, dtype=torch.float64)
    if number < width:
        # The Gram matrix over images has the same nonzero eigenvalues as the covariance over features.
        strength, vectors = torch.linalg.eigh(features @ features.T)
        leading = (vectors[:, -number:].flip(1).T @ features)[strength[-number:].flip(0) > 1e-9 * strength[-1]]
        rows = torch.linalg.qr(leading.T)[0].T
        largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
        rows = rows * largest.sign()
    generator = torch.Generator().manual_seed(SEED)
    random_rows = torch.randn(max(dimension, width) - len(rows), width, generator=generator, dtype=torch.float64)
    if dimension >= width:  # any orthonormal basis that starts with the principal directions preserves everything
        basis = torch.linalg.qr(torch.cat([rows, random_rows[: width - len(rows)]]).T)[0].T
        signs = (basis[: len(rows)] * rows).sum(1).sign()
        basis[: len(rows)] *= signs[:, None]
        return torch.cat([basis, torch.zeros(dimension - width, width, dtype=torch.float64)]).float()
    random_directions = random_rows[: dimension - len(rows)]
    random_directions = torch.linalg.qr((random_directions - random_directions @ rows.T @ rows).T)[0].T
    if len(random_directions):
        random_directions = random_directions * math.sqrt((width - len(rows)) / len(random_directions))
    return torch.cat([rows, random_directions]).float()


class Mapped(nn.Module):
    """Fixed features, their public projection, and a trainable map of the first coordinates, initially the identity.

    z = P f(x) / |P f(x)|. The first K coordinates become A z + b; the others are unchanged.

    Args:
        backbone: maps images (N, C, H, W) to P f(x), (N, D); frozen.
        dimension: D.
        mapped: K, at most D.
    """

    def __init__(self, backbone: nn.Module, *, dimension: int, mapped: int):
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.pretrained_cfg = getattr(backbone, "pretrained_cfg", None)  # constants for input scaling
        self.map = nn.Linear(min(mapped, dimension), min(mapped, dimension))
        with torch.no_grad():
            self.map.weight.copy_(torch.eye(self.map.in_features))
            self.map.bias.zero_()

    @property
    def mapped(self) -> int:
        """K."""
        return self.map.in_features

    def train(self, mode: bool = True) -> Mapped:
        """Sets the mode of the map. The frozen backbone stays in evaluation mode, as a fixed function."""
        super().train(mode)
        self.backbone.eval()
        return self

    def begun(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to z, (N, D) of length 1: the embedding before training."""
        return nn.functional.normalize(self.backbone(images), dim=1)

    def finished(self, begun: Tensor) -> Tensor:
        """Maps z to embeddings (N, D)."""
        return torch.cat([self.map(begun[:, : self.mapped]), begun[:, self.mapped :]], dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to embeddings (N, D) of any length."""
        return self.finished(self.begun(images))
