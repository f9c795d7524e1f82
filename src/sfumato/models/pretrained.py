"""Public weights: loading them into a model, initialising the new classifier, their pixel constants, and selecting the
parameters to train; and trunks, the fixed parts of models of which only the classifier is trained."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of
from sfumato._devices import fork_rng
from sfumato._files import regular_file
from sfumato.models.description import parse_description
from sfumato.models.public_norms import EXAMPLES, as_batch_norm

_SHOWN = 4
HEADS = ("new", "pretrained")
WEIGHTS = ("ema", "last")
LOGITS_NORM = "norm_of_logits"
"""The layer that `norm_last` adds after the classifier. It has one unit per class."""
MODEL, LAST = "model.safetensors", "model-last.safetensors"
"""A run's model file, and the file of the last weights next to the averaged ones, without privacy."""


def load(model: nn.Module, path: str | Path, *, head: str = "new") -> None:
    """Copies the tensors of a safetensors file into the model, by name.

    Differences in names or shapes outside the classifier are refused before anything is copied.

    Args:
        model: any module. Its classifier is named by timm's `default_cfg["classifier"]`, or is its attribute `head`.
        path: a safetensors file with the keys of `model.state_dict()`, or a run directory that holds one.
        head: "new" for a classifier that starts at zero; "pretrained" for the classifier in the file. A new classifier
            with normalised outputs (`norm_last`) keeps the model's initial weights, since zero cannot be normalised,
            and its normalisation starts at gain 1 and shift 0.

    Raises:
        SfumatoError: no such file, not a safetensors file, or weights that don't fit.
    """
    one_of(HEADS, head=head)
    classifier = classifier_names(model) if head == "new" else ()
    after = getattr(model, LOGITS_NORM, None)
    normalised = isinstance(after, nn.Module) and next(after.parameters(), None) is not None
    copy_weights(model, path, without=(*classifier, LOGITS_NORM) if classifier and normalised else classifier)
    if classifier and not normalised:
        zero_classifier(model)


def copy_weights(
    model: nn.Module, path: str | Path, *, without: tuple[str, ...] = (), remedy: str | None = None
) -> None:
    """Copies the tensors of a safetensors file into the model, by name, except those of the modules `without`.

    Position embeddings of a Vision Transformer for images of another size are interpolated (`_resize_positions`).

    Args:
        remedy: remedy in the error if the tensors do not fit; None for a general one.

    Raises:
        SfumatoError: as `load`.
    """
    stored, state = _read(resolve_weights(path)), model.state_dict()
    if EXAMPLES not in state:
        stored = as_batch_norm(stored)
    stored = _resize_positions(model, stored)
    prefixes = tuple(f"{name}." for name in without)

    def fresh(key: str) -> bool:
        return bool(prefixes) and key.startswith(prefixes)

    def differs(key: str) -> bool:
        return key not in stored or key not in state or stored[key].shape != state[key].shape

    different = [key for key in sorted(state.keys() | stored.keys()) if not fresh(key) and differs(key)]
    if different:
        raise SfumatoError(
            f"pretrained file {path} does not fit the model: {_explain(different, stored, state)}", remedy or _REMEDY
        )
    with torch.no_grad():
        for key, tensor in state.items():
            if not fresh(key):
                tensor.copy_(stored[key])


def resolve_weights(path: str | Path) -> Path:
    """The weights' file: the path itself, or the model file of a run directory."""
    return Path(path) / MODEL if Path(path).is_dir() else Path(path)


def weights_file(path: str, weights: str) -> str:
    """The file of a run's averaged or last weights, by the descriptions in its files.

    Args:
        path: a run of `sfumato pretrain`.
        weights: "ema" or "last".

    Raises:
        SfumatoError: no run directory, or a run without such weights.
    """
    one_of(WEIGHTS, pretrained_weights=weights)
    for file in (Path(path) / MODEL, Path(path) / LAST):
        if (read_description(file) or {}).get("weights") == weights:
            return str(file)
    raise SfumatoError(
        f"pretrained_weights is {weights}, and {path} is no run directory with such weights",
        "leave pretrained_weights out, name the run, or pretrain again" + (" with `ema`" if weights == "ema" else ""),
    )


def read_description(path: Path) -> dict[str, Any] | None:
    """The description in a model file of sfumato; None for other files."""
    try:
        with safe_open(regular_file(path), framework="pt") as file:
            return parse_description(file.metadata(), path)
    except (OSError, SafetensorError):
        return None


_REMEDY = (
    "give weights of the same model with the same number of colour channels (and of classes, with head pretrained)"
)


def classifier_names(model: nn.Module) -> tuple[str, ...]:
    """The names of the modules that compute the logits: from timm's configuration, else `head`, else none."""
    named = getattr(model, "default_cfg", None) or {}
    names = named.get("classifier", "head") if isinstance(named, Mapping) else "head"
    names = (names,) if isinstance(names, str) else tuple(names or ())
    modules = dict(model.named_modules())
    return tuple(name for name in names if name in modules)


