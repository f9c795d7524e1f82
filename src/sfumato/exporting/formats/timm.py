"""timm: config.json and model.safetensors, in the layout of timm models on the Hugging Face hub."""

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
from sfumato.exporting.served import ELSEWHERE, Served, each_channel, folded, scoring_code
from sfumato.models import BackboneWithHead, Ensemble
from sfumato.models.model_spec import parse
from sfumato.models.networks import zoo

FILE = "model.safetensors"
CONFIG = "config.json"
LIBRARY = "timm"
USE = """```python
import timm
import torch

model = timm.create_model("local-dir:.", pretrained=True).eval()
constants = [torch.tensor(numbers).reshape(1, -1, 1, 1) for numbers in ({mean}, {std})]
pixels = torch.from_numpy(records).permute(0, 3, 1, 2).float()
{cut}inputs = (pixels / 255 - constants[0]) / constants[1]
{output} = model(inputs){read}  # {shape}
```"""


def write(served: Served, folder: Path, about: Mapping[str, Any]) -> None:
    """Writes the two files.

    A linear layer on the features of a backbone (`features:`) becomes the backbone's classifier.

    Raises:
        SfumatoError: the network is not a timm network.
    """
    loaded, transform = served.loaded, served.loaded.transform
    spelling, module = _network(served, str(about["model"]), str(about["to"]))
    if not isinstance(transform, Transform):
        raise SfumatoError(f"model {spelling!r} does not take images", ELSEWHERE)
    name, options = parse(spelling)
    options = {key: value for key, value in options.items() if key != "skipinit"}  # affects only the initial gains
    module = folded(served, module, getattr(module, "get_classifier", lambda: None)())
    weights = {key: value.detach().contiguous().clone() for key, value in module.state_dict().items()}
    outputs = loaded.embedding or len(loaded.classes)
    arguments = _arguments(name.removeprefix(zoo.PREFIX), options, weights, transform, outputs)
    if arguments is None:
        raise SfumatoError(
            f"model {spelling!r} has layers that timm's lacks (such as statistics of public data)", ELSEWHERE
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
            "mean": each_channel(transform.mean, transform.channels),
            "std": each_channel(transform.std, transform.channels),
            "custom_load": False,
        },
        "sfumato": dict(about),
    }
    text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / CONFIG).write_text(text, "utf-8")
    save_file(weights, folder / FILE, metadata={"format": "pt"})


def opened(folder: Path, served: Served) -> Callable[[Tensor], Tensor]:
    """Opens the folder with timm, and returns a function of records with the run's input transform and scores."""
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
    """Values for the placeholders in `USE`."""
    transform = served.loaded.transform
    assert isinstance(transform, Transform)
    return {
        "mean": each_channel(transform.mean, transform.channels),
        "std": each_channel(transform.std, transform.channels),
        "read": scoring_code(served),
        "cut": _crop_code(transform),
    }


def _crop_code(transform: Transform) -> str:
    """Code that resizes and center-crops images, as `Transform.center_crop` does."""
    lines, side = "", transform.enlarged or transform.size
    if side != transform.size:
        lines += (
            f'pixels = torch.nn.functional.interpolate(pixels, ({side}, {side}), mode="{transform.interpolation}", '
            "antialias=True).clamp(0, 255)\n"
        )
    resolution = transform.resolution or side
    if resolution != side:
        start = (side - resolution) // 2
        middle = f"{start}:{start + resolution}"
        lines += f"pixels = pixels[:, :, {middle}, {middle}]\n"
    return lines


def _network(served: Served, spelling: str, to: str) -> tuple[str, nn.Module]:
    """The spec of the timm network, and a copy of the network with the run's weights."""
    module = served.module
    if isinstance(module, Ensemble):
        raise SfumatoError("an ensemble has several networks, but a timm folder holds one", ELSEWHERE)
    if isinstance(module, BackboneWithHead) and module.backbone.architecture.name.startswith(zoo.PREFIX):
        if module.norm or module.hidden is not None:
            raise SfumatoError(
                f"model {spelling!r} has more than the single linear layer of a timm network on its backbone",
                "use --to onnx, which supports any model, or train `--model head`",
            )
        return module.backbone.architecture.name, _attach_head(module)
    if not spelling.startswith(zoo.PREFIX):
        libraries = "timm" if to == "timm" else "timm or transformers"
        raise SfumatoError(f"model {spelling!r} is not a model of {libraries}", ELSEWHERE)
    return spelling, copy.deepcopy(module)


@torch.no_grad()
def _attach_head(module: BackboneWithHead) -> nn.Module:
    """The backbone with the head as its classifier."""
    network: Any = copy.deepcopy(module.backbone.network)
    with torch.random.fork_rng(devices=[]):
        network.reset_classifier(module.head.out_features)
    last = network.get_classifier()
    if not isinstance(last, (nn.Linear, nn.Conv2d)) or last.bias is None:
        raise SfumatoError(f"{module.backbone.architecture.name!r} has no linear classifier", ELSEWHERE)
    weight, whitening = module.head.weight, module.backbone.whitening
    last.weight.copy_((weight if whitening is None else weight @ whitening.T).reshape_as(last.weight))
    last.bias.copy_(module.head.bias)
    return network.eval()


def _arguments(
    name: str, options: Mapping[str, Any], weights: Mapping[str, Tensor], transform: Transform, outputs: int
) -> dict[str, Any] | None:
    """The arguments with which timm builds a network with these weight shapes; None if there are none."""
    import timm

    side = transform.resolution or transform.enlarged or transform.size
    shapes = {key: value.shape for key, value in weights.items()}
    for size_option in ({"img_size": side}, {}):
        arguments = {"in_chans": transform.channels, **options, **size_option}
        try:
            with torch.device("meta"):
                built = timm.create_model(name, num_classes=outputs, **arguments)
        except TypeError:  # networks for any image size have no `img_size`
            continue
        if {key: value.shape for key, value in built.state_dict().items()} == shapes:
            return arguments
    return None
