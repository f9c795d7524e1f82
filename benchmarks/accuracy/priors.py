"""Which fixed features for which images: python benchmarks/accuracy/priors.py DATA [--seeds 1]

`dictionary` and `scattering`, and of grey images both side by side, with no other option, on seven kinds of images at
epsilon 1, 3 and 8: 4,000 images to train on (fewer where there are fewer) and 1,000 to test. DATA holds mnist.npz,
cifar10.npz, cifar100.npz, omniglot.npz and sign_language_digits.zip; letters are drawn in the fonts that come with
matplotlib. Goes on where it stopped; writes results/priors.json.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.runs import sfumato

TRAIN, TEST = 4000, 1000
EPSILONS = (1, 3, 8)
COLOUR = ("scattering", "dictionary")
GREY = (*COLOUR, "dictionary,wavelets=0.85")
RESULT = RESULTS / "priors.json"
Arrays = dict[str, np.ndarray]


def main(data: Path, seeds: int) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["SFUMATO_HOME"] = str(place / "home")
        for name, (arrays, models) in KINDS.items():
            source = place / f"{name}.npz"
            for model in models:
                for epsilon in EPSILONS:
                    for seed in range(seeds):
                        key = f"{name}, {model}, epsilon {epsilon}, seed {seed}"
                        if key not in found:
                            if not source.exists():
                                np.savez(source, **arrays(data))
                            run = Path(tempfile.mkdtemp(dir=place)) / "run"
                            asked = ("--model", model, "--epsilon", str(epsilon), "--delta", "1e-5")
                            asked += ("--seed", str(seed), "--output", str(run))
                            row = sfumato("train", f"npz:{source}", "--public", *asked)
                            found[key] = {"accuracy": row["accuracy"], "seconds": row["seconds"]}
                            RESULT.write_text(json.dumps(found, indent=1) + "\n")
                        print(f"{key:<52}{found[key]['accuracy']:8.1%}", flush=True)


def of_archive(name: str, classes: int | None = None) -> Callable[[Path], Arrays]:
    """The first images of an archive, of its first classes."""

    def arrays(data: Path) -> Arrays:
        found: Arrays = {}
        with np.load(data / f"{name}.npz") as archive:
            for part, most in (("train", TRAIN), ("test", TEST)):
                x, y = archive[f"x_{part}"], archive[f"y_{part}"]
                kept = np.flatnonzero(y < (classes or y.max() + 1))[:most]
                found |= {f"x_{part}": x[kept], f"y_{part}": y[kept]}
        return found

    return arrays


def shuffled(x: np.ndarray, y: np.ndarray) -> Arrays:
    """Five of six images to train of, the rest to test."""
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.split(order, [min(TRAIN, len(x) * 5 // 6)])
    return {"x_train": x[train], "y_train": y[train], "x_test": x[test[:TEST]], "y_test": y[test[:TEST]]}


def characters(data: Path) -> Arrays:
    """40 characters of Omniglot, each by 20 drawers."""
    with np.load(data / "omniglot.npz") as archive:
        kept = archive["y_train"] < 40
        return shuffled(archive["x_train"][kept], archive["y_train"][kept])


def hands(data: Path) -> Arrays:
    """Photographs of hands that show digits, 64 pixels."""
    with zipfile.ZipFile(data / "sign_language_digits.zip") as archive:
        table = next(name for name in archive.namelist() if name.endswith("labels.csv"))
        rows = list(csv.DictReader(io.StringIO(archive.read(table).decode())))
        opened = [Image.open(io.BytesIO(archive.read(str(Path(table).parent / row["path"])))) for row in rows]
        images = np.stack([np.asarray(one.convert("RGB").resize((64, 64), Image.Resampling.BOX)) for one in opened])
    return shuffled(images, np.array([int(row["label"]) for row in rows]))


def letters(data: Path) -> Arrays:
    """The alphabet in the fonts of matplotlib, each turned, moved and sized a little, 28 pixels, grey."""
    import matplotlib

    rng = np.random.default_rng(0)
    fonts = sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("*.ttf"))
    fonts = [font for font in fonts if "DejaVu" in font.name or "STIXGeneral" in font.name or "cmr" in font.name]
    x, y = [], []
    for _ in range(TRAIN + TEST):
        label = int(rng.integers(26))
        font = ImageFont.truetype(str(fonts[rng.integers(len(fonts))]), int(rng.integers(16, 25)))
        image = Image.new("L", (28, 28), 0)
        place = tuple(14 + rng.uniform(-2, 2, 2))
        ImageDraw.Draw(image).text(place, chr(ord("A") + label), fill=255, font=font, anchor="mm")
        turned = np.asarray(image.rotate(rng.uniform(-15, 15), Image.Resampling.BILINEAR), float)
        x.append(np.clip(turned * rng.uniform(0.5, 1) + rng.normal(0, 12, (28, 28)), 0, 255).astype(np.uint8))
        y.append(label)
    return shuffled(np.stack(x), np.array(y))


def in_grey(data: Path) -> Arrays:
    """CIFAR-10 without colours."""
    found = of_archive("cifar10")(data)
    return {name: part if part.ndim == 1 else part.mean(3).round().astype(np.uint8) for name, part in found.items()}


KINDS: dict[str, tuple[Callable[[Path], Arrays], tuple[str, ...]]] = {
    "CIFAR-10": (of_archive("cifar10"), COLOUR),
    "CIFAR-100, 20 classes": (of_archive("cifar100", 20), COLOUR),
    "hands": (hands, COLOUR),
    "CIFAR-10 in grey": (in_grey, GREY),
    "MNIST": (of_archive("mnist"), GREY),
    "letters in many fonts": (letters, GREY),
    "Omniglot, 40 characters": (characters, GREY),
}

if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("data", type=Path)
    options.add_argument("--seeds", type=int, default=1)
    chosen = options.parse_args()
    main(chosen.data, chosen.seeds)
