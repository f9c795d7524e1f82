"""A run's model as others open it: the same numbers, without sfumato; all else is refused in one line."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sfumato
from benchmarks.shared.stored import drawn, fill, stored
from sfumato._checks import SfumatoError
from sfumato.data import Tokens, Transform
from sfumato.exporting import exporter, formats
from sfumato.models import Architecture, Ensemble, build_backbone, create_head
from sfumato.models.registry import create_for_texts
from sfumato.privacy import NoGuarantee

CLASSES = ("cat", "dog", "owl")


def model(folder: Path, name: str, *, channels: int = 1, size: int = 8, **about) -> Path:
    module = drawn(name, classes=3, channels=channels, size=size)
    transform = Transform(size=size, channels=channels, mean=(0.4,), std=(0.3,))
    return stored(folder / "model.safetensors", name, module, transform, CLASSES, **about)


def of_texts(folder: Path, name: str) -> Path:
    torch.manual_seed(0)
    module = create_for_texts(name, classes=3, vocabulary=50, length=6)
    fill(module)
    return stored(folder / "model.safetensors", name, module, Tokens(length=6, vocabulary=50), CLASSES)


def test_a_torch_program_opens_without_sfumato_and_gives_what_predict_gives(tmp_path, pictures, by_card, monkeypatch):
    path = model(tmp_path, "linear", channels=3, size=16)
    made = sfumato.export(path, to="torch-export")
    assert made.files == ("model.pt2", "preprocessing.json", "README.md")
    assert made.difference <= 1e-6
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] == "sfumato"]:
            patch.setitem(sys.modules, name, None)
        found = by_card(made.path)["probabilities"].detach()
    torch.testing.assert_close(found, sfumato.load(path).predict(pictures), atol=1e-5, rtol=0)


def test_the_same_export_again_is_the_same_bytes_and_anything_else_there_is_refused(tmp_path):
    path = model(tmp_path, "linear")
    made = sfumato.export(path, to="torch-export", output=tmp_path / "a")
    sfumato.export(path, to="torch-export", output=tmp_path / "a")
    assert str(Path(exporter.__file__).parent).encode() not in (made.path / "model.pt2").read_bytes()
    (made.path / "more").mkdir()
    with pytest.raises(SfumatoError, match=r"more is not part of this export"):
        sfumato.export(path, to="torch-export", output=tmp_path / "a")
    (made.path / "more").rmdir()
    (made.path / "README.md").write_text("mine")
    with pytest.raises(SfumatoError, match=r"README.md already exists"):
        sfumato.export(path, to="torch-export", output=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes").write_text("mine")
    with pytest.raises(SfumatoError, match="notes is not part of this export"):
        sfumato.export(path, to="torch-export", output=tmp_path / "b")


def replaced(monkeypatch, **functions):
    """torch.export with other functions."""
    form = replace(formats.TORCH_EXPORT, **functions)
    monkeypatch.setattr(exporter, "FORMATS", {"torch-export": form})


def test_a_folder_with_another_models_export_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    sfumato.export(model(tmp_path, "linear"), to="torch-export")
    replaced(monkeypatch, write=lambda *given: pytest.fail("made first"))
    with pytest.raises(SfumatoError, match=r"preprocessing.json already exists with other contents"):
        sfumato.export(model(tmp_path, "lenet"), to="torch-export")


def test_what_it_says_of_itself(tmp_path):
    made = sfumato.export(model(tmp_path, "linear"), to="torch-export")
    said = json.loads((made.path / "preprocessing.json").read_text("utf-8"))
    assert said["classes"] == list(CLASSES)
    assert said["statement"] == json.loads(json.dumps(NoGuarantee(published=False).to_dict()))
    assert said["input"] == {"name": "records", "dtype": "uint8", "shape": ["n", 8, 8, 1]}
    inside = {formats.ARCHIVE_ENTRY: ""}
    torch.export.load(made.path / "model.pt2", extra_files=inside)
    assert json.loads(inside[formats.ARCHIVE_ENTRY]) == said
    assert "no privacy guarantee" in (made.path / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [("dictionary", 1, 16), pytest.param("wrn-10-1,form=de2022", 3, 8, marks=pytest.mark.slow)],
)
def test_models_for_images(tmp_path, name, channels, size):
    assert sfumato.export(model(tmp_path, name, channels=channels, size=size), to="torch-export").difference <= 1e-6


def test_a_model_of_several_labels_gives_each_its_own_probability(tmp_path, pictures, by_card):
    path = model(tmp_path, "linear", channels=3, size=16, loss="multilabel")
    found = by_card(sfumato.export(path, to="torch-export").path)["probabilities"].detach()
    torch.testing.assert_close(found, sfumato.load(path).predict(pictures), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["bag", "bilstm"])
def test_models_of_texts(tmp_path, name):
    assert sfumato.export(of_texts(tmp_path, name), to="torch-export").difference <= 1e-6


@pytest.mark.parametrize("to", ["torch-export", "onnx"])
def test_an_embedding_has_length_one(tmp_path, to):
    pytest.importorskip("onnxruntime", reason="pip install 'sfumato[onnx]'") if to == "onnx" else None
    module = drawn("lenet", classes=5, channels=1, size=8)
    path = stored(tmp_path / "model.safetensors", "lenet", module, Transform(size=8, channels=1), (), embedding=5)
    made = sfumato.export(path, to=to)
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1)).astype(np.uint8)
    answer = exporter.FORMATS[to].opened(made.path, None)
    torch.testing.assert_close(answer(torch.from_numpy(images)), sfumato.load(path).embed(images), atol=1e-5, rtol=0)


def test_onnx_opens_without_sfumato(tmp_path, pictures, by_card):
    pytest.importorskip("onnxruntime", reason="pip install 'sfumato[onnx]'")
    path = model(tmp_path, "lenet5", size=12)
    made = sfumato.export(path)
    assert made.files[0] == "model.onnx"
    place = by_card(made.path)
    found = torch.from_numpy(place["probabilities"])
    torch.testing.assert_close(found, sfumato.load(path).predict(pictures), atol=1e-5, rtol=0)
    said = place["session"].get_modelmeta().custom_metadata_map["sfumato"]
    assert json.loads(said)["classes"] == list(CLASSES)
    assert str(Path(exporter.__file__).parent).encode() not in (made.path / "model.onnx").read_bytes()
    before = (made.path / "model.onnx").read_bytes()
    assert (sfumato.export(path, output=tmp_path / "again").path / "model.onnx").read_bytes() == before


def test_the_card_reads_scans_and_greys_of_16_bits_as_the_run_did(tmp_path, scan, monkeypatch, card_code):
    """Values after slope and intercept, by the declared window, inverted where the lowest one is white."""
    pydicom = pytest.importorskip("pydicom")
    values = np.random.default_rng(0).integers(0, 3000, (20, 24)).astype(np.int16)
    tags = {"RescaleSlope": 1, "RescaleIntercept": -1024}
    paths = [scan(tmp_path / "plain.dcm", values, **tags)]
    paths += [scan(tmp_path / "inverse.dcm", values, PhotometricInterpretation="MONOCHROME1", **tags)]
    group, rescale = pydicom.Dataset(), pydicom.Dataset()
    for name, value in tags.items():
        setattr(rescale, name, value)
    group.PixelValueTransformationSequence = pydicom.Sequence([rescale])
    groups = {"SharedFunctionalGroupsSequence": pydicom.Sequence([group])}
    paths += [scan(tmp_path / "enhanced.dcm", values, **groups)]
    Image.fromarray((values // 4).astype(np.uint16)).save(tmp_path / "deep.png")
    Image.fromarray((values // 12).astype(np.uint8)).save(tmp_path / "plain.png")
    paths = [str(path) for path in (*paths, tmp_path / "deep.png", tmp_path / "plain.png")]
    transform = Transform(size=8, channels=1, mean=(0.4,), std=(0.3,), window=(-160, 240))
    module = drawn("linear", classes=3, channels=1, size=8)
    path = stored(tmp_path / "model.safetensors", "linear", module, transform, CLASSES)
    made = sfumato.export(path, to="torch-export")
    place = {"paths": paths}
    with monkeypatch.context() as patch:
        patch.chdir(made.path)
        exec(card_code(made.path), place)
    torch.testing.assert_close(place["probabilities"], sfumato.load(path).predict(paths), atol=1e-5, rtol=0)
    rules = json.loads((made.path / "preprocessing.json").read_text())["before"]
    assert any("MONOCHROME1" in rule for rule in rules)


class Branching(nn.Module):
    """Its forward depends on the values of its inputs, which no graph does."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        return self.head(images.flatten(1)) if images.sum() > 0 else self.head(-images.flatten(1))


