"""The estimated memory of one more example."""

import gc

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from sfumato.gradients import ClippedGradient
from sfumato.gradients.batch_runner import BatchRunner
from sfumato.gradients.checks import memory
from sfumato.gradients.sites.dropout import fresh_keys


def net(width):
    return nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(width * 64, 3))


def estimate(width, views=1):
    return ClippedGradient(net(width), F.cross_entropy, views=views).bytes_per_example((1, 8, 8))


def test_it_counts_activations_and_grows_with_width_and_views():
    activations = 16 * 64 * 4
    assert activations < estimate(16) < 20 * activations
    assert 1.7 * estimate(16) < estimate(32) < 2.3 * estimate(16)
    assert 2 * estimate(16) < estimate(16, views=4) < 8 * estimate(16)


def test_an_estimate_leaves_nothing_behind():
    model = net(4)
    model[0] = parametrizations.weight_norm(model[0])
    gradient = ClippedGradient(model, F.cross_entropy)
    gradient(torch.randn(4, 1, 8, 8), torch.arange(4) % 3)

    def tensors():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    gradient.bytes_per_example((1, 8, 8))
    before = tensors()
    for _ in range(3):
        gradient.bytes_per_example((1, 8, 8))
    assert tensors() == before


def test_a_large_batch_is_cut_into_pieces(monkeypatch):
    gradient = ClippedGradient(net(4), F.cross_entropy, max_norm=0.1)
    x, y = torch.randn(21, 1, 8, 8), torch.arange(21) % 3
    whole, sizes = gradient(x, y), []
    right = BatchRunner._sum_of_piece
    monkeypatch.setattr(BatchRunner, "_sum_of_piece", lambda s, i, *a: sizes.append(len(i[0])) or right(s, i, *a))
    monkeypatch.setattr(memory, "NEAR", 0)
    pieces = ClippedGradient(net(4), F.cross_entropy, max_norm=0.1)
    pieces._model.load_state_dict(gradient._model.state_dict())
    found = pieces(x, y)
    assert sizes == [7, 7, 7]
    torch.testing.assert_close(found.norms, whole.norms)
    torch.testing.assert_close(found.losses, whole.losses)
    for name, value in found.gradients.items():
        torch.testing.assert_close(value, whole.gradients[name])


def test_pieces_keep_each_example_s_keys(monkeypatch):
    monkeypatch.setattr(memory, "NEAR", 0)
    model = nn.Sequential(nn.Dropout(0.5), net(4))
    keys = fresh_keys(20)
    x, y = torch.randn(20, 1, 8, 8), torch.arange(20) % 3
    found = ClippedGradient(model, F.cross_entropy)(x, y, keys).norms
    torch.testing.assert_close(found[15:], ClippedGradient(model, F.cross_entropy)(x[15:], y[15:], keys[15:]).norms)
