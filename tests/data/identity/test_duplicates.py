"""Near duplicates: planted ones are found, others are not, and one private image says nothing of another."""

import io

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import duplicates, find_duplicates

KINDS = ("exact", "crop", "shift", "jpeg", "flip", "resize", "whole")


def scenes(count: int, seed: int) -> np.ndarray:
    """Made-up images with edges and colours at all scales, uint8 (count, 32, 32, 3)."""
    generator = np.random.default_rng(seed)
    images = np.zeros((count, 32, 32, 3))
    for side in (2, 4, 8, 16):
        coarse = generator.normal(size=(count, side, side, 3)) * 40 * (4 / side) ** 0.5
        images += coarse.repeat(32 // side, 1).repeat(32 // side, 2)
    return (images + 128).clip(0, 255).astype(np.uint8)


def planted(image: np.ndarray, kind: str, generator: np.random.Generator) -> np.ndarray:
    image = Image.fromarray(image)
    if kind == "crop":
        side = int(generator.integers(26, 31))
        left, top = generator.integers(0, 33 - side, 2)
        image = image.crop((left, top, left + side, top + side)).resize((32, 32), Image.Resampling.BILINEAR)
    elif kind == "shift":
        right, down = generator.integers(-4, 5, 2)
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        image = Image.fromarray(padded[4 + down : 36 + down, 4 + right : 36 + right])
    elif kind == "jpeg":
        memory = io.BytesIO()
        image.save(memory, "JPEG", quality=80)
        image = Image.open(memory)
    elif kind == "flip":
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    elif kind == "resize":
        image = image.resize((20, 20), Image.Resampling.BICUBIC).resize((32, 32), Image.Resampling.BILINEAR)
    return np.asarray(image)


@pytest.fixture(scope="module")
def public() -> np.ndarray:
    return scenes(150, 0)


def test_planted_copies_are_found_and_nothing_else(public):
    generator = np.random.default_rng(1)
    chosen, public = generator.integers(0, 90, 56), public.copy()
    private = scenes(70, 2)
    for place, source in enumerate(chosen):
        if KINDS[place % len(KINDS)] == "whole":  # the public image is a crop of the private one
            source = chosen[place] = 90 + place
            private[place], public[source] = public[source], planted(public[source], "crop", generator)
            continue
        private[place] = planted(public[source], KINDS[place % len(KINDS)], generator)
    pairs = {pair.private: pair for pair in find_duplicates(public, private)}
    assert not [place for place in pairs if place >= 56]
    for number, kind in enumerate(KINDS):
        places = range(number, 56, len(KINDS))
        right = [place in pairs and pairs[place].public == chosen[place] for place in places]
        assert np.mean(right) >= (1.0 if kind in ("exact", "flip") else 0.8), kind
        if kind == "exact":
            assert all(pairs[place].exact and pairs[place].difference == 0 for place in places)
        if kind == "flip":
            assert all(pairs[place].mirrored for place in places)


def test_copies_that_are_shifted_and_mirrored_are_found(public):
    """The window on the public image is on its other side then."""
    most = 6
    generator = np.random.default_rng(4)
    chosen = generator.choice(len(public), 20, replace=False)
    private = []
    for source in chosen:
        right, down = generator.integers(-most, most + 1, 2)
        padded = np.pad(public[source][:, ::-1], ((most, most), (most, most), (0, 0)), mode="reflect")
        private.append(padded[most + down : most + down + 32, most + right : most + right + 32])
    pairs = {pair.private: pair for pair in find_duplicates(public, np.stack(private))}
    assert [pairs[place].public for place in range(20) if place in pairs] == chosen.tolist()
    assert all(pair.mirrored for pair in pairs.values())


def test_a_private_image_is_looked_for_by_itself(public, monkeypatch):
    generator = np.random.default_rng(3)
    private = np.stack([planted(public[place], KINDS[place % 6], generator) for place in range(40)])
    whole = {pair.private: (pair.public, pair.mirrored) for pair in find_duplicates(public, private)}
    assert len(whole) > 35
    fewer = find_duplicates(public, private[1:])
    assert {pair.private + 1: (pair.public, pair.mirrored) for pair in fewer} == {
        place: match for place, match in whole.items() if place > 0
    }
    monkeypatch.setattr(duplicates, "_ROWS", 7)
    cut = find_duplicates(public, private)
    assert {pair.private: (pair.public, pair.mirrored) for pair in cut} == whole


def test_the_pieces_of_the_public_set_do_not_matter(public, monkeypatch):
    private = public[::7].copy()[:, :, ::-1]
    before = find_duplicates(public, private)
    monkeypatch.setattr(duplicates, "_COLUMNS", 64)
    assert find_duplicates(public, private) == before
    assert [pair.public for pair in before] == list(range(0, 150, 7))


def test_blank_images_match_only_blank_ones():
    blank, white = np.zeros((1, 32, 32, 3), np.uint8), np.full((1, 32, 32, 3), 255, np.uint8)
    assert [pair.exact for pair in find_duplicates(blank, blank)] == [True]
    assert find_duplicates(blank, white) == []
    assert find_duplicates(scenes(20, 0), white) == []


def test_other_images_are_refused(public):
    with pytest.raises(SfumatoError, match=r"private must be uint8 \(n, 32, 32, 3\)"):
        find_duplicates(public, public[:, :16])
    with pytest.raises(SfumatoError, match="limit must be positive"):
        find_duplicates(public, public, limit=0)
    with pytest.raises(SfumatoError, match=r"limit must be at most 0\.5, got 5; give a share of the contrast"):
        find_duplicates(public, public, limit=5)


def test_alike_at_a_glance_is_no_duplicate(monkeypatch):
    """A bright sky over dark ground, with other details in each."""
    generator = np.random.default_rng(5)
    skies = np.zeros((40, 32, 32, 3))
    skies[:, :16] = 220
    skies[:, 16:] = 60
    skies += generator.normal(scale=22, size=(40, 16, 16, 3)).repeat(2, 1).repeat(2, 2)
    images = skies.clip(0, 255).astype(np.uint8)
    assert not find_duplicates(images[:20], images[20:])
    monkeypatch.setattr(duplicates, "_DETAIL", np.inf)
    assert len(find_duplicates(images[:20], images[20:])) > 10, "the whole alone would not tell them apart"
