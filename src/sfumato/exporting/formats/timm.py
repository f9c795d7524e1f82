"""A folder as the Hugging Face hub holds timm's models: config.json and model.safetensors."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError
from sfumato.data import Transform
from sfumato.exporting.served import Served
from sfumato.models.name import parse
from sfumato.models.networks import zoo

FILE = "model.safetensors"
CONFIG = "config.json"
LIBRARY = "timm"
NEEDS: tuple[str, ...] = ()
USE = """```python
import timm
import torch

model = timm.create_model("local-dir:.", pretrained=True).eval()
constants = [torch.tensor(numbers).reshape(1, -1, 1, 1) for numbers in ({mean}, {std})]
inputs = (torch.from_numpy(records).permute(0, 3, 1, 2) / 255 - constants[0]) / constants[1]
{output} = model(inputs){read}  # {shape}
```"""
_ELSEWHERE = "export it --to onnx, which takes any model"


def write(served: Served, folder: Path, about: Mapping[str, Any]) -> None:
    """Write the two files into a folder.

    A temperature and a shift of classes' shares are worked into the last layer: (W / T, b / T + offsets).

    Errors: `SfumatoError` for a network that is not built by timm alone.
    """
    loaded, spelling = served.loaded, str(about["model"])
    transform = loaded.transform
    if not spelling.startswith(zoo.PREFIX) or not isinstance(transform, Transform):
        raise SfumatoError(f"model {spelling!r} is not built by timm, whose folders hold models of timm", _ELSEWHERE)
    name, options = parse(spelling)
    options = {key: value for key, value in options.items() if key != "skipinit"}  # where gains start, no more
    module = _read_by_softmax(served)
    weights = {key: value.detach().contiguous().clone() for key, value in module.state_dict().items()}
    outputs = loaded.embedding or len(loaded.classes)
    arguments = _arguments(name.removeprefix(zoo.PREFIX), options, weights, transform, outputs)
    if arguments is None:
        raise SfumatoError(
            f"model {spelling!r} has layers that timm's does not have (such as statistics of public data)", _ELSEWHERE
        )
    side = transform.resolution or transform.enlarged or transform.size
    config = {
        "architecture": name.removeprefix(zoo.PREFIX),
        "num_classes": outputs,
        "num_features": getattr(module, "num_features", None),
        "label_names": list(loaded.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": outputs,
            "input_size": [transform.channels, side, side],
            "fixed_input_size": "img_size" in arguments,
            "interpolation": transform.interpolation,
            "crop_pct": side / (transform.enlarged or transform.size),
            "crop_mode": "center",
            "mean": _each(transform.mean, transform.channels),
            "std": _each(transform.std, transform.channels),
            "custom_load": False,
        },
        "sfumato": dict(about),
    }
    text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / CONFIG).write_text(text, "utf-8")
    save_file(weights, folder / FILE, metadata={"format": "pt"})


def opened(folder: Path, served: Served) -> Callable[[Tensor], Tensor]:
    """The folder as a function of records: timm's own network between the run's preparation and reading."""
    import timm

    model: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    loaded, transform = served.loaded, served.loaded.transform

    @torch.no_grad()
    def answer(records: Tensor) -> Tensor:
        outputs = model(transform(records))
        if loaded.embedding is not None:
            return functional.normalize(outputs, dim=1)
        return outputs.softmax(-1) if loaded.loss == "softmax" else outputs.sigmoid()

    return answer


def used(served: Served) -> dict[str, Any]:
    """What the lines of code in the card are filled in with."""
    loaded, transform = served.loaded, served.loaded.transform
    assert isinstance(transform, Transform)
    read = ".softmax(-1)" if loaded.loss == "softmax" else ".sigmoid()"
    return {
        "mean": _each(transform.mean, transform.channels),
        "std": _each(transform.std, transform.channels),
        "read": read if loaded.embedding is None else "",
    }


def _read_by_softmax(served: Served) -> nn.Module:
    """A copy of the network whose softmax (or sigmoid) gives the run's scores."""
    reading, module = served.loaded.reading, copy.deepcopy(served.module)
    if served.loaded.embedding is not None or ((reading.temperature or 1.0) == 1.0 and not any(reading.offsets)):
        return module
    last = getattr(module, "get_classifier", lambda: None)()
    if not isinstance(last, (nn.Linear, nn.Conv2d)) or last.bias is None:
        raise SfumatoError("the last layer of the model cannot hold its temperature", _ELSEWHERE)
    with torch.no_grad():
        last.weight.div_(reading.temperature or 1.0)
        last.bias.copy_(last.bias / (reading.temperature or 1.0) + last.bias.new_tensor(reading.offsets))
    return module


def _arguments(
    name: str, options: Mapping[str, Any], weights: Mapping[str, Tensor], transform: Transform, outputs: int
) -> dict[str, Any] | None:
    """The arguments by which timm builds a network of these weights; None where it builds another."""
    import timm

    side = transform.resolution or transform.enlarged or transform.size
    shapes = {key: value.shape for key, value in weights.items()}
    for sized in ({"img_size": side}, {}):
        arguments = {"in_chans": transform.channels, **options, **sized}
        try:
            with torch.device("meta"):
                built = timm.create_model(name, num_classes=outputs, **arguments)
        except TypeError:  # a network that takes any size has no such argument
            continue
        if {key: value.shape for key, value in built.state_dict().items()} == shapes:
            return arguments
    return None


def _each(constants: Any, channels: int) -> list[float]:
    """One number for each channel."""
    return list(constants) * (channels if len(constants) == 1 else 1)