def zero_classifier(model: nn.Module) -> None:
    """Sets every parameter of the model's classifier to zero, so that training starts from uniform predictions."""
    with torch.no_grad():
        for name in classifier_names(model):
            for parameter in model.get_submodule(name).parameters():
                parameter.zero_()


def begin_classifier(model: nn.Module, *, deviation: float | None, bias: float | None) -> None:
    """Draws the weights of the model's classifier from a Gaussian, and sets its biases to one number.

    Mehta et al. 2022, section 5: weights start at or near zero, since noisy steps never compensate for large initial
    weights; and the bias is -10 for the sigmoid loss (appendix D.3).

    Args:
        model: any module with linear or convolutional classifiers.
        deviation: standard deviation of the Gaussian; 0 for zeros; None to keep the weights.
        bias: value of the biases; None to keep them.

    Raises:
        SfumatoError: the model has no known classifier.
    """
    names = classifier_names(model)
    if not names:
        raise SfumatoError(
            "head_deviation and head_bias are for a classifier, and the model has none that is known",
            "call its last layer head, or leave them out",
        )
    with torch.no_grad():
        for name in names:
            for key, parameter in model.get_submodule(name).named_parameters():
                value = bias if key.endswith("bias") else deviation
                if value is not None:
                    parameter.fill_(value) if key.endswith("bias") else parameter.normal_().mul_(value)


