"""A public projection of features: the directions in which they vary most over synthetic images, and random others.

Both are drawn from a fixed seed and are the same for every data set, so they cost no privacy. Together they keep cosine
similarities about as they are: exactly within the principal directions, and in the mean over projections outside of
them (Johnson and Lindenstrauss 1984). The principal ones come first, so that what is learnt of the first coordinates
alone says most (`Mapped`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.models.registry import create
from sfumato.models.trial import evaluating
from sfumato.models.weights.pretrained import classifier_names, select
from sfumato.models.weights.trunk import Trunk, trunk_of

SEED = 0
"""Public: of the synthetic images and of the random directions."""
IMAGES = 1024
"""How many synthetic images principal directions are found on."""
CONTRAST, SHARED = 0.5, 2.0
"""Standard deviation of synthetic pixels on the scale of -1 to 1; and by how much what the colours of an image have in
common outweighs what each has for itself."""
_BATCH = 64


def synthetic_images(count: int, *, channels: int, size: tuple[int, int], seed: int = SEED) -> Iterator[Tensor]:
    """Noise whose amplitude falls as 1/f, as that of photographs does (Field 1987), in batches; nobody's images.

    Args:
        count: how many.
        channels, size: colour channels C, height and width (H, W).
        seed: public.

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
    """The projection of a trunk's features (W) to a smaller dimension, (D, W) float32.

    Rows are orthogonal. The first are the principal directions of the features over synthetic images, of length 1; the
    others are random within what these leave, of length sqrt((W - P) / (D - P)), so that scalar products stay what they
    are in the mean. Where D is at least W, columns are orthonormal instead, and every scalar product stays exactly.

    Args:
        trunk: images (N, C, H, W) to features (N, W), free of randomness; kept in the modes that it has.
        shape: C, H, W of the images.
        dimension: D.
        principal: P, at most D.

    **Guarantee.** A function of public constants and of the trunk's own weights; no data are read.
    """
    width, dimension = trunk.width, positive_integer("dimension", dimension)
    found = min(positive_integer("principal", principal), dimension, width)
    images = synthetic_images(IMAGES, channels=shape[0], size=shape[1:])
    with evaluating(trunk):
        features = torch.cat([trunk(batch).double() for batch in images])
    features -= features.mean(0)
    rows = torch.zeros(0, width, dtype=torch.float64)
    if found < width:
        # The smaller of the two products of the features with themselves has all of their directions.
        strength, vectors = torch.linalg.eigh(features @ features.T)
        kept = (vectors[:, -found:].flip(1).T @ features)[strength[-found:].flip(0) > 1e-9 * strength[-1]]
        rows = torch.linalg.qr(kept.T)[0].T
        largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
        rows = rows * largest.sign()
    generator = torch.Generator().manual_seed(SEED)
    others = torch.randn(max(dimension, width) - len(rows), width, generator=generator, dtype=torch.float64)
    if dimension >= width:  # nothing is lost: any orthonormal basis that begins with the principal directions
        basis = torch.linalg.qr(torch.cat([rows, others[: width - len(rows)]]).T)[0].T
        signs = (basis[: len(rows)] * rows).sum(1).sign()
        basis[: len(rows)] *= signs[:, None]
        return torch.cat([basis, torch.zeros(dimension - width, width, dtype=torch.float64)]).float()
    drawn = others[: dimension - len(rows)]
    drawn = torch.linalg.qr((drawn - drawn @ rows.T @ rows).T)[0].T
    if len(drawn):
        drawn = drawn * math.sqrt((width - len(rows)) / len(drawn))
    return torch.cat([rows, drawn]).float()


