"""The estimate of what one more example costs."""

import torch.nn.functional as F
from torch import nn

from sfumato.gradients import ClippedGradient


def net(width):
    return nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(width * 64, 3))


def estimate(width, views=1):
    return ClippedGradient(net(width), F.cross_entropy, views=views).bytes_per_example((1, 8, 8))


def test_it_counts_activations_and_grows_with_width_and_views():
    activations = 16 * 64 * 4
    assert activations < estimate(16) < 20 * activations
    assert 1.7 * estimate(16) < estimate(32) < 2.3 * estimate(16)
    assert 2 * estimate(16) < estimate(16, views=4) < 8 * estimate(16)
