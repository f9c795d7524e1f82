"""Write the gallery again, pages and pictures: python docs/gallery/write.py

A run of the command line on scikit-learn's digits, laid down as a folder of images that is treated as private. Its
pages go to docs/gallery, screenshots of these by chromium to docs/images. A minute on two cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

GALLERY = Path(__file__).parent
PICTURES = GALLERY.parent / "images"
COMMANDS = (
    "train folder:digits --epsilon 3 --output runs/first",
    "report runs/first --title Handwritten_digits --owner Ward_3 --date 2026-03-01 --purpose Reading_forms",
    "report runs/first --public",
    "report runs/first --model-card",
    "report runs/first --dpia",
)
PAGES = {
    "report.html": "runs/first/report.html",
    "public.html": "runs/first/report-public.html",
    "model-card.md": "runs/first/README.md",
    "dpia.md": "runs/first/dpia.md",
}
WIDTH, COLOURS = 900, 64
HEIGHTS = {"report": 1040, "public": 1060}
"""Of each picture, in pixels: the beginning of its page."""


def folder(place: Path) -> None:
    """All images of digits, one folder for each class."""
    images, labels = load_digits(return_X_y=True)
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        path = place / f"digit-{label}" / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels.reshape(8, 8) * 255 / 16).round().astype("uint8")).save(path)


def picture(page: Path, name: str, place: Path) -> None:
    """The beginning of a page as a light PNG file of few colours."""
    whole = place / f"{name}.png"
    chromium = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *(f"--user-data-dir={place / 'profile'}", "--blink-settings=preferredColorScheme=1"),
        *(f"--window-size={WIDTH},{HEIGHTS[name]}", f"--screenshot={whole}"),
    ]
    subprocess.run([*chromium, page.as_uri()], check=True, capture_output=True, timeout=120)
    with Image.open(whole) as image:
        few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(PICTURES / f"{name}.png", optimize=True)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        folder(place / "digits")
        environment = {**os.environ, "SFUMATO_HOME": str(place / "home")}
        for command in COMMANDS:
            words = [word.replace("_", " ") for word in command.split()]
            subprocess.run([sys.executable, "-m", "sfumato", *words], cwd=place, env=environment, check=True)
        for name, made in PAGES.items():
            shutil.copyfile(place / made, GALLERY / name)
        for name in HEIGHTS:
            picture(GALLERY / f"{name}.html", name, place)


if __name__ == "__main__":
    main()
