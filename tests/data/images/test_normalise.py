"""Public constants, and the same image whichever way it comes."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import Transform

PIXELS = np.random.default_rng(0).integers(256, size=(4, 9, 9, 3), dtype=np.uint8)


def test_each_channel_has_its_constants():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    result = Transform(size=9, channels=3, mean=mean, std=std)(PIXELS)
    expected = ((PIXELS / 255 - mean) / std).transpose(0, 3, 1, 2)
    assert np.allclose(result.numpy(), expected, atol=1e-6)
    assert result.is_contiguous()


def test_an_image_does_not_depend_on_its_batch_and_input_is_untouched():
    transform, before = Transform(size=9, channels=3), PIXELS.copy()
    whole = transform(PIXELS)
    assert torch.equal(whole[2:3], transform(PIXELS[2:3]))
    assert torch.equal(whole, transform(torch.from_numpy(PIXELS)))
    assert np.array_equal(PIXELS, before)


def test_files_and_pillow_images_give_the_batch_form(tmp_path, monkeypatch):
    transform = Transform(size=9, channels=3)
    image = Image.fromarray(PIXELS[0])
    image.save(tmp_path / "a.png")
    for given in (image, tmp_path / "a.png", str(tmp_path / "a.png")):
        assert torch.equal(transform.read(given), transform(PIXELS[:1])[0])
    with pytest.raises(SfumatoError, match=r"image '.*b.png' does not exist"):
        transform.read(tmp_path / "b.png")
    os.mkfifo(tmp_path / "c.png")
    monkeypatch.setattr(Path, "open", None)  # opening a pipe would wait for ever
    with pytest.raises(SfumatoError, match=r"image '.*c.png' is a pipe"):
        transform.read(tmp_path / "c.png")


def test_it_survives_json():
    for transform in (Transform(size=9, channels=1), Transform(size=9, channels=3, mean=[0.1, 0.2, 0.3], std=2)):
        assert Transform.from_dict(json.loads(json.dumps(transform.to_dict()))) == transform
    with pytest.raises(SfumatoError, match="a transform must hold size"):
        Transform.from_dict({"size": 9})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 3}, "size must lie between 4 and 1,024, got 3"),
        ({"mean": (0.1, 0.2)}, "mean holds 2 numbers for 3 channels"),
        ({"std": 0}, "std must be positive, got 0"),
        ({"mean": float("nan")}, "mean must be a finite number, got nan"),
    ],
)
def test_bad_constants_are_refused(change, message):
    with pytest.raises(SfumatoError, match=message):
        Transform(**{"size": 9, "channels": 3, **change})


def test_other_images_are_refused():
    transform = Transform(size=9, channels=1)
    with pytest.raises(SfumatoError, match=r"images must be uint8 \(n, 9, 9, 1\), got torch.uint8 \(4, 9, 9, 3\)"):
        transform(torch.from_numpy(PIXELS))
    with pytest.raises(SfumatoError, match="input 0: image is an array of float64; give uint8"):
        transform(PIXELS[..., :1] / 100)
