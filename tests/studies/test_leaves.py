import numpy as np

from studies.dead_leaves import dead_leaves, grey


def drawn(count, **how):
    return dead_leaves(count, processes=1, side=12, **how)


def test_an_image_follows_from_seed_and_place_alone(monkeypatch):
    monkeypatch.setattr("studies.dead_leaves.TOGETHER", 4)
    few, more = drawn(3), drawn(6)
    assert few.shape == (3, 12, 12, 3)
    assert few.dtype == np.uint8
    np.testing.assert_array_equal(few, more[:3])
    assert len(np.unique(more.reshape(len(more), -1), axis=0)) == len(more)
    assert (drawn(3, seed=1) != few).any()


def test_images_have_edges_and_contrast():
    images = drawn(40).astype(float)
    assert images.reshape(40, -1).std(1).mean() > 30
    steps = np.abs(np.diff(images.mean(3), axis=2))
    assert np.quantile(steps, 0.99) > 10 * np.median(steps)


def test_grey_images_have_the_lightness_that_pillow_gives():
    from PIL import Image

    images = drawn(2)
    theirs = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in images])
    assert np.abs(grey(images)[..., 0].astype(int) - theirs).max() <= 1
