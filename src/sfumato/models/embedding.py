"""Models that map images to embeddings: networks of the registry whose last layer gives the embedding."""

from __future__ import annotations

import torch
from torch import nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.models.projection import Mapped, projection
from sfumato.models.registry import create
from sfumato.models.trainable import select
from sfumato.models.weights.pretrained import classifier_names
from sfumato.models.weights.trunk import trunk_of

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
