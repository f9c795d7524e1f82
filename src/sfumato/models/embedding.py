"""Embedding models: networks of the registry whose last layer outputs the embedding."""

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
"""Default embedding dimension D (Xu et al. 2022, section 4)."""


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
        mapped: K, to wrap the model in `Mapped`, whose weights are then loaded from a file; None for the plain model.

    Raises:
        SfumatoError: as for `create`, or a dimension that is not a positive integer.
    """
    positive_integer("dimension", dimension)
    model = create(name, classes=dimension, channels=channels, size=size, pretrained=pretrained, head=head)
    if pretrained is None or head == "new":
        _draw_last_layer(model)
    return model if mapped is None else Mapped(model, dimension=dimension, mapped=mapped)


def _draw_last_layer(model: nn.Module) -> None:
    """Draws the last layer. A classifier may start at zero, but an embedding would then be equal for all images."""
    for name in classifier_names(model):
        for key, parameter in model.get_submodule(name).named_parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            elif key.endswith("bias"):
                nn.init.zeros_(parameter)


def at_features(model: nn.Module, *, shape: tuple[int, int, int], dimension: int, mapped: int) -> Mapped:
    """Turns a model into an embedding of its features: its last layer becomes their public `projection`.

    Before training, the embedding has approximately the cosine similarities of the features.

    Args:
        model: from `create_embedding`, or a custom model; changed in place and frozen.
        shape: C, H, W of the images.
        dimension: D, the number of outputs of its last layer.
        mapped: K, the number of first coordinates that the trainable map covers.

    Raises:
        SfumatoError: the model is not a linear layer on per-image features.
    """
    names = classifier_names(model)
    trunk = None
    if len(names) == 1:
        select(model, ("classifier",))
        trunk = trunk_of(model.eval(), shape)
    last = None if trunk is None else model.get_submodule(names[0])
    if trunk is None or not isinstance(last, nn.Linear) or last.out_features != dimension:
        raise SfumatoError(
            "the model is not a linear layer on per-image features, so it has no features to start from",
            f"give one whose last layer is called head and has {dimension} outputs, or choose method fedemb",
        )
    with torch.no_grad():
        last.weight.copy_(projection(trunk, shape=shape, dimension=dimension, principal=mapped))
        if last.bias is not None:
            last.bias.zero_()
    return Mapped(model, dimension=dimension, mapped=mapped)
