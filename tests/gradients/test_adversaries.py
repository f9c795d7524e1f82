"""Adversarial models: whatever their weights are functions of, one example adds at most C."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.gradients.sites.forms import Factored
from sfumato.gradients.sites.linear import LinearKernel, OuterProduct
from sfumato.gradients.use import Exact

C = 0.1


class Through(nn.Module):
    """A linear map by a function of its weight, its gain and a buffer, at several positions."""

    def __init__(self, function, buffer, width=64, scale=0.05, rows=8):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, width) * scale)
        self.gain = nn.Parameter(torch.ones(rows, 1))
        self.function = function
        self.register_buffer("fixed", buffer.clone())

    def forward(self, x):
        return F.linear(x, self.function(self.weight, self.gain, self.fixed)).mean(1)


def added(gradient, x, y):
    """The norm of one example's contribution, over C."""
    total = gradient(x, y).gradients.values()
    return float(torch.stack([value.double().norm() for value in total]).norm()) / C


def steep(outputs, targets):
    return 1e4 * F.cross_entropy(outputs, targets)


SIGNS = torch.randn(64, generator=torch.Generator().manual_seed(3)).sign()
# The function, the buffer when the model is first run, and a later change.
DECEPTIONS = {
    "a buffer that turns": (
        lambda w, g, b: w @ b,
        torch.eye(64),
        lambda m: m.fixed.add_((torch.outer(SIGNS, SIGNS) / 64).to(m.fixed)),
    ),
    "a weight that leaves the linear range": (
        lambda w, g, b: torch.tanh(w),
        torch.zeros(1),
        lambda m: m.weight.data.normal_(0, 0.5),
    ),
    "a mask that closes": (lambda w, g, b: w * b, torch.ones(8, 64), lambda m: m.fixed[:, :2].zero_()),
    "a gain that is none": (
        lambda w, g, b: w + (g - 1) * b,
        torch.zeros(8, 64),
        lambda m: m.fixed.copy_(torch.randn(8, 64)),
    ),
    "a small part of rank one": (lambda w, g, b: w + 1e-5 * (w @ b)[:, None] * b, SIGNS.clone(), lambda m: None),
}


@pytest.mark.parametrize("method", ["keep product", "drop product", "gram"])
@pytest.mark.parametrize("name", DECEPTIONS)
def test_what_was_a_function_of_rows_and_is_none_any_more_keeps_the_bound(monkeypatch, name, method):
    monkeypatch.setattr("sfumato.gradients.tuner.Tuner.method", lambda *a, **k: method)
    function, buffer, change = DECEPTIONS[name]
    torch.manual_seed(0)
    model = Through(function, buffer)
    gradient = ClippedGradient(model, steep, max_norm=C)
    for _ in range(3):
        for x in (torch.randn(1, 5, 64), SIGNS.expand(1, 5, 64) + 0.1 * torch.randn(1, 5, 64)):
            assert added(gradient, x, torch.tensor([1])) <= 1 + 1e-6
        with torch.no_grad():
            change(model)


@pytest.mark.parametrize("name", [name for name in DECEPTIONS if "small" not in name])
def test_and_its_gradient_is_right_again(compare, there, name):
    function, buffer, change = DECEPTIONS[name]
    model = Through(function, buffer.double()).double()
    model, x, y = there(model, torch.randn(3, 5, 64).double(), torch.arange(3))
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1)
    gradient(x, y)
    with torch.no_grad():
        change(model)
    exact = compare(model, x, y)(x, y)
    found = gradient(x, y)
    torch.testing.assert_close(found.norms, exact.norms, rtol=1e-8, atol=0)
    for key, value in found.gradients.items():
        torch.testing.assert_close(value, exact.gradients[key], rtol=1e-7, atol=1e-12)


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 5))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_turned_weight_in_half_precision_is_summed_in_float32(dtype):
    torch.manual_seed(0)
    gradient = ClippedGradient(Product().to(dtype), lambda o, t: 50 * F.cross_entropy(o, t), max_norm=C)
    for _ in range(50):
        assert added(gradient, torch.randn(1, 12).to(dtype), torch.tensor([1])) <= 1 + 1e-6


def standardised(weight):
    deviation, mean = torch.std_mean(weight, (1, 2, 3), keepdim=True)
    return (weight - mean) / deviation


class Standardised(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, standardised(self.weight), self.bias)


