"""Views and normalised pixels on a device, against those of the CPU. A script for test_views_on_a_device.py.

    SFUMATO_TEST_DEVICE=cuda python tests/data/images/views_on_a_device.py

A device that computes on the CPU can be had once in a process, so this is one of its own.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3]))  # the repository root, for `benchmarks`

from benchmarks.shared.counting import NAME, counted, counting_device
from sfumato.data import Transform, Views

DEVICE = os.environ.get("SFUMATO_TEST_DEVICE", "cpu").replace("cpu", NAME)
NEAR = {NAME: 0.0}
"""How far interpolated pixels, from -1 to 1, may be off; on a device with kernels of its own 1e-5."""

KINDS = st.one_of(
    st.fixed_dictionaries({"shift": st.integers(0, 6), "flip": st.booleans()}),
    st.fixed_dictionaries({"zoom": st.sampled_from([1.2, 1.5]), "flip": st.booleans()}),
    st.fixed_dictionaries({"crop_area": st.sampled_from([0.1, 0.6]), "flip": st.booleans()}),
)


@settings(max_examples=6, deadline=None)
@given(
    kind=KINDS,
    count=st.integers(1, 4),
    channels=st.sampled_from([1, 3]),
    n=st.integers(1, 5),
    mean=st.floats(0.1, 0.9),
    std=st.floats(0.1, 0.9),
    large=st.booleans(),
    seed=st.integers(0, 99),
)
def views_are_those_of_the_cpu(kind, count, channels, n, mean, std, large, seed):
    """Bit for bit where pixels are only picked out, `large` images of a zoom among them."""
    views, random, size = Views(count=count, **kind), np.random.default_rng(seed), 16
    side = views.side(size) if large else size
    draws = views.draw(random, n, size=size)
    images = torch.from_numpy(random.integers(0, 256, (n, side, side, channels), dtype=np.uint8))
    transform = Transform(size=side, channels=channels, mean=(mean,), std=(std,))
    here = views.apply(transform(images), draws, size=size)
    there = images.to(DEVICE)
    with counted() as counts:
        found = views.apply(transform(there), draws, size=size)
    assert counts.there <= 1, "the moves"
    assert not counts.stops
    assert found.device.type == torch.device(DEVICE).type
    found = found.cpu()
    assert found.shape == here.shape
    picked = views.crop_area == 1 and side == views.side(size)
    if picked:
        assert torch.equal(found, here)
    else:
        torch.testing.assert_close(found, here, rtol=0, atol=NEAR.get(DEVICE, 1e-5) / std)


def every_byte_is_normalised_alike() -> None:
    """By constants whose inverse is not exact."""
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(1, 16, 16, 3).contiguous()
    transform = Transform(size=16, channels=3, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.201))
    assert torch.equal(transform(images.to(DEVICE)).cpu(), transform(images))


if __name__ == "__main__":
    with counting_device() if DEVICE == NAME else nullcontext():
        every_byte_is_normalised_alike()
        views_are_those_of_the_cpu()
    print(json.dumps({"device": DEVICE}))
