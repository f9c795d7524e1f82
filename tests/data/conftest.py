"""Images for the tests of the data room, written to a folder of their own."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

KEY = bytes(range(32))


@pytest.fixture
def key() -> bytes:
    return KEY


@pytest.fixture
def class_folder(tmp_path: Path) -> Callable[..., Path]:
    """Make PATH/NAME/00.png, 01.png, ...: random grey images, a folder for each named count."""

    def make(where: str = "", *, size: tuple[int, int] = (8, 8), mode: str = "L", **counts: int) -> Path:
        generator = np.random.default_rng(len(where))
        for name, count in counts.items():
            folder = tmp_path / where / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                shape = (size[1], size[0]) + (() if mode == "L" else (3,))
                pixels = generator.integers(256, size=shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:02}.png")
        return tmp_path

    return make


@pytest.fixture(scope="session")
def mnist() -> Path:
    """The real MNIST as one archive x_train y_train x_test y_test."""
    folder = Path(os.environ.get("SFUMATO_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    archive = folder / "mnist.npz"
    if not archive.exists():
        pytest.skip("no mnist.npz in the folder that SFUMATO_DATA names")
    return archive
