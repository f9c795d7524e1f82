"""Backbones: fixed networks without their classifier, with their expected input; whitening of their features."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.modules import module as registration

from sfumato._checks import SfumatoError, positive_integer, whole_number
from sfumato.models.networks import zoo
from sfumato.models.pretrained import (
    check_weights,
    classifier_names,
    copy_weights,
    per_channel,
    read_description,
    resolve_weights,
    select_trainable,
    trunk_of,
)
from sfumato.models.registry import check_trusted, create, parse

TORCHVISION = "torchvision:"
INTERPOLATIONS = ("bilinear", "bicubic")


@dataclass(frozen=True, kw_only=True)
class ExpectedInput:
    """The input that a backbone was trained on: public constants from its library or its run.

    Args:
        resolution: pixels on each side of its input.
        enlarged: pixels on each side to which an image is resized before the centre crop.
        interpolation: "bilinear" or "bicubic".
        mean, std: of pixels on the scale 0 to 1, for each channel.
    """

    resolution: int
    enlarged: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How to rebuild a backbone, without its weights.

    Args:
        name: `timm:NAME`, `torchvision:NAME`, or a model of sfumato (from a run).
        size: pixels on each side of its input.
        channels: channels of its input.
        classes: classes of the removed classifier, for models of sfumato.
        whitened_by: SHA-256 of the public images whose features whiten those of the backbone; None without whitening.
    """

    name: str
    size: int
    channels: int = 3
    classes: int = 2
    whitened_by: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the keywords of this class."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Backbone(nn.Module):
    """Maps images (N, C, H, W) to features (N, D), whitened if it has a `whitening` (D, D). Frozen, in evaluation mode.

    Args:
        network: a module without a classifier, or a `Trunk`.
        architecture: how it was built.
    """

    whitening: Tensor | None

    def __init__(self, network: nn.Module, architecture: Architecture):
        super().__init__()
        self.network, self.architecture = network, architecture
        self.requires_grad_(False).eval()
        shape = (architecture.channels, architecture.size, architecture.size)
        try:
            with torch.no_grad():
                _, self.width = network(torch.zeros(2, *shape)).shape
        except Exception as error:
            raise SfumatoError(
                f"backbone {architecture.name!r} does not map images of {' x '.join(map(str, shape))} to one vector "
                f"each: {' '.join(str(error).split())}",
                "give another `resolution`, or a network that pools its features",
            ) from error
        self.register_buffer("whitening", None if architecture.whitened_by is None else torch.eye(self.width))

    def train(self, mode: bool = True) -> Backbone:
        """Stays in evaluation mode, so that nothing is trained and no layer couples images."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """Images to features."""
        features = self.network(images)
        return features if self.whitening is None else features @ self.whitening


def build_backbone(
    architecture: Architecture, weights: str | Path | None = None, *, downloaded: bool = False
) -> Backbone:
    """A backbone with weights from a file or downloaded by its library; otherwise untrained."""
    with torch.random.fork_rng(devices=[]):
        network, classifier = _network(architecture, downloaded=downloaded)
    if weights is not None:
        # Only a library's classifier is skipped, since its classes depend on the weights. Others count in the digest.
        library = architecture.name.startswith((zoo.PREFIX, TORCHVISION))
        remedy = "give the weights of this network, or name theirs" if library else None
        copy_weights(network, weights, without=classifier if library else (), remedy=remedy)
    return Backbone(_without_classifier(network, classifier, architecture), architecture)


def load_backbone(
    name: str,
    *,
    weights: str | Path | None = None,
    resolution: int | None = None,
    resize: int | None = None,
    model: str | None = None,
) -> tuple[Backbone, ExpectedInput]:
    """A backbone with public weights.

    Args:
        name: `timm:NAME`, `torchvision:NAME`, or a run (for example of `sfumato pretrain`): its directory or model
            file.
        weights: a safetensors file of the network's weights, with or without its classifier; None for the library's
            download, or the run's own weights.
        resolution: pixels on each side of its input; None for that of its training.
        resize: pixels on each side to which an image is resized before the centre crop; None for the network's default
            ratio to the resolution.
        model: the function that builds the network of a run with a custom model: see `check_trusted`.

    Raises:
        SfumatoError: an unknown name, weights that are missing or do not fit, or an unsupported resolution.
    """
    if not name.startswith((zoo.PREFIX, TORCHVISION)):
        if weights is not None and resolve_weights(name).is_file():
            raise SfumatoError(f"backbone {name!r} brings its own weights", "leave `weights` out, or name a network")
        backbone, expects = _from_run(name, resolution, model)
        return backbone, _resized(expects, resize)
    expects = _expected_by_timm(name) if name.startswith(zoo.PREFIX) else _expected_by_torchvision(name)
    if weights is not None:
        check_weights(weights)
    if resolution is not None:
        enlarged = round(positive_integer(resolution=resolution) * expects.enlarged / expects.resolution)
        expects = replace(expects, resolution=resolution, enlarged=enlarged)
    expects = _resized(expects, resize)
    architecture = Architecture(name=name, size=expects.resolution)
    return build_backbone(architecture, weights, downloaded=weights is None), expects


def _resized(expects: ExpectedInput, resize: int | None) -> ExpectedInput:
    """The expected input with another resize. Refuses a resize smaller than the crop."""
    if resize is None:
        return expects
    remedy = "give at least the resolution, or a smaller resolution"
    whole_number(least=expects.resolution, resize=resize, remedy=remedy)
    return replace(expects, enlarged=resize)


def _from_run(name: str, resolution: int | None, model: str | None) -> tuple[Backbone, ExpectedInput]:
    path = resolve_weights(name)
    if not path.is_file():
        raise SfumatoError(
            f"backbone {name!r} is neither timm:NAME nor torchvision:NAME, nor a finished run",
            f"write timm:{name} or torchvision:{name} for a network, or correct the path of the run",
        )
    about = read_description(path)
    if about is None or about["model"] == "module" or about.get("features"):
        fault = "is a head on features" if about and about.get("features") else "does not say how to build its network"
        raise SfumatoError(f"{path} {fault}", "name the network itself, and give `weights`")
    size = about["size"] if resolution is None else positive_integer(resolution=resolution)
    remedy = "if you trust that code, name it: `model={0}`"
    spelling = check_trusted(about["model"], model, where=path, remedy=remedy)
    architecture = Architecture(name=spelling, size=size, channels=about["channels"], classes=len(about["classes"]))
    with limited_size(path):
        backbone = build_backbone(architecture, path)
    mean, std = (per_channel(about["transform"][key], about["channels"]) for key in ("mean", "std"))
    return backbone, ExpectedInput(resolution=size, enlarged=size, interpolation="bilinear", mean=mean, std=std)


def _network(architecture: Architecture, *, downloaded: bool) -> tuple[nn.Module, tuple[str, ...]]:
    """The complete network, and the names of its classifier's modules."""
    name, side = architecture.name, (architecture.size, architecture.size)
    if name.startswith(TORCHVISION):
        network = _torchvision(name, downloaded=downloaded)
        linear = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]
        return network, (linear[-1] if linear else "classifier",)
    if name.startswith(zoo.PREFIX):
        network = zoo.create(*parse(name), size=side, downloaded=downloaded)
    else:
        network = create(name, classes=architecture.classes, channels=architecture.channels, size=side)
    return network, classifier_names(network)