class Plain(Branching):
    """A module of one's own."""

    def forward(self, images):
        return self.head(images.flatten(1)).sin()


def test_a_module_of_ones_own(tmp_path):
    path = stored(tmp_path / "model.safetensors", "module", Plain(), Transform(size=8, channels=1), CLASSES)
    assert sfumato.export(path, to="torch-export", model=Plain()).difference <= 1e-6
    with pytest.raises(SfumatoError, match="'module' cannot be exported to torch-export"):
        sfumato.export(path, to="torch-export", model=Branching(), output=tmp_path / "other")


def test_what_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    opened = formats.TORCH_EXPORT.opened
    replaced(monkeypatch, opened=lambda *given: lambda records: opened(*given)(records) + 2e-5)
    with pytest.raises(SfumatoError, match=r"differs from the run's model by 2.0e-05"):
        sfumato.export(model(tmp_path, "linear"), to="torch-export")
    assert not (tmp_path / "export-torch-export").exists()


def test_refusals(tmp_path, monkeypatch):
    path = model(tmp_path, "linear")
    with pytest.raises(SfumatoError, match="to must be one of"):
        sfumato.export(path, to="coreml")
    with pytest.raises(SfumatoError, match="does not exist"):
        sfumato.export(tmp_path / "none", to="torch-export")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "onnx" in name else found(name))
    with pytest.raises(
        SfumatoError, match=r"--to onnx needs onnx, onnxscript, onnxruntime \(not.*pip install 'sfumato\[onnx\]'"
    ):
        sfumato.export(path)


