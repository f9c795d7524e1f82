"""Linear sites against the oracle, over random shapes."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.gradients.sites.linear import LinearSite, OuterProduct

quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Tokens(nn.Module):
    """A linear map at several positions, then the mean over them."""

    def __init__(self, inputs, outputs, bias):
        super().__init__()
        self.map = nn.Linear(inputs, outputs, bias=bias)

    def forward(self, x):
        return self.map(x).tanh().flatten(1, -2).mean(1)


@quick
@given(
    examples=st.integers(1, 4),
    views=st.integers(1, 3),
    positions=st.lists(st.integers(1, 3), max_size=2),
    inputs=st.integers(1, 5),
    outputs=st.integers(2, 5),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_linear_is_exact(compare, examples, views, positions, inputs, outputs, bias, dtype):
    lead = (examples,) if views == 1 else (examples, views)
    model = Tokens(inputs, outputs, bias).to(dtype)
    x = torch.randn(*lead, *(positions or [1]), inputs, dtype=dtype)
    compare(model, x, torch.arange(examples) % outputs, views=views)


def test_one_position_is_never_instantiated():
    site = LinearSite(torch.ones(3, 2, requires_grad=True), None, 4)
    site.record(torch.ones(4, 2), torch.ones(4, 3))
    assert isinstance(site.uses()[0][1], OuterProduct)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e10, 1e20, 1e35])
def test_outer_product_never_exceeds_its_norm(scale):
    use = OuterProduct(torch.randn(1, 7) * scale, torch.randn(1, 5))
    norm = use.squared_norms().sqrt()
    clipped = use.weighted_sum(1 / norm)
    assert clipped.double().norm() <= 1 + 1e-6
    assert clipped.double().norm() >= 1 - 1e-6


def test_views_are_not_the_product_of_means(compare):
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    x[:, 1] = -x[:, 0]
    compare(nn.Linear(4, 3).double(), x, torch.arange(3), views=2, loss=F.cross_entropy)
