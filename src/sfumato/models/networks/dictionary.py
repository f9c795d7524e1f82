"""Fixed features from a dictionary of patches that was learnt on synthetic images, and a linear head.

Patches of an image are compared with atoms (Coates, Ng and Lee 2011), at two scales; how strongly each atom answers is
averaged over the quarters of the image, and whitened by what it is over synthetic images. Dictionary and whitening are
public constants that no real image has gone into (`sfumato.models.priors`), so they are free of privacy cost, and the
linear head trains well under noise, since no direction of its inputs is much weaker than another.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import fraction
from sfumato.models.networks import scattering
from sfumato.models.priors.stored import WIDTH, Prior, Whitening, even, prior_for
from sfumato.models.weights.pretrained import zero_classifier

FEATURE_NORM = 2.0
"""The Euclidean norm of a feature vector. At clipping norm 1 the surer half of the examples is not clipped."""
NORM_BESIDE = scattering.FEATURE_NORM
"""Where wavelets stand beside: at clipping norm 1 every example then counts alike, as those of drawings have to."""
FAINTEST = NORM_BESIDE / 4
"""Wavelet features of a smaller norm, as only images of almost one grey have them, are not brought to their length:
those of one grey are rounding errors, of norm 2e-4. Of CIFAR-10's test images the least norm is 6.5."""
SMALLEST = 16
"""Pixels: the coarser scale has patches of twice their side."""
LARGEST_WORKING_SIDE = 40
WORKING_SIDE = 32
AT_ONCE = 8
"""Images: of more of them the responses no longer lie near a processor, and their memory is fetched anew each time."""


class Dictionary(nn.Module):
    """Whitened responses to atoms, brought to one length, and a linear head from zero.

    Args:
        prior: another dictionary than the stored one.
        classes: number of classes.
        channels: colour channels C of the images. Colour images and their mirror images have the same features, the
            mean over both; of grey ones, which may be letters, the features are the image's own.
        size: height and width (H, W) of the images, at least `SMALLEST` pixels each. Those of more than
            `LARGEST_WORKING_SIDE` are averaged down to `WORKING_SIDE`.
        wavelets: the share of a feature vector's squared length that wavelet features have, beside the dictionary's;
            None for the dictionary's alone.

    Raises:
        SfumatoError: wavelets does not lie between 0 and 1, or no dictionary is for so many channels.
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
        self.norm = NORM_BESIDE if self.share else FEATURE_NORM
        prior = prior_for(channels) if prior is None else prior
        self.mirrored = channels == 3
        self.working: tuple[int, int] | None = None
        if min(size) > LARGEST_WORKING_SIDE:
            height, width = (round(side * WORKING_SIDE / min(size)) for side in size)
            self.working = height, width
        self.images_at_once = AT_ONCE
        for place, atoms in enumerate(prior.scales):
            self.register_buffer(f"filters_{place}", atoms.filters)
            self.register_buffer(f"offsets_{place}", atoms.offsets)
        self.count = len(prior.scales)
        for name, value in prior.whitening._asdict().items():
            self.register_buffer(name, value)
        beside = 0 if self.wavelets is None else self.wavelets.count
        self.head = nn.Linear(prior.whitening.scales.numel() + beside, classes)
        zero_classifier(self)

    def forward(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W), from -1 to 1, to logits (N, classes)."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """Float images (N, C, H, W) to features (N, D), by public constants, of norm `FEATURE_NORM` or `NORM_BESIDE`.

        With wavelets, images of almost one grey have a smaller norm: the dictionary's part alone keeps its length.

        **Guarantee.** Each image's features are a function of that image and of public constants alone.
        """
        if torch.compiler.is_exporting():  # a graph is for any number of images, and a loop over them is not
            return self._features(images)
        return torch.cat([self._features(some) for some in images.split(AT_ONCE)])

    def _features(self, images: Tensor) -> Tensor:
        white = F.normalize(self._white(images))
        if self.wavelets is None:
            return white * self.norm
        waves = self.wavelets.features(images)
        if self.mirrored:
            waves = (waves + self.wavelets.features(images.flip(3))) / 2
        beside = F.normalize(waves, eps=FAINTEST) * math.sqrt(self.share)
        return torch.cat([white * math.sqrt(1 - self.share), beside], 1) * self.norm

    def _white(self, images: Tensor) -> Tensor:
        if self.working is not None:
            images = F.adaptive_avg_pool2d(images, self.working)
        scales = []
        for place in range(self.count):
            filters, offsets = self.get_buffer(f"filters_{place}"), self.get_buffer(f"offsets_{place}")
            scales.append(responses(images, filters, offsets, mirrored=self.mirrored))
            images = F.avg_pool2d(images, 2)
        return Whitening(self.center, self.deviation, self.vectors, self.scales)(torch.cat(scales, 1))


def responses(images: Tensor, filters: Tensor, offsets: Tensor, *, mirrored: bool) -> Tensor:
    """How strongly atoms answer in each quarter of the images: square roots of mean responses, (N, n, 4).

    Args:
        images: (N, C, H, W), from -1 to 1.
        filters, offsets: as `Atoms` has them.
        mirrored: whether means are over the image and its mirror image too.
    """
    patches = F.pad(even(F.unfold(images, WIDTH).transpose(1, 2)), (0, 1), value=1.0)
    height, width = (side - WIDTH + 1 for side in images.shape[2:])
    pool = _quarters(height, width).to(images)

    def means(filters: Tensor) -> Tensor:
        affine = torch.cat([filters, offsets.unsqueeze(0)])  # an offset of its own would be one more pass
        return pool @ (patches @ affine).clamp_(min=0)

    mean = means(filters)
    if mirrored:  # an atom's response to the mirror image is its mirror image's response to the image
        turned = filters.unflatten(0, (-1, WIDTH)).flip(1).flatten(0, 1)
        mean = (mean + means(turned)[:, [1, 0, 3, 2]]) / 2
    return mean.sqrt().transpose(1, 2)


def _quarters(height: int, width: int) -> Tensor:
    """(4, height * width), weights that average over each quarter; quarters of odd sides share their middle."""
    halves = []
    for side in (height, width):
        places, middle = torch.arange(side), -(-side // 2)
        half = torch.stack([places < middle, places >= side - middle]).float()
        halves.append(half / middle)
    return torch.einsum("ih,jw->ijhw", *halves).reshape(4, -1)
