"""Models that map images to embeddings: networks of the registry whose last layer gives the embedding."""

from __future__ import annotations

from torch import nn

from sfumato._checks import positive_integer
from sfumato.models.registry import create
from sfumato.models.weights.pretrained import classifier_names

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

    Raises:
        SfumatoError: as `create`, or a dimension that is no whole number of at least 1.
    """
    positive_integer("dimension", dimension)
    model = create(name, classes=dimension, channels=channels, size=size, pretrained=pretrained, head=head)
    if pretrained is None or head == "new":
        _draw_last_layer(model)
    return model


def _draw_last_layer(model: nn.Module) -> None:
    """A classifier may start at zero; an embedding that does would be the same for all images."""
    for name in classifier_names(model):
        for key, parameter in model.get_submodule(name).named_parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            elif key.endswith("bias"):
                nn.init.zeros_(parameter)
