"""Random windows: functions of their own image and its own randomness."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.data import InceptionCrops, image_generator
from sfumato.data.views import _random_window


@settings(max_examples=50, deadline=None)
@given(height=st.integers(1, 300), width=st.integers(1, 300), seed=st.integers(0, 2**32))
def test_a_window_lies_in_the_image(height, width, seed):
    top, left, high, wide = _random_window(height, width, np.random.default_rng(seed))
    assert 0 <= top <= top + high <= height
    assert 0 <= left <= left + wide <= width
    assert high >= 1
    assert wide >= 1


def test_areas_and_ratios_are_those_of_inception():
    windows = [_random_window(400, 400, np.random.default_rng(seed))[2:] for seed in range(3000)]
    areas = np.array([high * wide / 160_000 for high, wide in windows])
    ratios = np.array([wide / high for high, wide in windows])
    assert areas.min() < 0.1
    assert areas.max() > 0.95
    assert 0.45 < areas.mean() < 0.57
    assert ratios.min() > 0.73
    assert ratios.max() < 1.36


@pytest.mark.parametrize("flip", [False, True])
def test_one_images_windows_know_nothing_of_the_others(flip):
    images = np.random.default_rng(0).integers(0, 256, (4, 24, 24, 3), dtype=np.uint8)
    crops = InceptionCrops(count=3, resolution=16, interpolation="bicubic", flip=flip)

    def views(chosen):
        pixels = torch.from_numpy(images[chosen]).permute(0, 3, 1, 2).float()
        return crops.apply(pixels, [image_generator(bytes(32), image) for image in images[chosen]])

    whole = views([0, 1, 2, 3])
    assert whole.shape == (4, 3, 3, 16, 16)
    assert torch.equal(views([3, 1])[0], whole[3])
    assert whole.min() >= 0
    assert whole.max() <= 255
    assert not torch.equal(whole[0, 0], whole[0, 1])
    other = [image_generator(bytes([1]) * 32, image) for image in images]
    assert not torch.equal(crops.apply(torch.from_numpy(images).permute(0, 3, 1, 2).float(), other), whole)


def test_randomness_that_do_not_fit_are_refused():
    with pytest.raises(SfumatoError, match="2 generators do not match"):
        InceptionCrops(count=1, resolution=4).apply(torch.zeros(3, 1, 8, 8), [np.random.default_rng(0)] * 2)
