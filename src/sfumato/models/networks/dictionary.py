"""Fixed features and a linear head: of a dictionary of patches that was learnt on synthetic images, or of wavelets, a
two-layer scattering network (Bruna and Mallat 2013, arXiv 1203.1513).

Patches of an image are compared with atoms (Coates, Ng and Lee 2011) at two scales. The responses are averaged over the
quarters of the image, and whitened with their statistics on synthetic images. Dictionary and whitening are public
constants computed without real images (`networks.prior`), at no privacy cost. The linear head trains well under
noise because no direction of its inputs is much weaker than the others.

Under differential privacy, hand-made features with a linear classifier do better than networks trained from random
initialization on small data sets, since noise grows with the number of trained parameters (Tramèr and Boneh 2021, arXiv
2011.11660). The filters are public constants: nothing is learnt before the head.
"""

from __future__ import annotations

import copy
import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import fraction
from sfumato.models.networks.prior import Prior, prior_for, responses
from sfumato.models.pretrained import zero_classifier

# Smallest side for a second layer of wavelets. For smaller images, pooling twice would blur discriminative detail.
_TWO_LAYERS_FROM = 16
# Larger images are averaged down to about this side, to bound the number of features.
_WORKING_SIDE = 32
_ORIENTATIONS = 4
_RADIUS = 2
# The Euclidean norm of a feature vector on any data set, so that one learning rate suits all of them.
WAVELET_NORM = 12.5


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
        """Float images (N, C, H, W) to features (N, D) of norm at most `WAVELET_NORM`; free of parameters.

        Each image's features depend on that image only. The norm is close to the bound unless the contrast is low.
        """
        # One group per order: mean 0 and variance 1 over all of its channels preserve the contrast between them.
        normalised = torch.cat([F.group_norm(order, 1).flatten(1) for order in self._orders(images)], dim=1)
        return normalised * (WAVELET_NORM / math.sqrt(normalised.shape[1]))

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
        return self.head(self.features(images))


def _pool(maps: Tensor, stride: int) -> Tensor:
    """Average pooling over overlapping windows, twice as wide as the stride: a sampled low-pass filter."""
    return F.avg_pool2d(maps, 2 * stride, stride, padding=stride // 2, count_include_pad=False)


FEATURE_NORM = 2.0
"""The Euclidean norm of a feature vector. At clipping norm 1 the more certain half of the examples is not clipped."""
NORM_WITH_WAVELETS = WAVELET_NORM
"""The norm if wavelet features are added: at clipping norm 1 all examples then weigh the same, as drawings require."""
FAINTEST = NORM_WITH_WAVELETS / 4
"""Wavelet features of a smaller norm are not scaled up. Only images of nearly one grey have such features, and those of
one grey are rounding errors of norm 2e-4. The smallest norm of CIFAR-10's test images is 6.5."""
SMALLEST = 16
"""Smallest side of an image in pixels. The patches of the coarser scale cover twice their side."""
LARGEST_WORKING_SIDE = 40
WORKING_SIDE = 32
AT_ONCE = 8
"""Images per chunk on a CPU. The responses of larger chunks do not fit into its cache."""
AT_ONCE_ON_A_DEVICE = 128
"""Images per chunk on other devices: the responses of colour images of 32 pixels take 0.3 GB."""


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
        self.share = 0.0 if wavelets is None else fraction(wavelets=wavelets)
        self.wavelets = Wavelets(channels=channels, size=size) if self.share else None
        self.norm = NORM_WITH_WAVELETS if self.share else FEATURE_NORM
        prior = prior_for(channels) if prior is None else prior
        self.mirrored = channels == 3
        self.working: tuple[int, int] | None = None
        if min(size) > LARGEST_WORKING_SIDE:
            height, width = (round(side * WORKING_SIDE / min(size)) for side in size)
            self.working = height, width
        self.images_at_once = AT_ONCE
        constants = prior.constants()
        self.names = tuple(constants)
        for name, value in constants.items():
            self.register_buffer(name, value)
        width = sum(value.numel() for name, value in constants.items() if name in ("scales", "second_scales"))
        self.head = nn.Linear(width + (0 if self.wavelets is None else self.wavelets.count), classes)
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
        at_once = AT_ONCE if images.device.type == "cpu" else AT_ONCE_ON_A_DEVICE
        return torch.cat([self._features(chunk) for chunk in images.split(at_once)])

    def _features(self, images: Tensor) -> Tensor:
        white = F.normalize(torch.cat([F.normalize(layer) for layer in self._white(images)], 1))
        if self.wavelets is None:
            return white * self.norm
        waves = self.wavelets.features(images)
        if self.mirrored:
            waves = (waves + self.wavelets.features(images.flip(3))) / 2
        scaled = F.normalize(waves, eps=FAINTEST) * math.sqrt(self.share)
        return torch.cat([white * math.sqrt(1 - self.share), scaled], 1) * self.norm

    def _white(self, images: Tensor) -> list[Tensor]:
        """The whitened responses (N, D) of each layer."""
        if self.working is not None:
            images = F.adaptive_avg_pool2d(images, self.working)
        prior = Prior.from_constants({name: self.get_buffer(name) for name in self.names})
        maps = responses(images, prior.scales, prior.second, mirrored=self.mirrored)
        whitenings = (prior.whitening, prior.second_whitening)
        return [whiten(layer) for whiten, layer in zip(whitenings, maps, strict=False) if whiten is not None]
