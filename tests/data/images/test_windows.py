"""Random crops as views: their law, their pixels, and that each is a function of its own example."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms.v2 import functional

from sfumato._checks import SfumatoError
from sfumato.data import Views
from sfumato.data import views as room
from sfumato.data.views import cropped, windows

LEAST, SIDE = 0.05, 600


def drawn(least: float = LEAST, side: int = SIDE, n: int = 4000) -> tuple[np.ndarray, ...]:
    """Top, left, height and width (n,) of windows."""
    down, right, sides = windows(np.random.default_rng(0), (n, 1), side=side, least=least)
    return down[:, 0], right[:, 0], sides[:, 0, 0], sides[:, 0, 1]


def of_inception(least: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Areas and logarithms of the ratios by the definition: one window at a time, drawn until it fits."""
    generator, found = np.random.default_rng(1), []
    while len(found) < n:
        area, ratio = generator.uniform(least, 1), np.exp(generator.uniform(np.log(3 / 4), np.log(4 / 3)))
        if max(area * ratio, area / ratio) <= 1:
            found.append((area, np.log(ratio)))
    return tuple(np.array(found).T)  # type: ignore[return-value]


def test_areas_and_ratios_follow_the_law_of_inception_and_no_other():
    _, _, high, wide = drawn()
    area, ratio = high.astype(float) * wide / SIDE**2, np.log(wide / high)
    areas, ratios = of_inception(LEAST, 40_000)

    def p(found: np.ndarray, law: np.ndarray) -> float:
        return stats.ks_2samp(found, law).pvalue

    assert p(area, areas) > 0.01
    assert p(ratio, ratios) > 0.01
    assert area.min() == pytest.approx(LEAST, abs=0.01)
    assert np.abs(ratio).max() < np.log(4 / 3) + 0.02
    wrong = of_inception(0.08, 40_000)[0], np.random.default_rng(2).uniform(np.sqrt(LEAST), 1, 40_000) ** 2
    assert max(p(area, law) for law in wrong) < 1e-4, "8% in place of 5%, and sides that are uniform in place of areas"
    even = np.log(np.random.default_rng(2).uniform(3 / 4, 4 / 3, 40_000))
    assert p(ratio, even) < 1e-4, "ratios that are uniform in place of their logarithms"
    assert p(np.log(wide / high), -np.abs(ratios)) < 1e-4


def test_each_place_at_which_a_window_fits_is_equally_likely():
    top, left, high, wide = drawn()
    for place, side in ((top, high), (left, wide)):
        room = SIDE - side.astype(int)
        assert place.min() >= 0
        assert (place <= room).all()
        inner = room > 100
        assert stats.kstest((place[inner] + 0.5) / (room[inner] + 1), "uniform").pvalue > 0.01
    assert abs(np.corrcoef(top / (SIDE + 1 - high), left / (SIDE + 1 - wide))[0, 1]) < 5 / np.sqrt(len(top))


@pytest.mark.parametrize(("side", "size"), [(40, 40), (64, 16), (12, 30)])
def test_pixels_are_those_of_torchvision(side, size):
    generator = torch.Generator().manual_seed(side)
    image = torch.rand(3, side, side, generator=generator)
    down, right, sides = windows(np.random.default_rng(size), (1, 8), side=side, least=0.1)
    places = torch.from_numpy(np.stack([down, right], axis=-1))
    (found,) = cropped(image.unsqueeze(0), places, torch.from_numpy(sides), size)
    assert found.shape == (8, 3, size, size)
    for view, (top, left), (high, wide) in zip(found, places[0].tolist(), sides[0].tolist(), strict=True):
        wanted = functional.resized_crop(image, top, left, high, wide, [size, size], antialias=True)
        assert torch.allclose(view, wanted, atol=1e-5)


