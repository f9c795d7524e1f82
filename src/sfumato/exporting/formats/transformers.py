"""Hugging Face transformers: config.json, model.safetensors and preprocessor_config.json."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.data import Transform
from sfumato.exporting.served import ELSEWHERE, Served, each_channel, folded, scoring_code

FILE = "model.safetensors"
CONFIG = "config.json"
PROCESSOR = "preprocessor_config.json"
LIBRARY = "transformers"
USE = """```python
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained(".")
model = AutoModelForImageClassification.from_pretrained(".").eval()
inputs = processor(images=list(records), input_data_format="channels_last", return_tensors="pt")
{output} = model(**inputs).logits{read}  # {shape}
```"""


def pretrained(module: nn.Module) -> nn.Module | None:
    """The transformers (or peft) model that contains all weights of a module; None if there is none."""
    for inner in module.modules():
        if len(list(inner.parameters())) < len(list(module.parameters())):
            return None
        if any(base.__module__.startswith(("transformers.", "peft.")) for base in type(inner).__mro__):
            return inner
    return None


def write(served: Served, folder: Path, about: Mapping[str, Any]) -> None:
    """Writes the files. Adapters of peft are merged into the weights.

    Raises:
        SfumatoError: the model is not an image classifier.
    """
    loaded, transform = served.loaded, served.loaded.transform
    model: Any = copy.deepcopy(pretrained(served.module))
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    classifies = loaded.embedding is None and "ForImageClassification" in type(model).__name__
    if not classifies or not isinstance(transform, Transform):
        raise SfumatoError(f"model {about['model']!r} is not a transformers image classifier", ELSEWHERE)
    classes = list(loaded.classes)
    linear = [one for one in model.modules() if isinstance(one, nn.Linear) and one.out_features == len(classes)]
    folded(served, model, linear[-1] if linear else None)
    model.config.id2label = dict(enumerate(classes))
    model.config.label2id = {name: label for label, name in enumerate(classes)}
    kind = "single_label" if loaded.loss == "softmax" else "multi_label"  # decides how a pipeline reads logits
    model.config.problem_type = f"{kind}_classification"
    model.config.sfumato = dict(about)
    model.config.name_or_path = ""  # might be a path on this machine
    model.save_pretrained(folder)
    (folder / PROCESSOR).write_text(json.dumps(processor(transform), indent=2) + "\n", "utf-8")


def processor(transform: Transform) -> dict[str, Any]:
    """The configuration of AutoImageProcessor: resize the shorter side, center-crop, scale pixels."""
    side = transform.enlarged or transform.size
    resolution = transform.resolution or side
    return {
        "image_processor_type": "BitImageProcessor",  # resizes, crops and scales, for any model
        "do_convert_rgb": transform.channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": side},
        "resample": {"bilinear": 2, "bicubic": 3}[transform.interpolation],  # Pillow's constants
        "do_center_crop": True,
        "crop_size": {"height": resolution, "width": resolution},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": each_channel(transform.mean, transform.channels),
        "image_std": each_channel(transform.std, transform.channels),
    }


def opened(folder: Path, served: Served) -> Callable[[Tensor], Tensor]:
    """Opens the folder as a user would, and returns a function of records.

    If images are enlarged, the run's transform replaces the processor, because the processor rounds to integer levels.
    """
    from transformers import (  # pyright: ignore[reportMissingImports]
        AutoImageProcessor,
        AutoModelForImageClassification,
    )

    transform = served.loaded.transform
    assert isinstance(transform, Transform)
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    prepare = AutoImageProcessor.from_pretrained(folder)

    @torch.no_grad()
    def answer(records: Tensor) -> Tensor:
        if transform.enlarged in (None, transform.size):
            options = {"input_data_format": "channels_last", "return_tensors": "pt"}
            inputs = prepare(images=list(records.numpy()), **options)["pixel_values"]
        else:
            inputs = transform(records)
        logits = model(inputs).logits
        return logits.softmax(-1) if served.loaded.loss == "softmax" else logits.sigmoid()

    return answer


def used(served: Served) -> dict[str, Any]:
    """Values for the placeholders in `USE`."""
    return {"read": scoring_code(served)}
