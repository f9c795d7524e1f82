"""What a model file says of itself may be anything: it is refused in one line before anything is built by it."""

import json

import pytest
import torch
from safetensors.torch import save_file

import sfumato
from sfumato import SfumatoError, models
from sfumato.data import Transform
from sfumato.models import METADATA, parse_description
from sfumato.models.description import REQUIRED

RIGHT = {
    "format": 2,
    "model": "linear",
    "classes": ["a", "b"],
    "channels": 1,
    "size": 8,
    "transform": Transform(size=8, channels=1, mean=[0.5], std=[0.5]).to_dict(),
    "loss": "softmax",
    "statement": {"epsilon": None, "origins": [], "filtered": False},
    "trained_on": [],
    "test_fraction": 0.2,
}

HOSTILE_CONSTANTS = (
    {"std": [1e-300]},
    {"std": [float("nan")]},
    {"std": [0.5, 0.5]},
    {"std": 1e-300},
    {"mean": [float("inf")]},
    {"mean": [10**400]},
    {"resolution": 10**6, "enlarged": 10**6},
)


def written(path, **changes) -> str:
    metadata = {METADATA: json.dumps(RIGHT | changes)}
    save_file({"weight": torch.zeros(2, 64), "bias": torch.zeros(2)}, path, metadata=metadata)
    return str(path)


def test_what_is_no_model_of_ours_says_nothing():
    for metadata in (None, {}, {METADATA: "{"}, {METADATA: '["statement"]'}, {METADATA: "[" * 100_000}):
        assert parse_description(metadata, "a") is None
    assert parse_description({METADATA: json.dumps(RIGHT)}, "a") == RIGHT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("model", value) for value in (["linear"], None, "linear,a=" + "-" * 100_000)),
        *(("size", value) for value in (10**9, "8", True)),
        *(("classes", value) for value in ([], [1])),
        *(("transform", value) for value in (None, {"mean": [0.5]}, {"mean": "a", "std": [1]})),
        *(("statement", value) for value in (None, {}, {"epsilon": 1, "circumstances": 5})),
        *(("statement", {"epsilon": 1, **facts}) for facts in ({"origins": 7, "filtered": False}, {"origins": []})),
        ("trained_on", None),
        ("features", ["a"]),
        ("channels", -1),
        ("test_fraction", "a"),
        ("user_from", ["folder"]),
        ("size", 16_384),
        ("size", 16),
        ("channels", 3),
        *(("transform", RIGHT["transform"] | changed) for changed in HOSTILE_CONSTANTS),
        ("features", {"width": 8, "digest": "", "backbone": {"name": "timm:resnet10t", "size": 10**5}}),
        ("features", {"width": 8, "digest": "", "backbone": {"name": "timm:resnet10t", "whitened_by": 7}}),
        ("features", {"width": 8, "digest": "", "backbone": {"size": 32}}),
        ("normalisation", 5),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path, name, value):
    path = written(tmp_path / "a.safetensors", **{name: value})
    for use in (lambda: sfumato.load(path), lambda: models.read_description(tmp_path / "a.safetensors")):
        with pytest.raises(SfumatoError, match=f"says of its model that {name} is") as refusal:
            use()
        assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("name", ["\x1b]0;owned\x07", "a\nother.png  benign", "\u202eesaesid"])
def test_texts_that_forge_what_is_shown_are_refused_wherever_they_stand(tmp_path, name):
    places = {"classes": ["a", name]}, {"statement": RIGHT["statement"] | {"plain": [{name: 1}]}}, {"further": [name]}
    for changes in places:
        with pytest.raises(SfumatoError, match="says") as refusal:
            sfumato.load(written(tmp_path / "a.safetensors", **changes))
        assert str(refusal.value).isprintable()


@pytest.mark.parametrize("model", ["wrn-6000004-1", "linear", "timm:vit_tiny_patch16_224,depth=1000000"])
def test_a_network_that_is_far_larger_than_the_file_is_refused_before_it_is_built(tmp_path, model):
    size = 1024 if model == "linear" else 32
    classes = [f"{number}" for number in range(1000 if model == "linear" else 2)]
    shape = {"size": size, "channels": 3}
    changes = {"model": model, "classes": classes, "transform": RIGHT["transform"] | shape, **shape}
    with pytest.raises(SfumatoError, match="far larger than the 2 tensors"):
        sfumato.load(written(tmp_path / "a.safetensors", **changes))


@pytest.mark.parametrize("name", [name for name in REQUIRED if name != "statement"])
def test_what_is_missing_is_refused_by_name(name):
    about = {other: value for other, value in RIGHT.items() if other != name}
    with pytest.raises(SfumatoError, match=f"a says of its model that {name} is missing"):
        parse_description({METADATA: json.dumps(about)}, "a")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "wrn-16-99999999"},
        {"features": {}},
        {"features": {"width": "a", "digest": "", "backbone": None}},
        {"features": {"width": 8, "digest": "", "backbone": {"name": "timm:resnet10t", "odd": 1}}},
    ],
)
def test_what_nothing_can_be_built_by_is_refused(tmp_path, changes):
    with pytest.raises(SfumatoError):
        sfumato.load(written(tmp_path / "a.safetensors", **changes))


def test_a_head_on_features_of_torchvision_names_no_code_of_its_own(tmp_path):
    backbone = models.Architecture(name="torchvision:squeezenet1_1", size=32)
    features = {"width": 512, "digest": "", "backbone": backbone.to_dict()}
    with pytest.raises(SfumatoError, match="do not fit the model"):  # it is built, and only the weights are made up
        sfumato.load(written(tmp_path / "a.safetensors", model="head", features=features, channels=3, size=32))
