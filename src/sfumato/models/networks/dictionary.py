"""Fixed features from a dictionary of patches learned on synthetic images, and a linear head.

Patches of an image are compared with atoms (Coates, Ng and Lee 2011) at two scales. The responses are averaged over the
quarters of the image, and whitened with their statistics on synthetic images. Dictionary and whitening are public
constants computed without real images (`sfumato.models.priors`), at no privacy cost. The linear head trains well under
noise because no direction of its inputs is much weaker than the others.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import fraction
from sfumato.models.networks import scattering
from sfumato.models.priors.atoms import WIDTH, even
from sfumato.models.priors.stored import Prior, prior_for
from sfumato.models.priors.whitening import Whitening
from sfumato.models.weights.pretrained import zero_classifier

FEATURE_NORM = 2.0
"""The Euclidean norm of a feature vector. At clipping norm 1 the more confident half of the examples is not clipped."""
NORM_WITH_WAVELETS = scattering.FEATURE_NORM
"""The norm with wavelet features: at clipping norm 1 every example is clipped to the same norm, as drawings require."""
FAINTEST = NORM_WITH_WAVELETS / 4
"""Wavelet features of a smaller norm are not normalised. Only nearly uniform images have them: for a uniform image they
are rounding errors, of norm 2e-4. The smallest norm among CIFAR-10's test images is 6.5."""
SMALLEST = 16
"""Smallest side of an image in pixels. The patches of the coarser scale cover twice their side."""
LARGEST_WORKING_SIDE = 40
WORKING_SIDE = 32
AT_ONCE = 8
"""Images per chunk. The responses of larger chunks do not fit into the processor's cache."""


class Dictionary(nn.Module):
    """Whitened responses to atoms, normalised, and a linear head initialised to zero.

    Args:
        prior: a dictionary that replaces the stored one.
        classes: number of classes.
        channels: colour channels C of the images. The features of colour images are averaged over the image and its
            mirror image. Those of grey images are not, because these may show letters.
        size: height and width (H, W) of the images, at least `SMALLEST` pixels each. Images with a shorter side of more
            than `LARGEST_WORKING_SIDE` pixels are averaged down to `WORKING_SIDE`.
        wavelets: the wavelet features' share of the squared norm, in addition to the dictionary's features; None for
            the dictionary alone.

    Raises:
        SfumatoError: wavelets does not lie between 0 and 1, or there is no dictionary for this number of channels.
    """

    center: Tensor
    deviation: Tensor
    vectors: Tensor
    scales: Tensor

    def __init__(
        self,
        prior: Prior | None = None,
        *,
        classes: int,
        channels: int,
        size: tuple[int, int],
        wavelets: float | None = None,
    ):
        super().__init__()
        self.share = 0.0 if wavelets is None else fraction("wavelets", wavelets)
        self.wavelets = scattering.Wavelets(channels=channels, size=size) if self.share else None
        self.norm = NORM_WITH_WAVELETS if self.share else FEATURE_NORM
        prior = prior_for(channels) if prior is None else prior
        self.mirrored = channels == 3
        self.working: tuple[int, int] | None = None
        if min(size) > LARGEST_WORKING_SIDE:
            height, width = (round(side * WORKING_SIDE / min(size)) for side in size)
            self.working = height, width
        self.images_at_once = AT_ONCE
        for scale, atoms in enumerate(prior.scales):
            self.register_buffer(f"filters_{scale}", atoms.filters)
            self.register_buffer(f"offsets_{scale}", atoms.offsets)
        self.count = len(prior.scales)
        for name, value in prior.whitening._asdict().items():
            self.register_buffer(name, value)
        wavelet_count = 0 if self.wavelets is None else self.wavelets.count
        self.head = nn.Linear(prior.whitening.scales.numel() + wavelet_count, classes)
        zero_classifier(self)

    def forward(self, images: Tensor) -> Tensor:
        """Maps float images (N, C, H, W), from -1 to 1, to logits (N, classes)."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """Maps float images (N, C, H, W) to features (N, D) of norm `FEATURE_NORM` or `NORM_WITH_WAVELETS`.

        With wavelets, nearly uniform images have a smaller norm: only the dictionary's part is then normalised.

        **Guarantee.** Each image's features are a function of that image and of public constants only.
        """
        if torch.compiler.is_exporting():  # a loop over chunks would fix the number of images
            return self._features(images)
        return torch.cat([self._features(some) for some in images.split(AT_ONCE)])

    def _features(self, images: Tensor) -> Tensor:
        white = F.normalize(self._white(images))
        if self.wavelets is None:
            return white * self.norm
        waves = self.wavelets.features(images)
        if self.mirrored:
            waves = (waves + self.wavelets.features(images.flip(3))) / 2
        scaled = F.normalize(waves, eps=FAINTEST) * math.sqrt(self.share)
        return torch.cat([white * math.sqrt(1 - self.share), scaled], 1) * self.norm

    def _white(self, images: Tensor) -> Tensor:
        if self.working is not None:
            images = F.adaptive_avg_pool2d(images, self.working)
        scales = []
        for scale in range(self.count):
            filters, offsets = self.get_buffer(f"filters_{scale}"), self.get_buffer(f"offsets_{scale}")
            scales.append(responses(images, filters, offsets, mirrored=self.mirrored))
            images = F.avg_pool2d(images, 2)
        return Whitening(self.center, self.deviation, self.vectors, self.scales)(torch.cat(scales, 1))


def responses(images: Tensor, filters: Tensor, offsets: Tensor, *, mirrored: bool) -> Tensor:
    """Computes the responses of atoms in each quarter of the images: square roots of mean responses, (N, n, 4).

    Args:
        images: (N, C, H, W), from -1 to 1.
        filters, offsets: as in `Atoms`.
        mirrored: whether to average over the image and its mirror image.
    """
    patches = F.pad(even(F.unfold(images, WIDTH).transpose(1, 2)), (0, 1), value=1.0)
    height, width = (side - WIDTH + 1 for side in images.shape[2:])
    pool = _quarters(height, width).to(images)

    def means(filters: Tensor) -> Tensor:
        affine = torch.cat([filters, offsets.unsqueeze(0)])  # a separate addition would need another pass
        return pool @ (patches @ affine).clamp_(min=0)

    mean = means(filters)
    if mirrored:  # an atom's response to the mirror image equals the mirrored atom's response to the image
        turned = filters.unflatten(0, (-1, WIDTH)).flip(1).flatten(0, 1)
        mean = (mean + means(turned)[:, [1, 0, 3, 2]]) / 2
    return mean.sqrt().transpose(1, 2)


def _quarters(height: int, width: int) -> Tensor:
    """Weights (4, height * width) that average over each quarter. Quarters share the middle row or column."""
    halves = []
    for side in (height, width):
        positions, middle = torch.arange(side), -(-side // 2)
        half = torch.stack([positions < middle, positions >= side - middle]).float()
        halves.append(half / middle)
    return torch.einsum("ih,jw->ijhw", *halves).reshape(4, -1)
