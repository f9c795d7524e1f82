"""Photographs as people have them, and the lines of code that a model card gives for them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms


@pytest.fixture
def pictures(tmp_path) -> list[str]:
    """A turned photograph, a transparent one, a large grey one, and two with a profile that swaps red and green."""
    noise = np.random.default_rng(0).integers(0, 256, (30, 20, 3)).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise).save(tmp_path / "turned.jpg", exif=exif)
    Image.fromarray(np.dstack([noise, noise[..., :1]])).save(tmp_path / "clear.png")
    Image.fromarray(noise[..., 0]).resize((300, 410)).save(tmp_path / "grey.jpg")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes().replace(b"rXYZ", b"gXYZ", 1)
    profile = profile.replace(b"gXYZ", b"rXYZ").replace(b"rXYZ", b"gXYZ", 1)
    profile = profile.replace("sRGB".encode("utf-16-be"), "swap".encode("utf-16-be"))
    Image.fromarray(noise).save(tmp_path / "swapped.png", icc_profile=profile)
    Image.fromarray(np.dstack([noise, noise[..., :1]])).save(tmp_path / "both.png", icc_profile=profile)
    return [str(tmp_path / name) for name in ("turned.jpg", "clear.png", "grey.jpg", "swapped.png", "both.png")]


def code_of(folder: Path) -> str:
    """The Python lines of a model card."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.DOTALL))


@pytest.fixture
def card_code() -> Callable[[Path], str]:
    """The Python lines of a folder's model card."""
    return code_of


@pytest.fixture
def by_card(pictures, monkeypatch) -> Callable[[Path], dict[str, Any]]:
    """What a model card's lines of code make of the pictures, run in its folder."""

    def run(folder: Path) -> dict[str, Any]:
        place: dict[str, Any] = {"paths": pictures}
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            exec(code_of(folder), place)
        return place

    return run