def public_constants(model: nn.Module, *, channels: int = 3) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation per channel, on the scale 0 to 1, of the pixels in the backbone's training.

    Args:
        model: any module; timm's models know their constants.
        channels: colour channels C; other than 3, each channel gets the mean of the three.

    Returns:
        (mean, standard deviation), C numbers each, or None for a model without known constants.
    """
    settings: Any = getattr(model, "pretrained_cfg", None)
    if not isinstance(settings, Mapping) or "mean" not in settings or "std" not in settings:
        return None
    return per_channel(settings["mean"], channels), per_channel(settings["std"], channels)


def per_channel(values: Iterable[float], channels: int) -> tuple[float, ...]:
    listed = tuple(float(value) for value in values)
    return listed if len(listed) == channels else (sum(listed) / len(listed),) * channels


def check_weights(path: str | Path) -> None:
    """Refuses weights that do not exist."""
    if not (file := resolve_weights(path)).is_file():
        raise SfumatoError(
            f"pretrained file {file} does not exist",
            "give the path of a finished run or of a safetensors file, or the word timm",
        )


def _resize_positions(model: nn.Module, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with position embeddings of timm's Vision Transformers resized to this model's number of patches.

    Embeddings of a square grid of another size are interpolated in two dimensions, as for fine-tuning at a higher
    resolution (Dosovitskiy et al. 2021, section 3.2). All other tensors are unchanged.
    """
    new, old = getattr(model, "pos_embed", None), stored.get("pos_embed")
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if not isinstance(new, nn.Parameter) or grid is None or old is None or old.dim() != 3:
        return stored
    prefix = new.shape[1] - grid[0] * grid[1]
    side = math.isqrt(max(0, old.shape[1] - prefix))
    if old.shape == new.shape or old.shape[2] != new.shape[2] or side < 1 or side**2 + prefix != old.shape[1]:
        return stored
    from timm.layers.pos_embed import resample_abs_pos_embed

    return stored | {"pos_embed": resample_abs_pos_embed(old, list(grid), [side, side], num_prefix_tokens=prefix)}


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    check_weights(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise SfumatoError(
            f"pretrained file {path} cannot be read as safetensors: {error}",
            "convert the weights with safetensors.torch.save_file; pickled files are not loaded",
        ) from error


def _explain(keys: list[str], stored: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    def line(key: str) -> str:
        if key not in stored:
            return f"{key} is missing from the file"
        if key not in state:
            return f"{key} is not in the model"
        return f"{key} is {tuple(stored[key].shape)} in the file and {tuple(state[key].shape)} in the model"

    rest = f", and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(line(key) for key in keys[:_SHOWN]) + rest


_NORM = re.compile(r"Norm(Act)?\d?d?$")
WORDS = ("all", "classifier", "norm", "first")
_LISTED = 6


def select_trainable(model: nn.Module, patterns: Sequence[str]) -> None:
    """Sets `requires_grad` for the parameters that match any of the patterns, and clears it for all others.

    Modules whose parameters are all frozen are set to evaluation mode, with their submodules, so that a frozen batch
    norm uses its public statistics.

    Args:
        model: any module; changed in place.
        patterns: `all`; `classifier`; `norm` (every normalisation layer); `first` (the first convolution, or the first
            layer with weights); or a shell pattern of parameter names such as `blocks.3.*`.

    Raises:
        SfumatoError: a pattern without a match, or no pattern.
    """
    parameters = dict(model.named_parameters())
    chosen: set[str] = set()
    for pattern in patterns or ("",):
        matches = _matches(model, pattern, tuple(parameters))
        if not matches:
            listed = ", ".join(list(parameters)[:_LISTED])
            raise SfumatoError(
                f"trainable {pattern!r} matches no parameter of the model",
                f"give {', '.join(WORDS)} or a pattern of parameter names; the first names are {listed}",
            )
        chosen |= matches
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in chosen)
    for module in model.modules():
        inner = list(module.parameters())
        if inner and not any(parameter.requires_grad for parameter in inner):
            module.eval()


def _matches(model: nn.Module, pattern: str, names: tuple[str, ...]) -> set[str]:
    if pattern == "all":
        return set(names)
    if pattern == "classifier":
        return _names_in_modules(classifier_names(model), names)
    if pattern == "norm":
        norms = [path for path, module in model.named_modules() if _NORM.search(type(module).__name__)]
        return _names_in_modules(norms, names)
    if pattern == "first":
        weighted = [path for path, module in model.named_modules() if hasattr(module, "weight")]
        convolutions = [path for path in weighted if isinstance(model.get_submodule(path), nn.modules.conv._ConvNd)]
        return _names_in_modules((convolutions or weighted)[:1], names)
    return {name for name in names if fnmatchcase(name, pattern)}


def _names_in_modules(modules: Sequence[str], names: tuple[str, ...]) -> set[str]:
    return {name for name in names for module in modules if name.startswith(f"{module}.")}


class Trunk(nn.Module):
    """The part of a model before its classifier: images (N, C, H, W) to features (N, D).

    Args:
        model: the complete model. It is not copied.
        head: name of the classifier in the model.
    """

    def __init__(self, model: nn.Module, head: str):
        super().__init__()
        self.model, self.head = model, head

    @functools.cached_property
    def width(self) -> int:
        """D, the number of inputs of the classifier."""
        head = self.model.get_submodule(self.head)
        assert isinstance(head, nn.Linear)
        return head.in_features

    @property
    def preferred_batch_size(self) -> int | None:
        """Preferred number of images per forward pass; None if the model does not state one."""
        return getattr(self.model, "images_at_once", None)

    @functools.cached_property
    def mirror_order(self) -> Tensor | None:
        """For each feature of the mirror image, the equal feature of the image, int64 (D,); None if unknown."""
        own_order = getattr(self.model, "mirror_order", None)
        return None if own_order is None else own_order()

    def forward(self, images: Tensor) -> Tensor:
        """The input of the classifier. `LookupError` unless the classifier is called once, with one tensor."""
        taken: list[Tensor] = []

        def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            taken.extend(inputs)

        hook = self.model.get_submodule(self.head).register_forward_pre_hook(take)
        try:
            self.model(images)
        finally:
            hook.remove()
        if len(taken) != 1:
            raise LookupError(f"{self.head} got {len(taken)} tensors")
        return taken[0]


def trunk_of(model: nn.Module, shape: tuple[int, int, int]) -> Trunk | None:
    """The model's trunk if only its classifier is trained and the model is classifier(trunk(images)), else None.

    This is tested with synthetic classifiers and images, small and large, in the model's own modes and in evaluation
    mode. The features must not depend on the classifier, and nothing may follow the classifier or be random.

    Args:
        model: any module for images of `shape` (C, H, W).
    """
    names = classifier_names(model)
    if len(names) != 1 or not isinstance(model.get_submodule(names[0]), nn.Linear):
        return None
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained or not all(name.startswith(f"{names[0]}.") for name in trained):
        return None
    trials = (_is_trunk(model, names[0], shape, mode=mode, scale=scale) for mode in (True, False) for scale in _SCALES)
    return Trunk(model, names[0]) if all(trials) else None


_SCALES = (1.0, 1e3)


def _is_trunk(model: nn.Module, name: str, shape: tuple[int, int, int], *, mode: bool, scale: float) -> bool:
    """Whether a copy is classifier(trunk(images)), with two classifiers and images of this scale.

    Args:
        mode: whether modules keep their modes; otherwise all are in evaluation mode.
    """
    copied = copy.deepcopy(model)
    tried = Trunk(copied if mode else copied.eval(), name)
    head = tried.model.get_submodule(name)
    device = next(head.parameters()).device
    images = torch.linspace(-1, 1, 2 * shape[0] * shape[1] * shape[2], device=device).mul(scale).reshape(2, *shape)
    seen: list[Tensor] = []
    with torch.no_grad(), fork_rng(device):
        for pace in (1.0, 2.5):
            for parameter in head.parameters():
                waves = torch.linspace(pace, pace * parameter.numel(), parameter.numel(), device=device)
                parameter.copy_(waves.sin().mul(scale).reshape(parameter.shape))
            try:
                features = tried(images)
                logits = tried.model(images)
            except LookupError:
                return False
            if features.shape != (2, tried.width) or not torch.equal(head(features), logits):
                return False
            seen.append(features)
    return torch.equal(*seen)
