"""Selects the trained parameters: all, the classifier, normalisation layers, or any by a pattern of names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.models.weights.pretrained import classifier_names

_NORM = re.compile(r"Norm(Act)?\d?d?$")
WORDS = ("all", "classifier", "norm", "first")
_SHOWN = 6


def select(model: nn.Module, patterns: Sequence[str]) -> None:
    """Sets `requires_grad` for the parameters that match any of the patterns, and clears it for all others.

    Modules whose parameters are all frozen are set to evaluation mode, with their submodules, so that a frozen batch
    norm uses its public statistics.

    Args:
        model: any module; changed in place.
        patterns: `all`; `classifier`; `norm` (every normalisation layer); `first` (the first convolution, or the first
            layer with weights); or a shell pattern of parameter names such as `blocks.3.*`.

    Raises:
        SfumatoError: a pattern without a match, or no patterns.
    """
    if not patterns or isinstance(patterns, str):
        raise SfumatoError(
            f"trainable must be a list of {', '.join(WORDS)} or patterns, got {patterns!r}", "give all, or classifier"
        )
    parameters = dict(model.named_parameters())
    chosen: set[str] = set()
    for pattern in patterns:
        matches = _matches(model, pattern, tuple(parameters))
        if not matches:
            listed = ", ".join(list(parameters)[:_SHOWN])
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
        return _below(classifier_names(model), names)
    if pattern == "norm":
        return _below([path for path, module in model.named_modules() if _NORM.search(type(module).__name__)], names)
    if pattern == "first":
        weighted = [path for path, module in model.named_modules() if hasattr(module, "weight")]
        convolutions = [path for path in weighted if isinstance(model.get_submodule(path), nn.modules.conv._ConvNd)]
        return _below((convolutions or weighted)[:1], names)
    return {name for name in names if fnmatchcase(name, pattern)}


def _below(modules: Sequence[str], names: tuple[str, ...]) -> set[str]:
    return {name for name in names for module in modules if name.startswith(f"{module}.")}