def _without_classifier(network: nn.Module, classifier: tuple[str, ...], architecture: Architecture) -> nn.Module:
    """The network without its classifier."""
    if architecture.name.startswith(zoo.PREFIX):
        network.reset_classifier(0)  # type: ignore[operator]
        return network
    if architecture.name.startswith(TORCHVISION):
        place, _, last = classifier[0].rpartition(".")
        # If the classifier is convolutional (SqueezeNet), its input is pooled instead.
        pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        linear = isinstance(network.get_submodule(classifier[0]), nn.Linear)
        setattr(network.get_submodule(place), last, nn.Identity() if linear else pooled)
        return network
    select_trainable(network, ("classifier",))
    trunk = trunk_of(network, (architecture.channels, architecture.size, architecture.size))
    if trunk is None:
        raise SfumatoError(
            f"backbone {architecture.name!r} does not end with a linear classifier", "choose another network"
        )
    return trunk


def _torchvision(name: str, *, downloaded: bool) -> nn.Module:
    from torchvision import models

    short = name.removeprefix(TORCHVISION)
    # Two networks have auxiliary classifiers, used only in training, which change the names of the weights.
    extra = {"init_weights": False} if short in ("googlenet", "inception_v3") and not downloaded else {}
    try:
        return models.get_model(short, weights="DEFAULT" if downloaded else None, **extra)
    except Exception as error:
        raise SfumatoError(
            f"backbone 'torchvision:{short}' cannot be had: {' '.join(str(error).split())}",
            "check the network, or give `weights` with a safetensors file",
        ) from error


def _expected_by_timm(name: str) -> ExpectedInput:
    from timm.data.config import resolve_model_data_config

    with torch.device("meta"):
        config = resolve_model_data_config(zoo.create(*parse(name)))
    side = config["input_size"][-1]
    return ExpectedInput(
        resolution=side,
        enlarged=math.floor(side / config["crop_pct"]),
        interpolation=config["interpolation"] if config["interpolation"] in INTERPOLATIONS else "bicubic",
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def _expected_by_torchvision(name: str) -> ExpectedInput:
    from torchvision import models

    short = name.removeprefix(TORCHVISION)
    zoo.refuse_unlisted(name, short, models.list_models(module=models), library="torchvision")
    weights: Any = models.get_model_weights(short)
    transform = weights.DEFAULT.transforms()
    return ExpectedInput(
        resolution=transform.crop_size[0],
        enlarged=transform.resize_size[0],
        interpolation=transform.interpolation.value,
        mean=tuple(transform.mean),
        std=tuple(transform.std),
    )


TIMES = 8
MORE_TENSORS, MORE_NUMBERS = 1 << 10, 1 << 28
"""Allowance for layers that are replaced during construction, and for a removed classifier."""


@contextmanager
def limited_size(path: Path) -> Iterator[None]:
    """Limits the size of a network that is built from a file's description, relative to the file's weights.

    Parameters are counted as layers are registered: a short name can describe a million layers.

    Args:
        path: a safetensors file.

    Raises:
        SfumatoError: the network exceeds `TIMES` the tensors or numbers of the file, plus an allowance.
    """
    with safe_open(path, framework="pt") as file:
        sizes = [prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118 - it is no mapping
    most = TIMES * len(sizes) + MORE_TENSORS, TIMES * sum(sizes) + MORE_NUMBERS
    counts, thread = [0, 0], threading.get_ident()

    def count(layer: nn.Module, name: str, tensor: Any) -> None:
        if threading.get_ident() != thread or not isinstance(tensor, Tensor):
            return
        counts[0] += 1
        counts[1] += tensor.numel()
        if counts[0] > most[0] or counts[1] > most[1]:
            raise SfumatoError(
                f"{path} names a network that is far larger than the {len(sizes)} tensors that it holds",
                "restore it from a copy",
            )

    hooks = [
        registration.register_module_parameter_registration_hook(count),
        registration.register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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
