"""Whitening of a backbone's features by the second moment of public features. It reads no private record."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.models.weights.backbone import Backbone

LEAST_SHRINKAGE = 0.03
"""The least shrinkage: directions that hardly vary in public features are not amplified further."""
POWER = 0.5
"""1 for equal variances, 0 for the original ones. Under much noise, directions of large variance carry most."""


def shrinkage(images: int, width: int) -> float:
    """rho = D / (D + n), at least `LEAST_SHRINKAGE`: the share of a multiple of the identity in the second moment.

    The second moment of n vectors has rank n at most, and its eigenvalues spread by chance with D / n. With few images
    the map comes close to a multiple of the identity, so no number of images is too small.

    Args:
        images: n, the number of public feature vectors.
        width: D, their length.

    >>> shrinkage(512, 512), shrinkage(1_000_000, 512)
    (0.5, 0.03)
    """
    return max(LEAST_SHRINKAGE, width / (width + images))


def whitening(moment: Tensor, *, images: int, power: float = POWER) -> Tensor:
    """The map A = ((1 - rho) M + rho tr(M) / D I)^(-power / 2) of features z to A z, with rho by `shrinkage`.

    With rho = 0 and power 1 the second moment of the public A z is the identity. Private features have about the same
    moment, so the noise of a head, which is equal in all directions, no longer drowns those of small variance.

    Args:
        moment: M = mean of z z^T over the public features, (D, D).
        images: n, the number of public features.
        power: 1 for whitening, less for a part of it.

    Returns:
        A, symmetric and positive definite (D, D), float32.

    Raises:
        SfumatoError: features that are not finite, or all zero.
    """
    moment = moment.double()
    scale = float(moment.trace()) / len(moment)
    if not math.isfinite(scale) or scale <= 0:
        raise SfumatoError(
            "the features of the images to whiten by are " + ("all zero" if scale == 0 else "not finite"),
            "give another `whiten_by`, or leave it out",
        )
    rho = shrinkage(images, len(moment))
    values, vectors = torch.linalg.eigh(moment)
    weights = ((1 - rho) * values.clamp(min=0) + rho * scale) ** (-power / 2)
    return ((vectors * weights) @ vectors.T).float()


def whitened(backbone: Backbone, moment: Tensor, *, images: int, by: str) -> Backbone:
    """The backbone followed by the whitening map. The network is not copied.

    Args:
        moment, images: as for `whitening`.
        by: SHA-256 of the public images.
    """
    result = Backbone(backbone.network, replace(backbone.architecture, whitened_by=by))
    assert result.whitening is not None
    result.whitening.copy_(whitening(moment, images=images))
    return result
