"""The description in a model file of sfumato: how to build and feed the model, and its statement. The file may come
from anybody, so the description is validated before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, parse_json, shortened, unwritable_reason

NAMES_OF_LOSSES = frozenset({"softmax", "sigmoid", "multilabel", "next-word"})
"""The names in `losses.LOSSES`, without importing torch."""

METADATA = "sfumato"
"""Key of the description in a model file's metadata."""
FORMAT = 2
OWN_LOOP = "own loop"
"""The kind of a model file whose weights come from the owner's own training loop."""
LONGEST_SPELLING = 1000
LARGEST_SIDE = 1 << 12
"""Pixels on a side. A forward pass of one blank image must fit in memory."""
FARTHEST_MEAN, SMALLEST_STD = 1e3, 1e-6
"""For pixels from 0 to 1. Beyond these bounds, normalised float32 pixels overflow or are all equal."""
MOST_WORDS = 1 << 22
MOST_WEIGHTS = 1 << 12
"""Largest number of members of an ensemble, or of weights in a mean."""
REQUIRED = ("model", "classes", "transform", "loss", "statement", "test_fraction", "trained_on")
IMAGE_FIELDS = ("channels", "size")
"""Also required, except for models of texts, whose transform contains everything."""


def parse_description(metadata: Mapping[str, str] | None, path: str | Path) -> dict[str, Any] | None:
    """The description in the metadata of a safetensors file; None for files that sfumato did not write.

    Raises:
        SfumatoError: an invalid description.
    """
    try:
        about = parse_json((metadata or {})[METADATA])
    except (KeyError, ValueError):
        return None
    if not isinstance(about, dict) or "statement" not in about:
        return None
    if about.get("kind") == OWN_LOOP:
        raise SfumatoError(
            f"{path} has the weights of a module that a loop of your own has trained, and does not say how to build it",
            "build the module, and give safetensors.torch.load_file of it to load_state_dict",
        )
    transform = about.get("transform")
    texts = isinstance(transform, dict) and "tokenizer" in transform
    required = REQUIRED if texts else (*REQUIRED, *IMAGE_FIELDS)
    if (text := _unwritable(about)) is not None:
        raise SfumatoError(
            f"{path} says {shortened(repr(text))}, which {unwritable_reason(text)}",
            "do not use it, unless you wrote it",
        )
    rules = _RIGHT if "embedding" in about else _RIGHT | {"classes": lambda value: bool(value) and _texts(value)}
    for name, right in rules.items():
        if not right(about[name]) if name in about else name in required:
            value = shortened(repr(about[name])) if name in about else "missing"
            raise _cannot_be(path, name, value)
    if isinstance(transform, dict) and not texts and about.get("features") is None:
        for name in IMAGE_FIELDS:
            if transform.get(name, about[name]) != about[name]:
                raise _cannot_be(path, name, f"{about[name]}, and of its images {transform[name]!r}")
    return about


def _cannot_be(path: str | Path, name: str, value: str) -> SfumatoError:
    return SfumatoError(
        f"{path} says of its model that {name} is {value}, which cannot be", "restore it from a copy, or train it again"
    )


def _unwritable(value: Any) -> str | None:
    """The first text within a value that could forge the output of a terminal or page; None if none."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next((text for text in map(_unwritable, value) if text is not None), None)
    return value if isinstance(value, str) and unwritable_reason(value) is not None else None


def _is_integer_up_to(most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _list_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(entry, kinds) for entry in value)


_texts, _numbers = _list_of(str), _list_of(int, float)


def _statement(value: Any) -> bool:
    facts = value.get("circumstances", value) if isinstance(value, dict) else None
    return isinstance(facts, dict) and "epsilon" in value and _texts(facts.get("origins")) and "filtered" in facts


def _transform(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if "tokenizer" in value:
        return all(_is_integer_up_to(MOST_WORDS)(value.get(name)) for name in ("length", "vocabulary"))
    constants = [value.get(name, []) for name in ("mean", "std")]
    if not all(_numbers(constant) or isinstance(constant, (int, float)) for constant in constants):
        return False
    mean, std = (constant if isinstance(constant, list) else [constant] for constant in constants)
    return (
        len(mean) == len(std)
        and all(abs(number) <= FARTHEST_MEAN for number in mean)
        and all(SMALLEST_STD <= number <= FARTHEST_MEAN for number in std)
        and all(
            _is_integer_up_to(LARGEST_SIDE)(value[name])
            for name in ("resolution", "enlarged")
            if value.get(name) is not None
        )
    )


def _features(value: Any) -> bool:
    backbone = value.get("backbone") if isinstance(value, dict) else None
    if not isinstance(backbone, dict):
        return backbone is None and (value is None or isinstance(value, dict))
    texts = _spelling(backbone.get("name")) and _spelling(backbone.get("whitened_by", ""))
    return texts and all(_RIGHT[name](backbone[name]) for name in IMAGE_FIELDS if name in backbone)


def _spelling(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_SPELLING


def _shares(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(share, float) and 0 < share < 1 for share in value.values())
    )


def _aggregate(value: Any) -> bool:
    steps = value.get("steps") if isinstance(value, dict) else None
    return isinstance(steps, list) and 1 <= len(steps) <= MOST_WEIGHTS and isinstance(value.get("method"), str)


_RIGHT = {
    "model": _spelling,
    "classes": _texts,
    "channels": _is_integer_up_to(1024),
    "size": _is_integer_up_to(LARGEST_SIDE),
    "transform": _transform,
    "statement": _statement,
    "test_fraction": lambda value: value is None or (isinstance(value, (int, float)) and 0 <= value <= 1),
    "features": _features,
    "trained_on": _texts,
    "loss": lambda value: isinstance(value, str) and value in NAMES_OF_LOSSES,
    "weights": _spelling,
    "user_from": _spelling,
    "embedding": _is_integer_up_to(1 << 16),
    "aggregate": _aggregate,
    "normalisation": _spelling,
    "shares": _shares,
}