class Mapped(nn.Module):
    """Fixed features, their public projection, and a small map of its first coordinates that begins at the identity.

    z = P f(x) / |P f(x)|, of which the first K coordinates become A z + b and the others stay.

    Args:
        backbone: images (N, C, H, W) to P f(x), (N, D); none of it is trained.
        dimension: D.
        mapped: K, at most D.
    """

    def __init__(self, backbone: nn.Module, *, dimension: int, mapped: int):
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.pretrained_cfg = getattr(backbone, "pretrained_cfg", None)  # by whose constants images are prepared
        self.map = nn.Linear(min(mapped, dimension), min(mapped, dimension))
        with torch.no_grad():
            self.map.weight.copy_(torch.eye(self.map.in_features))
            self.map.bias.zero_()

    @property
    def mapped(self) -> int:
        """K."""
        return self.map.in_features

    def train(self, mode: bool = True) -> Mapped:
        """As of any module; what is not trained stays in evaluation mode, so that it is one fixed function."""
        super().train(mode)
        self.backbone.eval()
        return self

    def begun(self, images: Tensor) -> Tensor:
        """Images (N, C, H, W) to z, (N, D) of length 1: where training begins."""
        return nn.functional.normalize(self.backbone(images), dim=1)

    def finished(self, begun: Tensor) -> Tensor:
        """z to embeddings (N, D)."""
        return torch.cat([self.map(begun[:, : self.mapped]), begun[:, self.mapped :]], dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, C, H, W) to embeddings (N, D), of any length."""
        return self.finished(self.begun(images))


DIMENSION = 128
"""D of Xu et al. 2022, section 4."""


def create_embedding(
    name: str,
    *,
    channels: int,
    size: int | tuple[int, int],
    dimension: int = DIMENSION,
    pretrained: str | None = None,
    head: str = "new",
    mapped: int | None = None,
) -> nn.Module:
    """A model for float images (N, C, H, W) that gives embeddings (N, D), of any length.

    Training takes the embeddings as they are; whoever compares images brings them to length 1 (Xu et al. 2022, section
    4). Initial weights are drawn from torch's global generator; those of the last layer from Glorot's uniform
    distribution, with biases of zero.

    Args:
        name: as `create`: `lenet`, `mobilenet-v2`, `resnet-50`, `timm:vit_tiny_patch16_224`, ...
        channels: colour channels C of the images.
        size: side of square images in pixels, or height and width (H, W).
        dimension: D.
        pretrained: as `create`: public weights, which a guarantee does not cover.
        head: "new" for a last layer that is drawn, whatever the weights hold; "pretrained" for theirs.
        mapped: K, for a `Mapped` of it, whose weights then come from a file; None for the model as it is.

    Raises:
        SfumatoError: as `create`, or a dimension that is no whole number of at least 1.
    """
    positive_integer("dimension", dimension)
    model = create(name, classes=dimension, channels=channels, size=size, pretrained=pretrained, head=head)
    if pretrained is None or head == "new":
        _draw_last_layer(model)
    return model if mapped is None else Mapped(model, dimension=dimension, mapped=mapped)


def _draw_last_layer(model: nn.Module) -> None:
    """A classifier may start at zero; an embedding that does would be the same for all images."""
    for name in classifier_names(model):
        for key, parameter in model.get_submodule(name).named_parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            elif key.endswith("bias"):
                nn.init.zeros_(parameter)


def at_features(model: nn.Module, *, shape: tuple[int, int, int], dimension: int, mapped: int) -> Mapped:
    """An embedding that begins at the features of a model: its last layer becomes their public `projection`.

    Untrained it has about the features' own cosine similarities.

    Args:
        model: one of `create_embedding` or of the caller's own, changed in place: nothing of it is trained any more.
        shape: C, H, W of the images.
        dimension: D, the outputs of its last layer.
        mapped: K, the first coordinates, which a map may be trained of.

    Raises:
        SfumatoError: a model that is not one linear layer on features of each image alone.
    """
    names = classifier_names(model)
    trunk = None
    if len(names) == 1:
        select(model, ("classifier",))
        trunk = trunk_of(model.eval(), shape)
    last = None if trunk is None else model.get_submodule(names[0])
    if trunk is None or not isinstance(last, nn.Linear) or last.out_features != dimension:
        raise SfumatoError(
            "the model is not one linear layer on features of each image alone, so it has no features to begin at",
            f"give one whose last layer is called head and has {dimension} outputs; or take method fedemb",
        )
    with torch.no_grad():
        last.weight.copy_(projection(trunk, shape=shape, dimension=dimension, principal=mapped))
        if last.bias is not None:
            last.bias.zero_()
    return Mapped(model, dimension=dimension, mapped=mapped)
