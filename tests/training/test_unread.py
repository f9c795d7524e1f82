"""No choice of a training is taken and ignored, whatever kind of run it is given to."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sfumato
from sfumato import RunKey, SfumatoError
from sfumato.experiment import Experiment

CHANGED = {
    "epsilon": 3.0,
    "delta": 1e-4,
    "noise_multiplier": 2.0,
    "batch_size": 11,
    "steps": 4,
    "max_norm": 0.3,
    "start": 5,
    "period": 2,
    "noise": "secure",
    "mechanism": "banded",
    "participation": "fixed-order",
    "adjacency": "zero-out",
    "order": "position",
    "groups": 2,
    "largest_batch": 15,
    "bands": 2,
    "buffers": 2,
    "steps_per_tree": 2,
    "complete_trees": True,
    "drift": 2,
    "drift_shape": "triangle",
    "drift_groups": ("0",),
    "drift_size": 30,
    "unit": "user",
    "per_user": 2,
    "drawn": "users",
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
    "head": "zeros",
    "head_deviation": 0.5,
    "head_bias": False,
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
    "zoom": 0.5,
    "crop_area": 0.5,
}
"""Of each choice a value that is no default."""
RECORDED = {"delta", "adjacency", "largest_batch", "mechanism", "steps_per_tree"}
"""What says what is promised, and need not move a weight; noise of one band is that of
none, and another tree begins as the first one goes on."""
KINDS: dict[str, dict[str, Any]] = {
    "head": {"model": "linear"},
    "fixed order": {"model": "linear", "participation": "fixed-order", "mechanism": "tree", "adjacency": "zero-out"},
    "momentum": {"model": "linear", "optimizer": "momentum", "schedule": "cosine", "ema": 0.9},
}


def test_every_choice_is_tried():
    assert {one.name for one in fields(Experiment)} - {"model", "seed"} == set(CHANGED)


@pytest.fixture(autouse=True)
def one_key(monkeypatch):
    """Else every choice would change the noise, since a seed's key depends on all of them."""
    monkeypatch.setattr(RunKey, "from_seed", classmethod(lambda cls, seed, context="": cls(bytes(range(32)))))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    place, numbers = tmp_path_factory.mktemp("spots") / "spots.npz", np.random.default_rng(0)
    train, test = np.arange(60) % 3, np.arange(30) % 3
    images = [numbers.integers(0, 255, (count, 16, 16, 1), dtype=np.uint8) for count in (60, 30)]
    users = {"users_train": np.arange(60) // 3, "users_test": 100 + np.arange(30) // 3}
    np.savez(place, x_train=images[0], y_train=train, x_test=images[1], y_test=test, **users)
    return sfumato.open_source(f"npz:{place}", owner_key=sfumato.owner_key())


def trained(source, place, **choices):
    given = {"noise_multiplier": 1.0, "delta": 1e-3, "batch_size": 12, "steps": 3, "learning_rate": 0.5, "ema": 0.0}
    given |= choices
    given = {name: value for name, value in given.items() if value is not None}
    how = {"seed": 1, "threads": 1, "device": "cpu", "keep": 0, "averaging": None}
    sfumato.train(given.pop("model"), source, directory=place, **how, **given)
    record = json.loads((place / "settings.json").read_text())
    own = {key: value for key, value in record.items() if key not in ("run", "request", "places", "environment")}
    own["plan"] = json.loads((place / "plan.json").read_text())
    return load_file(place / "model.safetensors"), own


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "head"]


@pytest.mark.parametrize("kind", ["head", *SLOW])
def test_a_choice_that_is_given_changes_the_result_or_is_refused(source, tmp_path, kind):
    plain, record = trained(source, tmp_path / "plain", **KINDS[kind])
    ignored, refused = [], set()
    for name, value in CHANGED.items():
        if KINDS[kind].get(name) == value:
            continue
        asked = KINDS[kind] | {name: value}
        if name == "epsilon":
            asked["noise_multiplier"] = None
        try:
            changed, its_record = trained(source, tmp_path / name, **asked)
        except SfumatoError:
            refused.add(name)
            continue
        moved = plain.keys() != changed.keys() or any(
            plain[one].shape != changed[one].shape or not torch.equal(plain[one], changed[one]) for one in plain
        )
        if not moved and not (name in RECORDED and record != its_record):
            ignored.append(name)
    assert not ignored, ", ".join(ignored)
    assert len(refused) < 0.8 * len(CHANGED), "or nothing would be tried"