@pytest.mark.parametrize("method", ["keep grouped", "drop grouped", "gram"])
def test_standardised_weights_under_autocast(monkeypatch, method):
    monkeypatch.setattr("sfumato.gradients.tuner.Tuner.method", lambda *a, **k: method)
    monkeypatch.setattr("sfumato.gradients.tuner.Tuner.known_method", lambda *a, **k: method)
    torch.manual_seed(0)
    for _ in range(4):
        model = nn.Sequential(Standardised(16, 16, 3, padding=1), nn.Flatten(), nn.Linear(256, 3))
        gradient = ClippedGradient(model, steep, max_norm=C)
        patch = standardised(model[0].weight.detach())[0].repeat(1, 2, 2)[:, :4, :4]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert added(gradient, (patch + 0.3 * torch.randn(16, 4, 4)).unsqueeze(0), torch.tensor([1])) <= 1 + 1e-6


def test_a_weight_that_is_changed_after_its_use_is_refused():
    class Changing(nn.Linear):
        def forward(self, x):
            weight = self.weight.clone()
            outputs = F.linear(x, weight)
            weight.mul_(10.0)
            return outputs

    with pytest.raises(SfumatoError, match=r"changes a weight in place after using it \(made of weight"):
        ClippedGradient(Changing(4, 3), F.cross_entropy)(torch.randn(2, 4), torch.arange(2))


@pytest.mark.parametrize("positions", [64, 4096, 1 << 16])
def test_long_sums_of_one_sign_pay_for_their_rounding(positions):
    x, g = torch.rand(1, positions, 3) + 1, torch.rand(1, positions, 2) + 1
    held = Factored(LinearKernel(2, 3), x, g, "product")
    factors = held.squared_norms().rsqrt()
    assert held.weighted_sum(factors).double().norm() <= 1 + 1e-6


def test_products_of_low_precision_are_paid_for(monkeypatch):
    plain = OuterProduct(torch.randn(1, 5), torch.randn(1, 3)).squared_norms()
    for precision, unit in (("high", 2.0**-11), ("medium", 2.0**-8)):
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda precision=precision: precision)
        torch.manual_seed(0)
        lax = OuterProduct(torch.ones(1, 5), torch.ones(1, 3)).squared_norms()
        assert lax.sqrt() >= 15**0.5 * (1 + 2 * unit)
    assert plain.isfinite().all()


def test_precisions_that_were_set_one_by_one_count_as_the_lowest(monkeypatch):
    def refuses():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuses)
    norm = OuterProduct(torch.ones(1, 5), torch.ones(1, 3)).squared_norms().sqrt()
    assert norm >= 15**0.5 * (1 + 2 * 2.0**-8)


SIZES = [(1e37, 1e-30), (1e-30, 1e37), (1e20, 1e-20), (1e37, 1.0), (1.0, 1e37), (1e11, 1e-40), (1e-40, 1e11)]
"""Of inputs and of output gradients: far apart, or one of them extreme."""


@pytest.mark.parametrize("method", ["gram", "product"])
@pytest.mark.parametrize(("inputs", "gradients"), SIZES)
def test_factors_of_extreme_sizes_are_computed_again_exactly(inputs, gradients, method):
    for bound in (1e-1, 1e-6, 1e-33) if 1e-40 in (inputs, gradients) else (1e-1, 1e-3, 1e-6):
        x, g = torch.randn(1, 9, 6) * inputs, torch.randn(1, 9, 4) * gradients
        held = Factored(LinearKernel(4, 6), x, g, method)
        assert torch.isinf(held.squared_norms())
        exact = Exact(held.instantiate())
        factors = (bound / exact.squared_norms().sqrt()).clamp(max=1.0)
        assert exact.weighted_sum(factors).double().norm() <= bound * (1 + 1e-6)


def test_ways_that_cannot_be_are_refused():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3))
    gradient = ClippedGradient(model, F.cross_entropy)
    gradient(torch.randn(2, 4, 4, 4), torch.arange(2))
    methods = dict.fromkeys(gradient.methods, "gram")
    with pytest.raises(SfumatoError, match=r"methods has 'gram' for 'conv .* 2 groups, 2x2', which this site does not"):
        ClippedGradient(model, F.cross_entropy, methods=methods)(torch.randn(2, 4, 4, 4), torch.arange(2))
