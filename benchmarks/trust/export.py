"""Export every model of the registry and models of timm, and compare the exported ones with torch.

    python benchmarks/trust/export.py [NAME ...]

For each format: the largest difference between the model's outputs and the exported one's on made-up records, the
labels of 1,000 images of digits (of texts, of 1,000 made-up ones) that are those of `predict`, the size of the file,
and how long the export took; or why it was refused. Labels are told by the code of the model card, in a process in
which sfumato cannot be imported. `rounding` is by how much torch in float32 differs from torch in float64. Models are
drawn, not trained, and scaled so that logits differ by about 1 between images; those of `ON_DIGITS` are trained as
well. Needs `pip install 'sfumato[onnx]'`. results/export.json holds the outcome; of names that are given, their rows
alone are measured again.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
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
from PIL import Image

import sfumato
from benchmarks import RESULTS
from benchmarks.shared.stored import drawn, fill, stored
from sfumato._checks import SfumatoError
from sfumato.data import Tokens, Transform
from sfumato.exporting.export_description import Served
from sfumato.exporting.exporter import COUNTS
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
    "timm:test_vit": (3, 32),
    "timm:vit_tiny_patch16_224": (3, 32),
    "timm:resnet10t": (1, 32),
    "timm:mobilenetv3_small_050": (3, 32),
    "timm:convnext_atto": (3, 32),
    "timm:efficientnet_lite0": (3, 64),
    "timm:regnetx_002": (3, 32),
    "timm:mixer_s32_224": (3, 64),
    "timm:deit_tiny_patch16_224": (3, 32),
    "timm:nf_regnet_b0": (3, 32),
    "timm:ghostnetv2_100": (3, 64),
}
"""Names, with channels and size of the images."""
BATCH = 100
FILES = {"onnx": "model.onnx", "torch-export": "model.pt2"}
OPENED = """
import sys
sys.modules["sfumato"] = None
import numpy as np
code, given, answers = sys.argv[1:]
records_of_all, labels = np.load(given), []
for start in range(0, len(records_of_all), {batch}):
    place = {{"records": records_of_all[start : start + {batch}]}}
    exec(code, place)
    found = place["probabilities"]
    labels.append(np.asarray(found if isinstance(found, np.ndarray) else found.detach()).argmax(1))
np.save(answers, np.concatenate(labels))
"""
PACKAGES = ("torch", "timm", "onnx", "onnxscript", "onnxruntime")
TEXTS = ("bag", "bilstm", "bilstm,norm=layer")
ON_DIGITS = ("linear", "scattering", "cnn", "timm:test_vit")
KINDS = {"trained": ON_DIGITS, "drawn": (*MODELS, *TEXTS)}


def main(names: list[str]) -> int:
    known = json.loads(RESULT.read_text()) if names and RESULT.exists() else {"drawn": {}, "trained": {}}
    versions = {package: version(package).partition("+")[0] for package in PACKAGES}
    rows = [(kind, name) for kind, all_names in KINDS.items() for name in all_names if not names or name in names]
    for kind, name in rows:
        known[kind][name] = measured(name, trained=kind == "trained")
        print(f"{name:32} {known[kind][name]}", flush=True)
        RESULT.write_text(json.dumps({"versions": versions, **known}, indent=2) + "\n")
    refused = [row for _, name in rows for row in known["drawn"].get(name, {}).values() if isinstance(row, str)]
    return 1 if refused else 0


def measured(name: str, *, trained: bool) -> dict[str, Any]:
    """A row: rounding, and of each format what came out or the refusal."""
    with tempfile.TemporaryDirectory() as folder:
        path = (train if trained else draw)(name, Path(folder))
        loaded = sfumato.load(path)
        transform = loaded.transform
        if isinstance(transform, Tokens):
            words = np.random.default_rng(0).integers(0, 300, (IMAGES, transform.length))
            texts = [" ".join(f"w{word}" for word in row) for row in words]
            records, own = transform(texts).numpy(), loaded.predict(texts)
        else:
            assert isinstance(transform, Transform)
            records = digits(transform.size, transform.channels)
            own = loaded.predict(records)
        found = {to: exported(path, to, records, own.argmax(1).numpy()) for to in FILES}
        return {"rounding": rounding(path), **found}


def draw(name: str, folder: Path) -> Path:
    """A model file of weights that are drawn."""
    if name in TEXTS:
        transform: Any = Tokens(length=12, vocabulary=200)
        torch.manual_seed(0)
        module = create_for_texts(name, classes=3, vocabulary=200, length=12)
        fill(module)
    else:
        channels, size = MODELS[name]
        transform = Transform(size=size, channels=channels)
        module = drawn(name, classes=3, channels=channels, size=size)
    return stored(folder / "model.safetensors", name, module, transform, "abc")


def train(name: str, folder: Path) -> Path:
    """A private run on digits."""
    # A ViT of timm's tests takes images of 8 pixels with patches of 4.
    model = f"{name},patch_size=4" if "vit" in name else name
    settings: dict[str, Any] = {"steps": 30, "batch_size": 256, "learning_rate": 0.5, "device": "cpu", "threads": 1}
    sfumato.train(model, "digits", directory=folder / "run", epsilon=3, **settings)
    return folder / "run"


def digits(size: int, channels: int) -> np.ndarray:
    """1,000 images of digits, uint8 (1000, size, size, channels)."""
    source: Any = sfumato.open_source("digits", owner_key=sfumato.owner_key())
    images = np.concatenate([source.train.images[:], source.test.images[:]])[:IMAGES, :, :, 0]
    enlarged = [Image.fromarray(one).resize((size, size), Image.Resampling.BILINEAR) for one in images]
    return np.repeat(np.stack([np.asarray(one) for one in enlarged])[..., None], channels, axis=3)


def exported(path: Path, to: str, records: np.ndarray, own: np.ndarray) -> dict[str, float] | str:
    """What an export comes to, or the refusal."""
    began = time.monotonic()
    try:
        made = sfumato.export(path, to=to)
    except SfumatoError as error:
        return str(error)
    seconds = time.monotonic() - began
    code = re.findall(r"```python\n(.*?)```", (made.path / "README.md").read_text("utf-8"), re.DOTALL)[-1]
    with tempfile.TemporaryDirectory() as folder:
        given, answers = Path(folder) / "records.npy", Path(folder) / "labels.npy"
        np.save(given, records)
        program = OPENED.format(batch=BATCH)
        command = [sys.executable, "-W", "ignore", "-c", program, code, str(given), str(answers)]
        subprocess.run(command, cwd=made.path, check=True)
        alike = int((np.load(answers) == own).sum())
    size = (made.path / FILES[to]).stat().st_size
    return {"difference": made.difference, "alike": alike, "bytes": size, "seconds": round(seconds, 1)}


@torch.no_grad()
def rounding(path: Path) -> float:
    """The largest difference between torch's outputs in float32 and in float64: what rounding alone does."""
    served = Served(sfumato.load(path))
    records = served.synthetic(max(COUNTS))
    inputs = served.loaded.transform(records)
    twice = copy.deepcopy(served.module).double()
    exact = served.loaded.reading.scores(twice(inputs.double() if inputs.is_floating_point() else inputs))
    return (served(records) - exact).abs().max().item()


if __name__ == "__main__":
    began = time.monotonic()
    status = main(sys.argv[1:])
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(status)
