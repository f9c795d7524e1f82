"""Images for runs that cut views out of larger ones."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    place, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 5)):
        for name in ("cat", "dog"):
            (place / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (24, 30), np.uint8)
                Image.fromarray(pixels).save(place / part / name / f"{number:02}.png")
    return f"folder:{place}"
