"""What a model file of ours says of itself: how to build and feed the model, and its statement. It may come from
anybody, so it is looked through before anything is built by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, parse_json, shortened

NAMES_OF_LOSSES = frozenset({"softmax", "sigmoid", "multilabel"})
"""Those of `losses.LOSSES`, known here before torch is imported."""

METADATA = "sfumato"
"""The key under which a model file of ours says what it is."""
FORMAT = 2
OWN_LOOP = "own loop"
"""What a model file calls its kind whose weights come from a training loop of the owner's own."""
LONGEST_SPELLING = 1000
MOST_WORDS = 1 << 22
MOST_WEIGHTS = 1 << 12
"""Members of an ensemble, or weights that a mean is of."""
REQUIRED = ("model", "classes", "transform", "statement", "test_fraction")
OF_IMAGES = ("channels", "size")
"""Required too, but of models of texts, whose transform says all."""


def about_of(metadata: Mapping[str, str] | None, path: str | Path) -> dict[str, Any] | None:
    """What the metadata of a safetensors file say of a model of ours; None for any other file.

    Raises:
        SfumatoError: it is one of ours, and what it says cannot be.
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
    required = REQUIRED if texts else (*REQUIRED, *OF_IMAGES)
    known = _RIGHT if "embedding" in about else _RIGHT | {"classes": lambda value: bool(value) and _texts(value)}
    for name, right in known.items():
        if not right(about[name]) if name in about else name in required:
            found = shortened(repr(about[name])) if name in about else "missing"
            raise SfumatoError(
                f"{path} says of its model that {name} is {found}, which cannot be",
                "restore it from a copy, or train it again",
            )
    return about


def _whole(most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _list_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(one, kinds) for one in value)


_texts, _numbers = _list_of(str), _list_of(int, float)


def _statement(value: Any) -> bool:
    facts = value.get("circumstances", value) if isinstance(value, dict) else None
    return isinstance(facts, dict) and "epsilon" in value and _texts(facts.get("origins", []))


def _transform(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if "tokenizer" in value:
        return all(_whole(MOST_WORDS)(value.get(name)) for name in ("length", "vocabulary"))
    return "mean" not in value or (_numbers(value["mean"]) and _numbers(value.get("std")))


def _spelling(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_SPELLING


def _shares(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(one, float) and 0 < one < 1 for one in value.values())
    )


def _operating_point(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"positive", "threshold", "rule"}:
        return False
    threshold = value["threshold"]
    return (
        isinstance(threshold, float) and 0 < threshold < 1 and all(map(_spelling, (value["positive"], value["rule"])))
    )


def _aggregate(value: Any) -> bool:
    steps = value.get("steps") if isinstance(value, dict) else None
    return isinstance(steps, list) and 1 <= len(steps) <= MOST_WEIGHTS and isinstance(value.get("method"), str)


_RIGHT = {
    "model": _spelling,
    "classes": _texts,
    "channels": _whole(1024),
    "size": _whole(16_384),
    "transform": _transform,
    "statement": _statement,
    "test_fraction": lambda value: value is None or (isinstance(value, (int, float)) and 0 <= value <= 1),
    "features": lambda value: value is None or isinstance(value, dict),
    "trained_on": _texts,
    "loss": lambda value: isinstance(value, str) and value in NAMES_OF_LOSSES,
    "weights": _spelling,
    "user_from": _spelling,
    "embedding": _whole(1 << 16),
    "aggregate": _aggregate,
    "normalisation": _spelling,
    "shares": _shares,
    "prevalence": _shares,
    "operating_point": _operating_point,
    "temperature": lambda value: isinstance(value, float) and 0 < value < float("inf"),
}
