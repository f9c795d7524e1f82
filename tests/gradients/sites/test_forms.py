"""Uses of one tensor in different forms: all of them are added before the norm is taken."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.gradients import use
from sfumato.gradients.methods import contributions
from sfumato.gradients.sites.forms import Instantiated, combine


class Table(nn.Module):
    """One weight as a table of words, as a linear map, and as a table of bags."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, words):
        x = F.linear(F.embedding(words, self.weight).tanh(), self.weight).sin().sum(1)
        return x + F.embedding_bag(words, self.weight).exp()


class Turned(Table):
    """The same as a table, transposed, and as a convolution."""

    def forward(self, words):
        x = F.linear(F.embedding(words, self.weight).tanh(), self.weight.t()).sin()
        return F.conv1d(x.transpose(1, 2), self.weight.unsqueeze(-1)).exp().mean(2)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("model", [Table, Turned])
def test_one_weight_used_in_three_unlike_ways(compare, monkeypatch, model, views):
    met = []
    monkeypatch.setattr(contributions, "combine", lambda uses: (met.append(len(uses)), combine(uses))[1])
    words = torch.randint(4, (3, 5) if views == 1 else (3, views, 5))
    compare(model().double(), words, torch.arange(3), views=views)
    assert max(met) == 3


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_uses_in_the_common_form_are_added(count):
    values = [torch.randn(3, 4, 2) for _ in range(count)]
    before = [value.clone() for value in values]
    torch.testing.assert_close(combine([*map(Instantiated, values)]).instantiate(), sum(before))
    assert all(map(torch.equal, values, before))


@pytest.mark.parametrize(("products", "convolutions"), [(False, True), (True, False), (False, False)])
def test_a_rounding_unit_is_that_of_the_kernel_that_computes(monkeypatch, products, convolutions):
    """Torch's convolutions take TF32 on CUDA by default, and its matrix products do not."""
    there = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda"))
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=products))
    monkeypatch.setattr(torch.backends, "cudnn", SimpleNamespace(allow_tf32=convolutions))
    coarse, fine = 2.0**-11, 2.0**-24
    assert use.unit_roundoff(there) == (coarse if products else fine)
    assert use.unit_roundoff(there, convolution=True) == (coarse if products or convolutions else fine)
