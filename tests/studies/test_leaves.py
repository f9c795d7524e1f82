import numpy as np

from studies.dead_leaves import dead_leaves


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
