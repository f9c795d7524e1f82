"""Fixed wavelet features and a linear head: a two-layer scattering network (Bruna and Mallat 2013, arXiv 1203.1513).

On small data sets, handcrafted features with a linear classifier outperform networks trained from scratch under
differential privacy, because noise grows with the number of trained parameters (Tramèr and Boneh 2021, arXiv
2011.11660). The filters are public constants; only the head is trained.
"""

from __future__ import annotations

import copy
import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.models.weights.pretrained import zero_classifier

# Smallest side for a second layer of wavelets. For smaller images, pooling twice would blur discriminative detail.
_TWO_LAYERS_FROM = 16
# Larger images are averaged down to about this side, to bound the number of features.
_WORKING_SIDE = 32
_ORIENTATIONS = 4
_RADIUS = 2
# The Euclidean norm of a feature vector on any data set, so that one learning rate suits all of them.
FEATURE_NORM = 12.5


def morlet_filters(orientations: int, *, radius: int = _RADIUS, width: float = 0.8) -> Tensor:
    """Morlet wavelets at the finest scale: plane waves with a Gaussian window, mean 0 and absolute sum 1.

    Args:
        orientations: L, the number of angles l * pi / L.
        radius: filters have a side of 2 * radius + 1 pixels.
        width: standard deviation of the Gaussian across the wave, in pixels; the frequency is 3 pi / 4 per pixel.

    Returns:
        (2L, 1, side, side): the real parts, then the imaginary parts.
    """
    line = torch.arange(-radius, radius + 1.0)
    y, x = torch.meshgrid(line, line, indexing="ij")
    filters = []
    for orientation in range(orientations):
        angle = math.pi * orientation / orientations
        along = x * math.cos(angle) + y * math.sin(angle)
        across = y * math.cos(angle) - x * math.sin(angle)
        window = torch.exp(-(along.square() + (4 / orientations * across).square()) / (2 * width**2))
        wave = torch.polar(window, 0.75 * math.pi * along)
        wave = wave - wave.sum() / window.sum() * window
        filters.append(wave / wave.abs().sum())
    stacked = torch.stack(filters)
    return torch.cat([stacked.real, stacked.imag]).unsqueeze(1)


class Wavelets(nn.Module):
    """Pooled moduli of wavelet coefficients, normalised per image and order.

    Args:
        channels: colour channels C of the images.
        size: height and width (H, W) of the images, at least 8 pixels each.
    """

    filters: Tensor

    def __init__(self, *, channels: int, size: tuple[int, int]):
        super().__init__()
        self.shape = channels, *size
        self.shrink = max(1, round(min(size) / _WORKING_SIDE))
        self.two_layers = min(size) >= _TWO_LAYERS_FROM
        self.register_buffer("filters", morlet_filters(_ORIENTATIONS), persistent=False)
        with torch.no_grad():
            self.count = self.features(torch.zeros(1, channels, *size)).shape[1]

    def features(self, images: Tensor) -> Tensor:
        """Maps float images (N, C, H, W) to features (N, D) of norm at most `FEATURE_NORM`, without parameters.

        Each image's features depend on that image only. The norm is close to the bound unless the contrast is low.
        """
        # One group per order: mean 0 and variance 1 over all of its channels preserve the contrast between them.
        normalised = torch.cat([F.group_norm(order, 1).flatten(1) for order in self._orders(images)], dim=1)
        return normalised * (FEATURE_NORM / math.sqrt(normalised.shape[1]))

    def _orders(self, images: Tensor) -> list[Tensor]:
        """Maps images (N, C, H, W) to pooled coefficients (N, C * L^o, H', W') of orders o = 0, 1 and 2."""
        if self.shrink > 1:
            images = F.avg_pool2d(images, self.shrink)
        fine = self._modulus(images)
        if not self.two_layers:
            return [images, F.avg_pool2d(fine, 2)]
        return [
            _pool(images, 4),
            _pool(fine, 4),
            _pool(self._modulus(F.avg_pool2d(images, 2)), 2),
            _pool(self._modulus(F.avg_pool2d(fine, 2)), 2),
        ]

    def mirror_order(self) -> Tensor | None:
        """The permutation of features, int64 (D,), that maps an image's features to those of its mirror image.

        A feature maps to the mirrored orientation at the mirrored position. The permutation is checked on a synthetic
        image. None if the pooling windows are not symmetric for this image size.
        """
        if self.filters.device.type != "cpu" or self.filters.dtype != torch.float32:
            return copy.deepcopy(self).to("cpu", torch.float32).mirror_order()
        channels, height, width = self.shape
        image = torch.linspace(0, 9 * channels, channels * height * width).square().sin().reshape(1, *self.shape)
        with torch.no_grad():
            orders = [torch.arange(order[0].numel()).view(order.shape[1:]) for order in self._orders(image)]
            original, mirrored = self.features(image), self.features(image.flip(-1))
        turned = -torch.arange(_ORIENTATIONS) % _ORIENTATIONS
        for number, indices in enumerate(orders):
            wavelets = round(math.log(len(indices) // channels, _ORIENTATIONS))
            by_angle = indices.view(channels, *[_ORIENTATIONS] * wavelets, *indices.shape[1:])
            for dim in range(1, by_angle.dim() - 2):
                by_angle = by_angle.index_select(dim, turned)
            orders[number] = by_angle.flip(-1).flatten()
        starts = itertools.accumulate((len(order) for order in orders), initial=0)
        order = torch.cat([indices + start for indices, start in zip(orders, starts, strict=False)])
        return order if torch.allclose(original[:, order], mirrored, rtol=0, atol=1e-4) else None

    def _modulus(self, maps: Tensor) -> Tensor:
        """The moduli of the wavelet coefficients (N, C * L, H, W) of feature maps (N, C, H, W)."""
        count, channels, height, width = maps.shape
        padded = F.pad(maps.reshape(count * channels, 1, height, width), (_RADIUS,) * 4, mode="reflect")
        real, imaginary = F.conv2d(padded, self.filters).chunk(2, dim=1)
        moduli = torch.sqrt(real.square() + imaginary.square() + 1e-10)
        return moduli.reshape(count, channels * _ORIENTATIONS, height, width)


class Scattering(Wavelets):
    """Wavelet features and a linear head initialised to zero.

    Args:
        classes: number of classes.
        channels, size: as for `Wavelets`.
    """

    def __init__(self, *, classes: int, channels: int, size: tuple[int, int]):
        super().__init__(channels=channels, size=size)
        self.head = nn.Linear(self.count, classes)
        zero_classifier(self)

    def forward(self, images: Tensor) -> Tensor:
        """Maps float images (N, C, H, W) to logits (N, classes)."""
        return self.head(self.features(images))


def _pool(maps: Tensor, stride: int) -> Tensor:
    """Average pooling over overlapping windows, twice as wide as the stride: a sampled low-pass filter."""
    return F.avg_pool2d(maps, 2 * stride, stride, padding=stride // 2, count_include_pad=False)