@pytest.mark.parametrize(("flip", "zoom", "block"), [(False, 1, 64), (True, 1.5, 2)])
def test_views_are_crops_of_their_own_example_wherever_the_batch_is_cut(flip, zoom, block, monkeypatch):
    monkeypatch.setattr(room, "LARGEST_BLOCK", block)
    views, size, n = Views(count=3, flip=flip, zoom=zoom, crop_area=0.1), 16, 5
    side = views.side(size)
    images = torch.rand(n, 3, side, side)
    draws = views.draw(np.random.default_rng(0), n, size=size)
    whole = views.apply(images, draws, size=size)
    assert whole.shape == (n, 3, 3, size, size)
    assert draws.sides is not None
    for example in range(n):
        for view in range(3):
            top, left, *sides = (int(one[example, view]) for one in (draws.down, draws.right))
            sides = draws.sides[example, view].tolist()
            wanted = functional.resized_crop(images[example], top, left, *sides, [size, size], antialias=True)
            wanted = wanted.flip(-1) if draws.mirrored[example, view] else wanted
            assert torch.allclose(whole[example, view], wanted, atol=1e-5)
    assert draws.mirrored.any() == flip
    cut = [views.apply(images[part], draws[part], size=size) for part in (slice(0, 2), slice(2, None))]
    assert torch.equal(torch.cat(cut), whole)
    poisoned = images.clone()
    poisoned[2] = torch.nan
    others = [0, 1, 3, 4]
    assert torch.equal(views.apply(poisoned, draws, size=size)[others], whole[others]), "bit for bit"
    again = draws[:2].followed_by(draws[2:])
    assert torch.equal(views.apply(images, again, size=size), whole)
    assert views.apply(images[:0], draws[:0], size=size).shape == (0, 3, 3, size, size)


def test_not_even_rounding_tells_how_many_images_there_are(monkeypatch):
    """Matrix products round otherwise at other sizes, so all are of one size, whoever takes part in a step."""
    computed, seen = room.resized, set()

    def noting(images, places, sides, size):
        seen.add((tuple(images.shape), tuple(places.shape), tuple(sides.shape)))
        return computed(images, places, sides, size)

    monkeypatch.setattr(room, "resized", noting)
    views = Views(count=2, crop_area=0.1)
    for n in (1, 3, 64, 65):
        draws = views.draw(np.random.default_rng(0), n, size=8)
        assert len(views.apply(torch.rand(n, 1, 8, 8), draws, size=8)) == n
    assert len(seen) == 1


def test_images_of_a_views_own_size_are_enlarged_first():
    views = Views(crop_area=0.2, zoom=1.5)
    images = torch.rand(2, 1, 16, 16)
    draws = views.draw(np.random.default_rng(0), 2, size=16)
    larger = torch.nn.functional.interpolate(images, [24, 24], mode="bilinear", align_corners=False)
    assert torch.equal(views.apply(images, draws, size=16), views.apply(larger, draws, size=16))


def test_without_random_crops_the_draws_are_what_they_were():
    views = Views(count=3, shift=2, flip=True)
    draws = views.draw(np.random.default_rng(0), 4, size=8)
    assert draws.sides is None
    assert replace(views, crop_area=1) == views
    assert (views.crops, Views(crop_area=0.5).crops, Views(crop_area=0.5).moves) == (False, True, True)


def test_crops_that_cannot_be_are_refused():
    for area in (0, -0.1, 1.5, float("nan")):
        with pytest.raises(SfumatoError, match="crop_area must be"):
            Views(crop_area=area)
    with pytest.raises(SfumatoError, match=r"shift 2 and crop_area 0.1 are both given, and each moves the image"):
        Views(shift=2, crop_area=0.1)
    with pytest.raises(SfumatoError, match=r"crop_area 0.01 of 8 pixels .* less than 2x2 pixels; give at least 0.0625"):
        Views(crop_area=0.01).check(8)
    Views(crop_area=0.0625).check(8)
    with pytest.raises(SfumatoError, match="square"):
        Views(crop_area=0.5).apply(
            torch.zeros(1, 1, 8, 9), Views(crop_area=0.5).draw(np.random.default_rng(), 1, size=8)
        )
    with pytest.raises(SfumatoError, match="square for random crops"):
        Views(crop_area=0.5).apply(torch.zeros(1, 1, 8, 8), Views(shift=1).draw(np.random.default_rng(), 1, size=8))
    with pytest.raises(SfumatoError, match=r"crop_area 0.5 is for images"):
        Views(crop_area=0.5).refuse_for_texts()
