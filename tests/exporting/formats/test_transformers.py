"""A folder of transformers is opened by transformers alone, and gives what `predict` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sfumato
from benchmarks.shared.stored import fill, stored
from sfumato._checks import SfumatoError
from sfumato.data import Transform

transformers: Any = pytest.importorskip("transformers", reason="pip install transformers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers' own

CLASSES = ("cat", "dog", "owl")
READ = {
    "temperature": 1.7,
    "shares": {"cat": 0.2, "dog": 0.3, "owl": 0.5},
    "prevalence": {"cat": 0.6, "dog": 0.3, "owl": 0.1},
}


class Logits(nn.Module):
    """A model of transformers as a module from images to logits."""

    def __init__(self, vit: nn.Module):
        super().__init__()
        self.vit = vit

    def forward(self, images):
        return self.vit(images).logits


def vit(channels: int = 3) -> Any:
    torch.manual_seed(0)
    widths = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**widths, image_size=16, patch_size=4, num_channels=channels, num_labels=3)
    model = transformers.ViTForImageClassification(config)
    fill(model)
    return model


def saved(folder: Path, module: nn.Module, *, channels: int = 3, **about) -> Path:
    transform = Transform(size=16, channels=channels, mean=(0.4,), std=(0.3,))
    return stored(folder / "model.safetensors", "module", module, transform, CLASSES, **about)


@pytest.mark.parametrize("channels", [1, 3])
def test_it_opens_by_transformers_alone(tmp_path, pictures, by_card, channels):
    module = Logits(vit(channels))
    path = saved(tmp_path, module, channels=channels, **READ)
    made = sfumato.export(path, to="huggingface", model=module)
    place = by_card(made.path)
    own = sfumato.load(path, model=module).predict(pictures)
    torch.testing.assert_close(place["probabilities"].detach(), own, atol=1e-5, rtol=0)
    assert place["model"].config.id2label == dict(enumerate(CLASSES))
    said = (made.path / "README.md").read_text("utf-8")
    assert "library_name: transformers" in said
    assert "promises nothing" in said


def test_a_pipeline_reads_images_and_the_labels(tmp_path):
    module = Logits(vit())
    path = saved(tmp_path, module, loss="multilabel")
    made = sfumato.export(path, to="huggingface", model=module)
    from PIL import Image

    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    classify = transformers.pipeline("image-classification", str(made.path), device="cpu")
    own = sfumato.load(path, model=module).predict(images)
    for image, expected in zip(images, own, strict=True):
        found = {one["label"]: one["score"] for one in classify(Image.fromarray(image), top_k=3)}
        torch.testing.assert_close(torch.tensor([found[name] for name in CLASSES]), expected, atol=1e-5, rtol=0)


def test_a_model_that_gives_its_logits_with_a_name_and_adapters_that_are_merged(tmp_path):
    peft: Any = pytest.importorskip("peft", reason="pip install peft")
    adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    module = peft.get_peft_model(vit(), adapters)
    fill(module)
    made = sfumato.export(saved(tmp_path, module), to="huggingface", model=module)
    model = transformers.AutoModelForImageClassification.from_pretrained(made.path)
    assert not any("lora" in name for name in model.state_dict())
    assert any("lora" in name for name in module.state_dict())


def test_no_path_of_this_machine_is_in_it(tmp_path):
    module = vit()
    module.config.name_or_path = str(tmp_path)
    made = sfumato.export(saved(tmp_path, Logits(module)), to="huggingface", model=Logits(module))
    for name in made.files:
        assert str(tmp_path).encode() not in (made.path / name).read_bytes()


def test_what_is_around_it_and_trained_is_not_lost(tmp_path):
    class More(Logits):
        def __init__(self, inner):
            super().__init__(inner)
            self.more = nn.Linear(3, 3)

        def forward(self, images):
            return self.more(super().forward(images))

    module = More(vit())
    with pytest.raises(SfumatoError, match="is not a model of timm or transformers"):
        sfumato.export(saved(tmp_path, module), to="huggingface", model=module)


def test_an_encoder_is_no_classifier(tmp_path):
    module = transformers.ViTModel(vit().config)
    path = saved(tmp_path, module)
    with pytest.raises(SfumatoError, match="is not a transformers image classifier"):
        sfumato.export(path, to="huggingface", model=module)
    assert "sfumato" not in json.dumps(module.config.to_dict())
