"""Normalisation layers, and convolutions with standardised weights."""

import pytest
import torch
from torch import nn

from sfumato.models.norms import NORMS, normalisation, standardise

# Over which dimensions of (N, C, H, W), or of (N, C), values have mean zero and variance one afterwards.


@pytest.mark.parametrize(("channels", "groups"), [(64, 16), (84, 4), (7, 1)])
def test_groups_are_as_many_as_divide(channels, groups):
    layer = normalisation("group", channels, spatial=True)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("channels", [2, 10])
def test_no_unit_without_positions_is_normalised_to_nothing(kind, channels):
    values = torch.randn(4, channels)
    assert normalisation(kind, channels, spatial=False)(values).std() > 0.1


@pytest.mark.parametrize("kind", [kind for kind in NORMS if kind != "batch"])
@pytest.mark.parametrize("shape", [(3, 8, 4, 4), (3, 8)])
def test_all_but_batch_norm_leave_examples_alone(kind, shape):
    layer, batch = normalisation(kind, 8, spatial=len(shape) == 4), torch.randn(shape)
    alone = layer(batch)[0].clone()
    batch[1:] *= 100
    torch.testing.assert_close(layer(batch)[0], alone)


def test_constant_rows_stay_finite():
    weight = torch.ones(2, 1, 1, 1, requires_grad=True)
    standardise(weight).sum().backward()
    assert torch.equal(standardise(weight), torch.zeros(2, 1, 1, 1))
    assert weight.grad is not None
    assert torch.isfinite(weight.grad).all()
