"""A folder of transformers is opened by transformers alone, and gives what `predict` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def test_a_model_that_gives_its_logits_with_a_name_and_adapters_that_are_merged(tmp_path):
    peft: Any = pytest.importorskip("peft", reason="pip install peft")
    adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    module = peft.get_peft_model(vit(), adapters)
    fill(module)
    made = sfumato.export(saved(tmp_path, module), to="huggingface", model=module)
    model = transformers.AutoModelForImageClassification.from_pretrained(made.path)
    assert not any("lora" in name for name in model.state_dict())
    assert any("lora" in name for name in module.state_dict())


def test_an_encoder_is_no_classifier(tmp_path):
    module = transformers.ViTModel(vit().config)
    path = saved(tmp_path, module)
    with pytest.raises(SfumatoError, match="is not a transformers image classifier"):
        sfumato.export(path, to="huggingface", model=module)
    assert "sfumato" not in json.dumps(module.config.to_dict())
