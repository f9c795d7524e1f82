"""Zoom reads larger training images out of their originals, and leaves all else as it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from sfumato._checks import SfumatoError
from sfumato.data import FileRecords, Records, Transform, Views, hold_out, open_source
from sfumato.data.decoding import prepare
from sfumato.data.readers import files

KEY = bytes(range(32))
SIZE, ZOOM, SIDE = 20, 1.2, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Images of two classes, larger than the views and full of detail."""
    place, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("cat", "dog"):
        (place / name).mkdir()
        for number in range(12):
            height, width = rng.integers(40, 60, 2)
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
            Image.fromarray(pixels).save(place / name / f"{number}.png")
    return place


def original(records: Records | FileRecords, row: int, side: int) -> np.ndarray:
    assert records.files is not None
    with Image.open(records.files[row]) as image:
        return prepare(image, size=side, channels=3)


def equal(one: Records | FileRecords, other: Records | FileRecords) -> bool:
    return np.array_equal(one.take(slice(None)), other.take(slice(None)))


def sharpness(images: torch.Tensor) -> float:
    """Variance of the Laplacian of images (n, C, H, W)."""
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]).expand(3, 1, 3, 3)
    return functional.conv2d(images, kernel, groups=3).var().item()


@pytest.mark.parametrize("share", [0.5, 0])
def test_larger_images_come_from_the_files_and_all_else_stays(folder, share, monkeypatch):
    monkeypatch.setattr(files, "MEMORY_SHARE", share)
    plain = open_source(f"folder:{folder}", owner_key=KEY, size=SIZE)
    zoomed = open_source(f"folder:{folder}", owner_key=KEY, size=SIZE, zoom=ZOOM)
    assert plain.zoomed is None
    assert isinstance(zoomed.zoomed, Records if share else FileRecords)
    assert zoomed.zoomed.shape == (len(plain.train), SIDE, SIDE, 3)
    for row in range(len(plain.train)):
        assert np.array_equal(zoomed.zoomed.take(slice(row, row + 1))[0], original(plain.train, row, SIDE))
    assert equal(plain.train, zoomed.train)
    assert equal(plain.test, zoomed.test)
    assert np.array_equal(plain.train.labels, zoomed.zoomed.labels)
    assert np.array_equal(plain.train.codes, zoomed.zoomed.codes)
    assert (plain.stored_digest, plain.size) == (zoomed.stored_digest, zoomed.size)
    assert plain.fingerprint != zoomed.fingerprint, "a run is bound to the images that it sees"


def test_views_are_windows_as_sharp_as_the_original_brought_to_that_side(folder):
    source = open_source(f"folder:{folder}", owner_key=KEY, size=SIZE, zoom=ZOOM)
    views = Views(count=3, zoom=ZOOM, flip=True)
    n = len(source.train)
    draws = views.draw(np.random.default_rng(0), n, size=SIZE)
    transform = Transform(size=SIDE, channels=3)
    shown = views.apply(transform(source.images_for(views).take(slice(None))), draws, size=SIZE)
    assert shown.shape == (n, 3, 3, SIZE, SIZE)
    for row in range(n):
        whole = transform(original(source.train, row, SIDE)[np.newaxis].copy())[0]
        for view in range(3):
            top, left = (2 + int(dice[row, view]) for dice in (draws.down, draws.right))
            window = whole[:, top : top + SIZE, left : left + SIZE]
            assert torch.equal(shown[row, view], window.flip(-1) if draws.mirrored[row, view] else window)
    blurred = views.apply(Transform(size=SIZE, channels=3)(source.train.take(slice(None))), draws, size=SIZE)
    assert sharpness(shown.flatten(0, 1)) > 2 * sharpness(blurred.flatten(0, 1))


def test_memory_counts_both_sizes(folder, monkeypatch):
    both = 24 * (SIZE**2 + SIDE**2) * 3
    for enough in (True, False):
        monkeypatch.setattr(files, "memory_limit", lambda enough=enough: 2 * both - 2 * (not enough))
        source = open_source(f"folder:{folder}", owner_key=KEY, size=SIZE, channels=3, zoom=ZOOM)
        assert isinstance(source.train, Records if enough else FileRecords)
        assert isinstance(source.zoomed, Records if enough else FileRecords)


def test_what_is_held_out_is_not_seen_enlarged_either(folder):
    source = open_source(f"folder:{folder}", owner_key=KEY, size=SIZE, zoom=ZOOM)
    plain, validation = hold_out(replace(source, zoomed=None), KEY, 0.3)
    rest, again = hold_out(source, KEY, 0.3)
    assert equal(validation, again)
    assert again.shape[1] == SIZE
    assert np.array_equal(rest.zoomed.codes, plain.train.codes)
    assert np.array_equal(rest.zoomed.take(slice(0, 1))[0], original(rest.train, 0, SIDE))


@pytest.mark.parametrize("names", [("x", "y"), ("x_train", "y_train", "x_test", "y_test")])
def test_arrays_give_what_they_have(names, tmp_path):
    rng = np.random.default_rng(1)
    images = {name: rng.integers(0, 256, (40, 30, 34, 3), np.uint8) for name in names[::2]}
    labels = {name: np.arange(40) % 2 for name in names[1::2]}
    np.savez(tmp_path / "a.npz", **images, **labels)
    spec, views = f"npz:{tmp_path / 'a.npz'}", Views(zoom=ZOOM)
    plain, zoomed = (open_source(spec, owner_key=KEY, size=SIZE, zoom=zoom) for zoom in (1, ZOOM))
    whole = open_source(spec, owner_key=KEY, size=SIDE)
    assert zoomed.images_for(views) is zoomed.zoomed
    assert equal(zoomed.zoomed, whole.train)
    assert equal(zoomed.train, plain.train)
    assert equal(zoomed.test, plain.test)
    own = open_source(spec, owner_key=KEY, zoom=ZOOM)
    assert own.size == 30
    assert own.zoomed is None, "there is nothing larger in arrays of just this size"
    assert own.images_for(views) is own.train
    assert own.fingerprint == open_source(spec, owner_key=KEY).fingerprint


def test_small_data_sets_do_likewise():
    assert open_source("digits", owner_key=KEY, zoom=ZOOM).zoomed is None
    smaller = open_source("digits", owner_key=KEY, size=5, zoom=1.4)
    assert equal(smaller.zoomed, open_source("digits", owner_key=KEY, size=7).train)


def test_what_was_not_asked_for_is_refused_and_zoom_is_within_bounds(folder):
    spec = f"folder:{folder}"
    source = open_source(spec, owner_key=KEY, size=SIZE, zoom=ZOOM)
    assert source.images_for(Views()) is source.train
    with pytest.raises(SfumatoError, match=r"needs images of 28 pixels, .* images of 24 pixels; open it with zoom=1.4"):
        source.images_for(Views(zoom=1.4))
    with pytest.raises(SfumatoError, match="got 1200; declare a smaller size, or give less zoom"):
        open_source(spec, owner_key=KEY, size=1000, zoom=ZOOM)
    with pytest.raises(SfumatoError, match="zoom must lie between 1 and 4"):
        open_source(spec, owner_key=KEY, zoom=5)
    with pytest.raises(TypeError, match="zoomed must hold the records of train"):
        replace(source, train=source.train.select(np.arange(len(source.train)) > 0))
