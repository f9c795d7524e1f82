"""Export every model of the registry and models of timm, and compare the exported ones with torch.

    python benchmarks/trust/export.py [NAME ...]

For each the largest difference between its outputs and those of the exported file on made-up records is noted, for
ONNX by onnxruntime, for torch.export by torch, and for models of timm by timm, or why it was refused; and by how much
torch in float32 differs from torch in float64. Classifiers are scaled so that logits differ by about 1 between images,
which in untrained networks that hardly tell images apart makes much of rounding errors. Then
models are trained on digits, and the labels of 1,000 of these images are counted that the exported ones say as
`predict` does. Needs `pip install 'sfumato[onnx]'`. results/export.json holds the outcome; of names that
are given, their rows alone are measured again.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import sfumato
from benchmarks import RESULTS
from benchmarks.shared.stored import drawn, fill, stored
from sfumato._checks import SfumatoError
from sfumato.data import Tokens, Transform
from sfumato.exporting.exported import COUNTS, FORMATS
from sfumato.exporting.served import Served
from sfumato.models.registry import create_for_texts

RESULT = RESULTS / "export.json"
IMAGES = 1000
MODELS: dict[str, tuple[int, int]] = {
    "linear": (1, 16),
    "scattering": (1, 28),
    "dictionary": (3, 16),
    "dictionary,wavelets=0.85": (1, 28),
    "cnn": (1, 28),
    "lenet5": (1, 28),
    "lenet5,norm=layer": (1, 28),
    "lenet": (1, 28),
    "lenet-300-100": (1, 28),
    "tf-tutorial": (3, 32),
    "vgg": (3, 32),
    "vgg16": (3, 32),
    "resnet-18": (3, 32),
    "mobilenet-v2": (3, 32),
    "resnet-50": (3, 32),
    "wrn-16-4": (3, 32),
    "nf-resnet-50": (3, 32),
    "timm:test_resnet": (1, 32),
    "timm:test_vit": (3, 160),
    "timm:vit_tiny_patch16_224": (3, 64),
    "timm:resnet10t": (1, 64),
    "timm:mobilenetv3_small_050": (3, 64),
    "timm:convnext_atto": (3, 64),
    "timm:efficientnet_lite0": (3, 64),
    "timm:regnetx_002": (3, 64),
    "timm:mixer_s32_224": (3, 64),
    "timm:deit_tiny_patch16_224": (3, 64),
    "timm:nf_regnet_b0": (3, 64),
    "timm:ghostnetv2_100": (3, 64),
}
"""Names, with channels and size of the images."""
PACKAGES = ("torch", "timm", "onnx", "onnxscript", "onnxruntime")
TEXTS = ("bag", "bilstm", "bilstm,norm=layer")
ON_DIGITS = ("linear", "scattering", "cnn", "timm:test_vit")


def main(names: list[str]) -> int:
    known = json.loads(RESULT.read_text()) if names and RESULT.exists() else {"difference": {}, "alike_of_1000": {}}
    versions = {package: version(package).partition("+")[0] for package in PACKAGES}
    for name in names or [*MODELS, *TEXTS]:
        known["difference"][name] = compared(name)
        print(f"{name:32} {known['difference'][name]}", flush=True)
        write({"versions": versions, **known})
    for name in ON_DIGITS if not names else ():
        known["alike_of_1000"][name] = alike(name)
        print(f"{name:32} {known['alike_of_1000'][name]}", flush=True)
        write({"versions": versions, **known})
    refused = [row for row in known["difference"].values() if any(isinstance(value, str) for value in row.values())]
    return 1 if refused else 0


def write(outcome: dict[str, Any]) -> None:
    RESULT.write_text(json.dumps(outcome, indent=2) + "\n")


def compared(name: str) -> dict[str, float | str]:
    """For each format the largest difference, or the refusal."""
    with tempfile.TemporaryDirectory() as folder:
        if name in TEXTS:
            transform: Any = Tokens(length=12, vocabulary=200)
            torch.manual_seed(0)
            module = create_for_texts(name, classes=3, vocabulary=200, length=12)
            fill(module)
        else:
            channels, size = MODELS[name]
            transform = Transform(size=size, channels=channels)
            module = drawn(name, classes=3, channels=channels, size=size)
        path = stored(Path(folder) / "model.safetensors", name, module, transform, "abc", temperature=1.5)
        return {"rounding": rounding(path), **{to: difference(path, to) for to in formats(name)}}


@torch.no_grad()
def rounding(path: Path) -> float:
    """The largest difference between torch's outputs in float32 and in float64: what rounding alone does."""
    served = Served(sfumato.load(path))
    records = served.made_up(max(COUNTS))
    inputs = served.loaded.transform(records)
    twice = copy.deepcopy(served.module).double()
    exact = served.loaded.reading.scores(twice(inputs.double() if inputs.is_floating_point() else inputs))
    return (served(records) - exact).abs().max().item()


def formats(name: str) -> list[str]:
    """Those that can hold it."""
    return ["onnx", "torch-export", *(["timm"] if name.startswith("timm:") else [])]


def difference(path: Path, to: str) -> float | str:
    try:
        return sfumato.export(path, to=to).difference
    except SfumatoError as error:
        return str(error)


def alike(name: str) -> dict[str, int]:
    """How many of 1,000 images of digits have the label that `predict` gives them, by each exported model."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        # A ViT of timm's tests takes images of 8 pixels with patches of 4.
        model = f"{name},patch_size=4" if "vit" in name else name
        settings: dict[str, Any] = {"steps": 30, "batch_size": 256, "learning_rate": 0.5, "device": "cpu", "threads": 1}
        sfumato.train(model, "digits", directory=run, epsilon=3, **settings)
        loaded, source = sfumato.load(run), sfumato.open_source("digits", owner_key=sfumato.owner_key())
        images = np.concatenate([source.train.images[:], source.test.images[:]])[:IMAGES]
        own = loaded.predict(images).argmax(1)
        found = {}
        for to in formats(name):
            made = sfumato.export(run, to=to)
            answer = FORMATS[to].opened(made.path, Served(loaded))
            found[to] = int((answer(torch.from_numpy(images)).argmax(1) == own).sum())
        return found


if __name__ == "__main__":
    began = time.monotonic()
    status = main(sys.argv[1:])
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(status)
