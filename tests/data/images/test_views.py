"""Views: against a plain loop, cut anywhere, with every move equally likely."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from sfumato._checks import SfumatoError
from sfumato.data import Views


def plainly(image, down, right, mirrored, shift):
    """One view by padding, cutting out and mirroring: the definition."""
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (shift, shift), (shift, shift)), mode="reflect")
    view = padded[:, shift + down : shift + down + height, shift + right : shift + right + width]
    return view[:, :, ::-1] if mirrored else view


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 5),
    shift=st.integers(0, 6),
    flip=st.booleans(),
    channels=st.sampled_from([1, 3]),
    size=st.tuples(st.integers(7, 9), st.integers(7, 9)),
    n=st.integers(0, 5),
    cut=st.integers(0, 5),
)
def test_views_are_those_of_the_plain_loop_wherever_the_batch_is_cut(count, shift, flip, channels, size, n, cut):
    views = Views(count=count, shift=shift, flip=flip)
    images = np.random.default_rng(1).normal(size=(n, channels, *size)).astype(np.float32)
    draws = views.draw(np.random.default_rng(2), n, size=min(size))
    whole = views.apply(torch.from_numpy(images), draws)
    assert whole.shape == (n, count, channels, *size)
    for example in range(n):
        for view in range(count):
            dice = (array[example, view] for array in (draws.down, draws.right, draws.mirrored))
            assert np.array_equal(whole[example, view].numpy(), plainly(images[example], *dice, shift))
    pieces = [views.apply(torch.from_numpy(images[part]), draws[part]) for part in (slice(0, cut), slice(cut, None))]
    assert torch.equal(torch.cat(pieces), whole)


def test_every_move_is_equally_likely_and_views_are_independent():
    views = Views(count=4, shift=2, flip=True)
    draws = views.draw(np.random.default_rng(0), 5000, size=8)
    for moves in (draws.down, draws.right):
        values, counts = np.unique(moves, return_counts=True)
        assert values.tolist() == [-2, -1, 0, 1, 2]
        assert np.abs(counts / 20_000 - 0.2).max() < 5 * np.sqrt(0.16 / 20_000)
    assert abs(draws.mirrored.mean() - 0.5) < 5 * 0.5 / np.sqrt(20_000)
    table = np.stack([*draws.down.T, *draws.right.T, draws.mirrored[:, 0]])
    assert np.abs(np.corrcoef(table) - np.eye(9)).max() < 5 / np.sqrt(5000)
    assert (draws.mirrored[:, 1:] != draws.mirrored[:, :-1]).all(), "half of an example's views are mirrored"
    assert not Views(count=4, shift=2).draw(np.random.default_rng(0), 100, size=8).mirrored.any()


@pytest.mark.parametrize("count", [1, 3])
def test_without_moves_and_mirrors_views_are_the_image_itself_and_cost_no_randomness(count):
    generator = np.random.default_rng(0)
    views = Views(count=count)
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(
        views.apply(images, views.draw(generator, 3, size=8)), images[:, None].expand(-1, count, 1, 8, 8)
    )
    assert generator.random() == np.random.default_rng(0).random()


def test_zoom_cuts_windows_out_of_the_enlarged_image():
    views = Views(count=4, zoom=1.25, flip=True)
    images = torch.rand(6, 3, 16, 16)
    draws = views.draw(np.random.default_rng(3), 6, size=16)
    assert (views.side(16), views.shift_range(16)) == (20, 4)
    larger = functional.interpolate(images, (20, 20), mode="bilinear", align_corners=False)
    shown = views.apply(images, draws)
    for example in range(6):
        for view in range(4):
            top, left = (2 + int(dice[example, view]) for dice in (draws.down, draws.right))
            window = larger[example, :, top : top + 16, left : left + 16]
            mirrored = bool(draws.mirrored[example, view])
            assert torch.equal(shown[example, view], window.flip(-1) if mirrored else window)
    assert {int(move) for move in draws.down.ravel()} == {-2, -1, 0, 1, 2}


@pytest.mark.parametrize(("size", "side"), [(16, 19), (20, 24)])
def test_zoom_cuts_windows_out_of_an_image_that_is_larger_already(size, side):
    views = Views(count=2, zoom=1.2)
    assert views.side(size) == side
    images = torch.randint(256, (300, 1, side, side), dtype=torch.uint8)
    draws = views.draw(np.random.default_rng(3), 300, size=size)
    shown = views.apply(images, draws, size=size)
    first = (side - size) // 2
    places = np.stack([draws.down, draws.right]) + first
    for example in range(300):
        for view in range(2):
            top, left = places[:, example, view]
            assert torch.equal(shown[example, view], images[example, :, top : top + size, left : left + size])
    assert set(places.ravel().tolist()) == set(range(side - size + 1)), "every place, from edge to edge"
    with pytest.raises(SfumatoError, match="must have sides of 16 or 19 pixels"):
        Views(zoom=1.2).apply(
            images[:1, :, :18, :18], Views(zoom=1.2).draw(np.random.default_rng(), 1, size=16), size=16
        )


def test_what_cannot_be_is_refused():
    with pytest.raises(SfumatoError, match="shift must be at most 7, got 8"):
        Views(count=2, shift=8).check(8)
    with pytest.raises(SfumatoError, match=r"shift 2 and zoom 1.2 are both given"):
        Views(shift=2, zoom=1.2)
    for zoom in (0.5, 5):
        with pytest.raises(SfumatoError, match="zoom must lie between 1 and 4"):
            Views(zoom=zoom)
    views = Views(count=2, shift=8)
    with pytest.raises(SfumatoError, match="shift must be at most"):
        views.apply(torch.rand(1, 1, 8, 9), views.draw(np.random.default_rng(0), 1, size=9))
    with pytest.raises(SfumatoError, match="do not match"):
        views.apply(torch.rand(2, 1, 9, 9), views.draw(np.random.default_rng(0), 1, size=9))
    for bad in ({"count": 0}, {"count": 2.0}, {"shift": -1}, {"shift": 1.0}, {"shift": True}):
        with pytest.raises(SfumatoError):
            Views(**bad)
