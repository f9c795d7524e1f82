"""A choice that is given has an effect or is refused: the one loop over the choices of a training."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from sfumato import SfumatoError

CHOICES: dict[str, Any] = {
    "normalisation": "group",
    "public_data": "digits",
    "public_examples": 5,
    "class_prevalence": {"0": 0.2, "1": 0.4, "2": 0.4},
    "ema": 0.05,
    "ema_form": "constant",
    "aggregate": "ema",
    "aggregate_from": 1,
    "aggregate_last": 2,
    "aggregate_restart": True,
    "pretrained": "elsewhere",
    "pretrained_weights": "last",
    "head": "pretrained",
    "head_deviation": 0.5,
    "head_bias": -2.0,
    "loss": "sigmoid",
    "pretrained_rate": 0.5,
    "trainable": ("*bias",),
    "optimizer": "adam",
    "learning_rate": 0.3,
    "momentum": 0.3,
    "weight_decay": 0.3,
    "schedule": "cosine",
    "warmup": 2,
    "views": 2,
    "shift": 2,
    "flip": True,
    "zoom": 1.5,
    "crop_area": 0.5,
    "noise": "secure",
}
"""Of each choice of `Settings` a value that is no default."""
BUDGET: dict[str, Any] = {
    "epsilon": 3.0,
    "accountant": "rdp",
    "delta": 1e-4,
    "noise_multiplier": 2.0,
    "batch_size": 11,
    "steps": 4,
    "max_norm": 0.3,
    "mechanism": "banded",
    "participation": "fixed-order",
    "adjacency": "zero-out",
    "order": "position",
    "groups": 2,
    "largest_batch": 15,
    "bands": 2,
    "steps_per_tree": 2,
    "complete_trees": True,
    "drift": 2,
    "drift_shape": "triangle",
    "drift_groups": ("0",),
    "drift_size": 30,
    "unit": "user",
    "per_user": 2,
    "per_step": 1,
}
"""The same of what only a private training has."""


def spots(folder: Path, side: int) -> str:
    """An archive of 60 training and 30 test images of random greys, of three classes and of users with three each."""
    place, numbers = folder / "spots.npz", np.random.default_rng(0)
    train, test = np.arange(60) % 3, np.arange(30) % 3
    images = [numbers.integers(0, 255, (count, side, side, 1), dtype=np.uint8) for count in (60, 30)]
    users = {"users_train": np.arange(60) // 3, "users_test": 100 + np.arange(30) // 3}
    np.savez(place, x_train=images[0], y_train=train, x_test=images[1], y_test=test, **users)
    return f"npz:{place}"


def left_by(place: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What a run has come to: its weights, and its record but for what is another in each run."""
    record = json.loads((place / "settings.json").read_text())
    own = {key: value for key, value in record.items() if key not in ("run", "request", "places", "environment")}
    if (place / "plan.json").exists():
        own["plan"] = json.loads((place / "plan.json").read_text())
    return load_file(place / "model.safetensors"), own


def refused(
    train: Callable[..., object], choices: Mapping[str, Any], place: Path, *, recorded: Collection[str] = ()
) -> dict[str, str]:
    """By which words each choice is refused that is; all others must change the result.

    Args:
        train: trains in a directory, by further choices.
        recorded: those that may change the record alone.
    """
    train(place / "plain")
    (plain, record), ignored, found = left_by(place / "plain"), [], {}
    for name, value in choices.items():
        try:
            train(place / name, **{name: value})
        except SfumatoError as error:
            found[name] = str(error)
            continue
        changed, its_record = left_by(place / name)
        moved = plain.keys() != changed.keys() or any(
            plain[one].shape != changed[one].shape or not torch.equal(plain[one], changed[one]) for one in plain
        )
        if not moved and not (name in recorded and record != its_record):
            ignored.append(name)
    assert not ignored, ", ".join(ignored)
    return found
