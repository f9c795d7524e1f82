"""What the benchmarks of the engine run on: a model, a made-up batch, and the number of views of each example."""

from __future__ import annotations

import copy
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sfumato import models

# Added to every parameter, so that no classifier or residual gain that starts at zero hides the layers below it.
_SHAKE = 0.02


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model at one size.

    Attributes:
        model: a name of `sfumato.models`, "bert-tiny", or "" for one linear layer on cached features.
        batch, views: B examples of K views each.
        size: side of the images in pixels, or the number of features, or of words of each text.
        vocabulary: the numbers that words of texts have; 0 for images and features.
        frozen: parameters that are not trained.
        bare: compared with the bare matrix products (forward and weight gradient) in place of a plain gradient step.
    """

    model: str
    batch: int
    size: int
    views: int = 1
    channels: int = 3
    classes: int = 10
    vocabulary: int = 0
    precision: str = "fp32"
    frozen: tuple[str, ...] = ()
    bare: bool = False


CPU = {
    "lenet5": Row(model="lenet5", batch=256, size=28, channels=1),
    "wrn-16-4": Row(model="wrn-16-4", batch=32, size=32),
    "wrn-16-4-views": Row(model="wrn-16-4", batch=8, views=8, size=32),
    "vit-tiny": Row(model="timm:vit_tiny_patch16_224", batch=16, size=224, classes=1000),
    # Opacus's hooks reach the layers of a model only where none of its parameters is a bare one.
    "vit-tiny-layers": Row(
        model="timm:vit_tiny_patch16_224", batch=16, size=224, classes=1000, frozen=("cls_token", "pos_embed")
    ),
    "nf-resnet-26": Row(model="timm:nf_resnet26", batch=8, size=224, classes=1000),
    "resnet-18-gn": Row(model="resnet-18,norm=group", batch=16, size=64),
    "last-layer": Row(model="", batch=4096, size=2048, classes=1000, bare=True),
    "bert-tiny": Row(model="bert-tiny", batch=16, size=128, classes=4, vocabulary=8192),
    "bilstm-32": Row(model="bilstm,embedding=64,hidden=64", batch=32, size=80, classes=4, vocabulary=8192),
    "bilstm": Row(model="bilstm,embedding=64,hidden=64", batch=256, size=64, classes=4, vocabulary=8192),
    "bilstm-ln": Row(model="bilstm,embedding=64,hidden=64,norm=layer", batch=256, size=64, classes=4, vocabulary=8192),
}
CUDA = {
    "wrn-16-4": Row(model="wrn-16-4", batch=256, size=32),
    "wrn-40-4-views": Row(model="wrn-40-4", batch=64, views=16, size=32, precision="bf16"),
    "vit-base": Row(model="timm:vit_base_patch16_224", batch=64, size=224, classes=1000, precision="bf16"),
    "vit-tiny": Row(model="timm:vit_tiny_patch16_224", batch=128, size=224, classes=1000, precision="bf16"),
    "nf-resnet-50": Row(model="timm:nf_resnet50", batch=64, size=224, classes=1000, precision="bf16"),
    "last-layer": Row(model="", batch=32768, size=2048, classes=1000, bare=True),
}


class BertTiny(nn.Module):
    """The encoder of Turc et al. 2019 with two layers of 128 numbers, two heads, and a mask of the padding."""

    def __init__(self, *, classes: int, vocabulary: int, length: int):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, 128), nn.Parameter(torch.zeros(length, 128))
        layer = nn.TransformerEncoderLayer(128, 2, 512, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, classes)

    def forward(self, words: Tensor) -> Tensor:
        encoded = self.encoder(self.words(words) + self.places, src_key_padding_mask=words == 0)
        return self.head(encoded[:, 0])


def rows(device: str) -> dict[str, Row]:
    """The rows by name."""
    return CUDA if device == "cuda" else CPU


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model and a batch.

    Attributes:
        model: in training mode. Never run itself: each method takes a `copy` of it.
        inputs: (B, ...) if views is 1, (B, K, ...) otherwise.
        targets: (B,) classes.
        precision: "fp32", or "bf16" for autocast with parameters and gradients in float32.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    views: int
    precision: str

    @property
    def device(self) -> str:
        return self.inputs.device.type

    @property
    def images(self) -> Tensor:
        """(B * K, ...), the views as if they were examples."""
        return self.inputs.flatten(0, 1) if self.views > 1 else self.inputs

    @property
    def labels(self) -> Tensor:
        """(B * K,), the target of each image."""
        return self.targets.repeat_interleave(self.views)

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def copy(self) -> nn.Module:
        """A model of the same weights."""
        return copy.deepcopy(self.model)

    def first(self, examples: int) -> Problem:
        """The problem of the first examples alone."""
        return replace(self, inputs=self.inputs[:examples], targets=self.targets[:examples])

    def double(self) -> Problem:
        """The same in float64."""
        inputs = self.inputs.double() if self.inputs.is_floating_point() else self.inputs
        return replace(self, model=self.copy().double(), inputs=inputs, precision="fp64")

    def casting(self) -> AbstractContextManager:
        """What the forward is run under."""
        return torch.autocast(self.device, torch.bfloat16) if self.precision == "bf16" else nullcontext()


def build(row: Row, device: str) -> Problem:
    """Random weights and examples, the same ones in every process."""
    torch.manual_seed(0)
    shape: tuple[int, ...] = (row.size,)
    if row.model == "bert-tiny":
        model: nn.Module = BertTiny(classes=row.classes, vocabulary=row.vocabulary, length=row.size)
    elif row.vocabulary:
        model = models.create_for_texts(row.model, classes=row.classes, vocabulary=row.vocabulary, length=row.size)
    elif row.model:
        model = models.create(row.model, classes=row.classes, channels=row.channels, size=row.size)
        shape = (row.channels, row.size, row.size)
    else:
        model = nn.Linear(row.size, row.classes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += _SHAKE * torch.randn_like(parameter)
    for name in row.frozen:
        model.get_parameter(name).requires_grad_(False)
    if row.vocabulary:  # texts of any length, zeros after their last word
        lengths = torch.randint(1, row.size + 1, (row.batch, 1))
        inputs = torch.randint(2, row.vocabulary, (row.batch, row.size)).masked_fill(
            torch.arange(row.size) >= lengths, 0
        )
    else:
        inputs = torch.randn(row.batch, *([row.views] if row.views > 1 else []), *shape)
    targets = torch.randint(row.classes, (row.batch,))
    return Problem(
        model=model.train().to(device),
        inputs=inputs.to(device),
        targets=targets.to(device),
        views=row.views,
        precision=row.precision,
    )


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
