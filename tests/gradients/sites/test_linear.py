"""Linear sites against the oracle, over random shapes."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.gradients.sites.forms import Factored, Tiled, combine
from sfumato.gradients.sites.linear import LinearKernel, OuterProduct
from sfumato.gradients.use import Exact, Instantiated, RowMap

quick = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


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


def test_one_position_is_never_instantiated(monkeypatch, compare):
    monkeypatch.setattr(OuterProduct, "instantiate", None)
    monkeypatch.setattr(LinearKernel, "instantiate", None)
    compare(
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double(), torch.randn(3, 5).double(), torch.arange(3)
    )


@pytest.mark.parametrize("positions", [1, 2, 7])
def test_every_form_has_the_same_norm_and_sum(positions):
    weight = torch.randn(3, 5, dtype=torch.float64)
    x, g = torch.randn(4, positions, 5, dtype=torch.float64), torch.randn(4, positions, 3, dtype=torch.float64)
    exact = torch.einsum("btp,btd->bdp", x, g)
    factors, scales = torch.tensor([0.5, 0.0, 1.0, 0.25]).double(), torch.rand(3).double() + 0.5
    kernel = LinearKernel(3, 5)
    forms = [Tiled(kernel, x, g, "product", None), Factored(kernel, x, g, "product"), Factored(kernel, x, g, "gram")]
    bias = torch.randn(3, dtype=torch.float64)
    forms += [Factored(kernel, x, g, "gram", y=x @ weight.t()), Instantiated(exact)]
    forms += [Factored(kernel, x, g, "gram", y=x @ weight.t() + bias, bias=bias)]
    forms += [OuterProduct(x[:, 0], g[:, 0])] if positions == 1 else []
    for form in forms:
        torch.testing.assert_close(form.squared_norms(), exact.square().sum((1, 2)))
        torch.testing.assert_close(form.weighted_sum(factors), torch.einsum("bdp,b->dp", exact, factors))
        torch.testing.assert_close(form.instantiate(), exact)
        found = form.row_statistics(RowMap(weight, scales, scales))
        torch.testing.assert_close(found.squares, ((exact * scales[:, None]) ** 2).sum((1, 2)))
        torch.testing.assert_close(found.dots, (exact * weight).sum(2))
        torch.testing.assert_close(found.sums, exact.sum(2))
        assert (found.rounding > 1e-16 * exact.norm(dim=(1, 2))).all()


@pytest.mark.parametrize("positions", [1, 2, 7])
def test_the_absolute_terms_are_within_the_spread(positions):
    x, g = torch.randn(4, positions, 5), torch.randn(4, positions, 3)
    terms = (x.norm(dim=2) * g.norm(dim=2)).sum(dim=1)
    sizes = x.flatten(1).norm(dim=1) * g.flatten(1).norm(dim=1)
    assert (LinearKernel(3, 5).spread() * sizes >= terms * (1 - 1e-6)).all()


def test_several_uses_of_one_weight_are_joined():
    kernel = LinearKernel(3, 5)
    x, g = torch.randn(4, 6, 5, dtype=torch.float64), torch.randn(4, 6, 3, dtype=torch.float64)
    parts = [
        Factored(kernel, x[:, :2], g[:, :2], "gram", later=True),
        Factored(kernel, x[:, 2:], g[:, 2:], "gram", later=True),
    ]
    exact = torch.einsum("btp,btd->bdp", x, g)
    torch.testing.assert_close(combine(parts).squared_norms(), exact.square().sum((1, 2)))
    apart = parts[0].squared_norms() + parts[1].squared_norms()
    assert not torch.allclose(apart, exact.square().sum((1, 2)))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e10, 1e20, 1e35])
@pytest.mark.parametrize("bound", [1.0, 1e-8])
def test_outer_product_never_exceeds_its_norm(scale, bound):
    use = OuterProduct(torch.randn(1, 7) * scale, torch.randn(1, 5))
    norm = use.squared_norms().sqrt()
    assert torch.isinf(norm) == (scale > 1e15)  # the product with a factor could lose digits, so it is not certified
    exact = Exact(use.instantiate())
    for form in [exact] if torch.isinf(norm) else [use, exact]:
        norm, size = form.squared_norms().sqrt(), use.instantiate().double().norm()
        clipped = form.weighted_sum((bound / norm).clamp_max(1)).double().norm()
        assert clipped <= bound * (1 + 1e-6)
        assert clipped >= min(bound, size) * (1 - 1e-5)