def test_aggregates_of_outputs_are_one_graph_beside_their_file(tmp_path):
    how = {"method": "opa", "steps": [1, 2]}
    members = [drawn("linear", classes=3, channels=3, size=8, seed=seed) for seed in (0, 1)]
    path, several = tmp_path / "several.safetensors", Ensemble(members, method="opa")
    stored(path, "linear", several, Transform(size=8, channels=3), CLASSES, aggregate=how)
    made = sfumato.export(path, to="torch-export")
    assert made.difference <= 1e-6
    assert made.path == tmp_path / "several-torch-export"


def test_a_head_on_a_backbone_is_one_graph_and_names_it(tmp_path, pictures, by_card):
    torch.manual_seed(0)
    architecture = Architecture(name="timm:test_vit", size=32)
    backbone = build_backbone(architecture)
    module = create_head("head", classes=3, width=backbone.width, backbone=backbone)
    fill(module)
    features = {"width": backbone.width, "digest": "0" * 64, "backbone": architecture.to_dict()}
    cut = Transform(size=24, channels=3, mean=(0.4,), std=(0.3,), enlarged=40, resolution=32, interpolation="bicubic")
    path = stored(tmp_path / "model.safetensors", "head", module, cut, CLASSES, features=features)
    made = sfumato.export(path, to="torch-export")
    found = by_card(made.path)["probabilities"].detach()
    torch.testing.assert_close(found, sfumato.load(path).predict(pictures), atol=1e-5, rtol=0)
    said = json.loads((made.path / "preprocessing.json").read_text("utf-8"))
    assert (said["model"], said["backbone"]) == ("head", "timm:test_vit")
    assert "`head on timm:test_vit`" in (made.path / "README.md").read_text("utf-8")
