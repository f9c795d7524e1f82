"""A public projection of features onto their principal directions over synthetic images, and onto random directions.

Both come from a fixed seed and are the same for every data set, so they cost no privacy. Together they approximately
preserve cosine similarities: exactly within the principal directions, and on average over projections outside of them
(Johnson and Lindenstrauss 1984).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.models.pretrained import Trunk, classifier_names, select_trainable, trunk_of
from sfumato.models.registry import create
from sfumato.models.trial import evaluation_mode

SEED = 0
"""Public seed of the synthetic images and of the random directions."""
IMAGES = 1024
"""Number of synthetic images for the principal directions."""
CONTRAST, SHARED = 0.5, 2.0
"""Standard deviation of synthetic pixels, on the scale of -1 to 1; weight of the component shared by all channels
relative to the component of each channel."""
PRINCIPAL = 32
"""P, the number of principal directions."""
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
def projection(trunk: Trunk, *, shape: tuple[int, int, int], dimension: int, principal: int = PRINCIPAL) -> Tensor:
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
    width, dimension = trunk.width, positive_integer(dimension=dimension)
    number = min(positive_integer(principal=principal), dimension, width)
    images = synthetic_images(IMAGES, channels=shape[0], size=shape[1:])
    with evaluation_mode(trunk):
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


DIMENSION = 128
"""Default embedding dimension D (Xu et al. 2022, section 4)."""


def create_embedding(
    name: str,
    *,
    channels: int,
    size: int | tuple[int, int],
    dimension: int = DIMENSION,
    pretrained: str | None = None,
    head: str = "new",
) -> nn.Module:
    """Creates a model that maps float images (N, C, H, W) to embeddings (N, D) of any length.

    Training uses unnormalised embeddings; comparisons normalise them to length 1 (Xu et al. 2022, section 4). Initial
    weights are drawn from torch's global generator. The last layer has Glorot's uniform distribution and zero biases.

    Args:
        name: as for `create`: `lenet`, `mobilenet-v2`, `resnet-50`, `timm:vit_tiny_patch16_224`, ...
        channels: colour channels C of the images.
        size: side of square images in pixels, or height and width (H, W).
        dimension: D.
        pretrained: as for `create`: public weights, which a guarantee does not cover.
        head: "new" for a newly drawn last layer; "pretrained" for the stored one.

    Raises:
        SfumatoError: as for `create`, or a dimension that is not a positive integer.
    """
    positive_integer(dimension=dimension)
    model = create(name, classes=dimension, channels=channels, size=size, pretrained=pretrained, head=head)
    if pretrained is None or head == "new":
        # A classifier may start at zero, but an embedding would then be equal for all images.
        for layer in classifier_names(model):
            for key, parameter in model.get_submodule(layer).named_parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
                elif key.endswith("bias"):
                    nn.init.zeros_(parameter)
    return model


def embedding_of_features(model: nn.Module, *, shape: tuple[int, int, int], dimension: int) -> nn.Module:
    """Turns a model into an embedding of its features: its last layer becomes their public `projection`.

    The embedding has approximately the cosine similarities of the features. It is in evaluation mode.

    Args:
        model: from `create_embedding`, or a custom model; changed in place.
        shape: C, H, W of the images.
        dimension: D, the number of outputs of its last layer.

    Raises:
        SfumatoError: the model is not a linear layer on per-image features.
    """
    names = classifier_names(model)
    trunk = None
    if len(names) == 1:
        select_trainable(model, ("classifier",))
        trunk = trunk_of(model.eval(), shape)
    last = None if trunk is None else model.get_submodule(names[0])
    if trunk is None or not isinstance(last, nn.Linear) or last.out_features != dimension:
        raise SfumatoError(
            "the model is not a linear layer on per-image features, so it has no features to start from",
            f"give one whose last layer is called head and has {dimension} outputs, or choose method fedemb",
        )
    with torch.no_grad():
        last.weight.copy_(projection(trunk, shape=shape, dimension=dimension))
        if last.bias is not None:
            last.bias.zero_()
    return model
