"""A folder of timm is opened by timm alone, with the head of a cache in its classifier's place; all else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import sfumato
from benchmarks.shared.stored import drawn, fill, stored
from sfumato._checks import SfumatoError
from sfumato.data import Transform
from sfumato.models import Architecture, Ensemble, build_backbone, create_head

CLASSES = ("cat", "dog", "owl")
READ = {
    "temperature": 1.7,
    "shares": {"cat": 0.2, "dog": 0.3, "owl": 0.5},
    "prevalence": {"cat": 0.6, "dog": 0.3, "owl": 0.1},
}
CUT = Transform(size=24, channels=3, mean=(0.4,), std=(0.3,), enlarged=40, resolution=32, interpolation="bicubic")


def model(folder: Path, name: str, size: int, **about) -> Path:
    module = drawn(name, classes=3, channels=3, size=size)
    transform = Transform(size=size, channels=3, mean=(0.4,), std=(0.3,))
    return stored(folder / "model.safetensors", name, module, transform, CLASSES, **(READ | about))


def headed(folder: Path, head: str, name: str = "timm:test_vit", whitened_by: str | None = None, **about) -> Path:
    """A head that was trained on features, on its backbone."""
    torch.manual_seed(0)
    architecture = Architecture(name=name, size=32, whitened_by=whitened_by)
    backbone = build_backbone(architecture)
    module = create_head(head, classes=3, width=backbone.width, backbone=backbone)
    fill(module)
    if whitened_by is not None:
        module.backbone.whitening.normal_()
    features = {"width": backbone.width, "digest": "0" * 64, "backbone": architecture.to_dict()}
    return stored(folder / "model.safetensors", head, module, CUT, CLASSES, features=features, **about)


@pytest.mark.parametrize(("name", "size"), [("timm:test_vit", 32), ("timm:test_resnet", 24)])
def test_it_opens_by_timm_alone(tmp_path, pictures, by_card, name, size):
    path = model(tmp_path, name, size)
    made = sfumato.export(path, to="timm")
    found = by_card(made.path)["probabilities"].detach()
    torch.testing.assert_close(found, sfumato.load(path).predict(pictures), atol=1e-5, rtol=0)
    assert json.loads((made.path / "config.json").read_text("utf-8"))["label_names"] == list(CLASSES)


def test_each_of_several_labels_is_read_by_its_own_sigmoid(tmp_path, pictures, by_card):
    module = drawn("timm:test_vit", classes=3, channels=3, size=32)
    path = tmp_path / "model.safetensors"
    stored(path, "timm:test_vit", module, Transform(size=32, channels=3), CLASSES, loss="multilabel", temperature=1.7)
    found = by_card(sfumato.export(path, to="timm").path)["probabilities"].detach()
    torch.testing.assert_close(found, sfumato.load(path).predict(pictures), atol=1e-5, rtol=0)


@pytest.mark.parametrize("whitened_by", [None, "0" * 64])
def test_a_linear_layer_on_a_backbone_of_timm_becomes_its_classifier(tmp_path, pictures, by_card, whitened_by):
    path = headed(tmp_path, "head", whitened_by=whitened_by, **READ)
    made = sfumato.export(path, to="timm")
    found = by_card(made.path)["probabilities"].detach()
    torch.testing.assert_close(found, sfumato.load(path).predict(pictures), atol=1e-5, rtol=0)
    said = json.loads((made.path / "preprocessing.json").read_text("utf-8"))
    assert said["model"] == "head"
    assert said["backbone"] == "timm:test_vit"
    assert "`head on timm:test_vit`" in (made.path / "README.md").read_text("utf-8")


def test_a_head_that_does_more_is_no_classifier_of_timm(tmp_path):
    for head in ("head,hidden=4", "head,norm=12.5"):
        with pytest.raises(SfumatoError, match=f"'{head}' has more than the single linear layer.*--to onnx"):
            sfumato.export(headed(tmp_path, head, "timm:test_resnet"), to="timm")


def test_other_models_are_refused(tmp_path):
    path = stored(
        tmp_path / "model.safetensors",
        "linear",
        drawn("linear", classes=3, channels=1, size=8),
        Transform(size=8, channels=1),
        CLASSES,
    )
    for to in ("timm", "huggingface"):
        with pytest.raises(SfumatoError, match=r"'linear' is not a model of timm.*--to onnx"):
            sfumato.export(path, to=to)


def test_an_ensemble_is_several_networks(tmp_path):
    how = {"method": "opa", "steps": [1, 2]}
    members = [drawn("timm:test_vit", classes=3, channels=3, size=32, seed=seed) for seed in (0, 1)]
    path = stored(
        tmp_path / "several.safetensors",
        "timm:test_vit",
        Ensemble(members, method="opa"),
        Transform(size=32, channels=3),
        CLASSES,
        aggregate=how,
    )
    with pytest.raises(SfumatoError, match=r"an ensemble has several networks"):
        sfumato.export(path, to="timm")
    members = [drawn("linear", classes=3, channels=3, size=8, seed=seed) for seed in (0, 1)]
    stored(path, "linear", Ensemble(members, method="opa"), Transform(size=8, channels=3), CLASSES, aggregate=how)
    made = sfumato.export(path, to="torch-export")
    assert made.difference <= 1e-6
    assert made.path == tmp_path / "several-torch-export"
