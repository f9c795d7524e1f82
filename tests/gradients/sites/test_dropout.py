"""Dropout follows each example's key."""

import pytest
import timm.layers
import torch
import torch.nn.functional as F
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.gradients.sites.dropout import ExampleDraws, fresh_keys


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(6, 18), nn.Linear(6, 3)

    def forward(self, x):
        q, k, v = self.mix(x).chunk(3, dim=-1)
        return self.head(F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, is_causal=True).mean(1))


MODELS = {
    "dropout": (nn.Sequential(nn.Dropout(0.4), nn.Flatten(), nn.Linear(60, 3)), (10, 6)),
    "channels": (nn.Sequential(nn.Dropout1d(0.4), nn.Flatten(), nn.Linear(60, 3)), (10, 6)),
    "images": (nn.Sequential(nn.Dropout2d(0.4), nn.Flatten(), nn.Linear(160, 3)), (10, 4, 4)),
    "depth": (nn.Sequential(timm.layers.DropPath(0.4), nn.Flatten(), nn.Linear(60, 3)), (10, 6)),
    "attention": (Attention(), (10, 6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_example_s_masks_depend_on_its_key_alone(name):
    model, shape = MODELS[name]
    gradient = ClippedGradient(model, F.cross_entropy, views=3)
    x = torch.randn(1, 3, *shape).expand(8, 3, *shape)
    y, keys = torch.zeros(8, dtype=torch.int64), fresh_keys(8)
    together = gradient(x, y, keys)
    assert gradient.uses_keys
    assert together.norms.unique().numel() > 1
    order = torch.tensor([5, 2, 7])
    torch.testing.assert_close(
        gradient(x[order], y[order], keys[order]).norms, together.norms[order], rtol=1e-5, atol=0
    )
    same = gradient(x, y, keys[:1].expand(8, 4)).norms
    torch.testing.assert_close(same, same[:1].expand(8), rtol=1e-6, atol=0)
    gradient.self_check(shape)


def test_views_and_places_have_masks_of_their_own():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), nn.Flatten(), nn.Linear(400, 3))
    gradient = ClippedGradient(model, F.cross_entropy, views=2)
    total = gradient(torch.ones(1, 2, 400), torch.zeros(1, dtype=torch.int64), fresh_keys(1))
    kept = (total.gradients["3.weight"][0] != 0).double().mean()
    assert 0.3 < kept < 0.6  # 1 - (3/4)^2: neither the two layers nor the two views share a mask


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_share_that_is_kept(probability):
    draws = ExampleDraws(4, fresh_keys(4))
    found = torch.stack([draws.bernoulli(probability, (2000,), torch.device("cpu")) for _ in range(5)])
    deviation = (probability * (1 - probability) / 40_000) ** 0.5
    assert abs(found.double().mean() - probability) <= 4 * deviation
    assert found.unflatten(0, (5, 1)).flatten(0, 2).unique(dim=0).shape[0] == (20 if 0 < probability < 1 else 1)


def test_all_256_bits_of_a_key_matter():
    keys = fresh_keys(1)
    first = ExampleDraws(1, keys).bernoulli(0.5, (200,), torch.device("cpu"))
    for word in range(4):
        for bit in (0, 31, 32, 62):
            other = keys.clone()
            other[0, word] ^= 1 << bit
            assert not torch.equal(ExampleDraws(1, other).bernoulli(0.5, (200,), torch.device("cpu")), first)


def test_the_inverse_of_the_kept_share_scales_what_is_kept(compare):
    gradient = ClippedGradient(nn.Sequential(nn.Dropout(0.75), nn.Linear(1000, 1)), lambda o, t: o.mean(), max_norm=1e9)
    total = gradient(torch.ones(1, 1000), torch.zeros(1), fresh_keys(1)).gradients["1.weight"]
    assert set(total.unique().tolist()) == {0.0, 4.0}


def test_evaluation_mode_draws_nothing():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)).eval()
    gradient = ClippedGradient(model, F.cross_entropy)
    x, state = torch.randn(2, 4), torch.get_rng_state()
    gradient(x, torch.arange(2))
    assert not gradient.uses_keys
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("keys", [torch.zeros(3, 4, dtype=torch.int64), torch.zeros(2, 4), torch.zeros(2, 2).long()])
def test_bad_keys_are_refused(keys):
    with pytest.raises(SfumatoError, match=r"keys must be a tensor of int64 of shape \(2, 4\)"):
        ClippedGradient(nn.Linear(4, 3), F.cross_entropy)(torch.randn(2, 4), torch.arange(2), keys)
