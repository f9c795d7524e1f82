"""No norm is too small: one example never adds more than C, in any way, precision and scale (TRUST: ghost norms)."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato import _devices
from sfumato.gradients import ClippedGradient
from sfumato.gradients.sites import forms
from sfumato.gradients.sites.conv import ConvKernel, Geometry
from sfumato.gradients.sites.forms import Factored, Tiled
from sfumato.gradients.sites.linear import LinearKernel

WAYS = ["keep grouped", "keep loop", "drop loop", "keep unfold", "drop unfold", "gram"]


def clipped(use):
    """The norm of the example's term after clipping to 1."""
    squares = use.squared_norms()
    factors = torch.where(squares > 1, squares.rsqrt(), 1.0)
    return use.weighted_sum(torch.where(torch.isfinite(squares), factors, 0.0)).double().norm()


def test_the_textbook_failure_of_ghost_norms_in_float32():
    """T = 64 and an offset of 1000: the true norm is near 5, and the float32 Gram form is a random number."""
    torch.manual_seed(0)
    x, g = torch.randn(1, 64, 32) + 1000, torch.randn(1, 64, 16)
    g -= g.mean(dim=1, keepdim=True)
    g *= 0.01
    textbook = (torch.bmm(x, x.transpose(1, 2)) * torch.bmm(g, g.transpose(1, 2))).sum()
    exact = torch.einsum("btp,btd->bdp", x.double(), g.double()).square().sum()
    assert abs(textbook - exact) > 0.01 * exact
    held = Factored(LinearKernel(16, 32), x, g, "gram")
    assert held.squared_norms() >= exact * (1 - 1e-4)
    assert clipped(held) <= 1 + 1e-6


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    positions=st.integers(2, 40),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    offset=st.sampled_from([0.0, 0.0, 1.0, 100.0, 1e4]),
    centred=st.booleans(),
    exponents=st.tuples(st.integers(-18, 18), st.integers(-18, 18)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    method=st.sampled_from(["gram", "product", "keep"]),
)
def test_linear_norms_are_never_too_small(seed, positions, inputs, outputs, offset, centred, exponents, dtype, method):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.float16:
        exponents = tuple(max(-4, min(3, exponent)) for exponent in exponents)
        offset = min(offset, 1.0)
    x = (torch.randn(1, positions, inputs, generator=generator) + offset) * 10.0 ** exponents[0]
    g = torch.randn(1, positions, outputs, generator=generator)
    g = (g - g.mean(dim=1, keepdim=True) if centred else g) * 10.0 ** exponents[1]
    x, g = x.to(dtype), g.to(dtype)
    kernel = LinearKernel(outputs, inputs)
    use = (
        Tiled(kernel, x.to(_wide(dtype)), g.to(_wide(dtype)), "product", None)
        if method == "keep"
        else Factored(kernel, x, g, method)
    )
    term = clipped(use)
    if torch.isfinite(use.squared_norms()):
        assert term <= 1 + 1e-6
    exact = torch.einsum("btp,btd->bdp", x.double(), g.double()).norm()
    reach = (x.double().norm() * g.double().norm()).item()
    if 1e-30 < reach < 1e30:
        # Never smaller than the exact norm, but for what the gradient's own computation rounds away.
        assert use.squared_norms().sqrt().item() >= exact.item() * (1 - 1e-6) - 1e-6 * reach
        ordinary = max(map(abs, exponents)) < 8 and x.abs().max() < 1e10
        assert torch.isfinite(use.squared_norms()) or not (ordinary and (method == "keep" or exact > 0.1 * reach))
        if exact > 0.1 * reach and torch.isfinite(use.squared_norms()):
            assert use.squared_norms().sqrt().item() <= exact.item() * (1 + 1e-4) + 1e-15


def _wide(dtype):
    return torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("method", WAYS)
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e18])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_convolution_norms_are_never_too_small(method, scale, offset):
    torch.manual_seed(0)
    geometry = Geometry(stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
    kernel = ConvKernel(geometry=geometry, shape=(5, 4, 3, 3), views=2)
    x = (torch.randn(2, 4, 8, 8) + offset) * scale
    g = torch.randn(2, 5, 8, 8)
    g -= g.mean(dim=(2, 3), keepdim=True)
    verb, _, name = method.partition(" ")
    use = Tiled(kernel, x, g, name, None) if verb == "keep" else Factored(kernel, x, g, name or "gram")
    assert clipped(use) <= 1 + 1e-6
    exact, found = kernel.instantiate(x.double(), g.double(), "loop").norm(), use.squared_norms().sqrt()
    kept, small = verb == "keep", scale <= 1e10
    if torch.isinf(found):  # not certified, so it is computed again
        assert not (small and (kept or (offset == 0 and scale >= 1e-10)))
    else:
        assert found == pytest.approx(exact.item(), rel=1e-4 if offset == 0 else 1e-2)


@pytest.mark.parametrize("mutant", ["allowance", "Gram factor"])
def test_without_a_part_of_the_certificate_a_bound_breaks(monkeypatch, mutant):
    """Each part is necessary: without it, some example exceeds C, or its norm is clearly wrong."""
    if mutant == "allowance":
        monkeypatch.setattr(forms, "rounding", lambda reach, like, positions, **given: 0 * reach)
        monkeypatch.setattr(forms, "_GRAM_ROUNDING", 0.0)
    else:
        right = LinearKernel.squares_by_gram
        monkeypatch.setattr(LinearKernel, "squares_by_gram", lambda *a: 0.99 * right(*a))
    worst = 0.0
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 64, 32, generator=generator) + 1000
        g = torch.randn(1, 64, 16, generator=generator)
        if mutant != "Gram factor":
            g -= g.mean(dim=1, keepdim=True)
        worst = max(worst, float(clipped(Factored(LinearKernel(16, 32), x, g, "gram"))))
    assert worst > 1 + 1e-6


def test_a_hard_example_is_kept_where_it_can_be_asked_which():
    x, g = torch.randn(3, 64, 32), torch.randn(3, 64, 16)
    x[1] += 1000
    g -= g.mean(dim=1, keepdim=True)
    easy, hard = (
        Factored(LinearKernel(16, 32), x[[0, 2, 2]], g[[0, 2, 2]], "gram"),
        Factored(LinearKernel(16, 32), x, g, "gram"),
    )
    squares = forms.certified([easy, hard], synchronize=True)
    assert easy._hard is None
    assert hard._hard is not None
    assert hard._hard[0].tolist() == [1]
    exact = torch.einsum("btp,btd->bdp", x.double(), g.double())
    torch.testing.assert_close(squares[1].sqrt(), exact.norm(dim=(1, 2)), rtol=1e-3, atol=0)
    assert squares[1, 1].sqrt() >= hard.instantiate()[1].double().norm()
    for factors in (torch.tensor([0.5, 1.0, 0.25]), torch.tensor([0.0, 1.0, 0.0])):
        total = torch.einsum("b,bdp->dp", factors.double(), exact)
        scale = total.norm().item()
        torch.testing.assert_close(hard.weighted_sum(factors.double()).double(), total, rtol=0, atol=1e-3 * scale)


def test_hard_examples_are_not_vouched_for_because_the_allowance_would_be_felt(monkeypatch):
    x, g = torch.randn(3, 64, 32), torch.randn(3, 64, 16)
    x[1] += 1000
    g -= g.mean(dim=1, keepdim=True)
    exact = torch.einsum("btp,btd->bdp", x.double(), g.double()).norm(dim=(1, 2))
    kernel = LinearKernel(16, 32)
    norms = Factored(kernel, x, g, "gram").squared_norms().sqrt()
    assert torch.isinf(norms).tolist() == [False, True, False]
    torch.testing.assert_close(norms[[0, 2]], exact[[0, 2]], rtol=1e-4, atol=0)
    monkeypatch.setattr(forms, "tolerance", lambda dtype: float("inf"))
    norms = Factored(kernel, x, g, "gram").squared_norms().sqrt()
    assert norms[1] > 1.001 * exact[1]


@pytest.mark.parametrize("offset", [1e2, 1e4, 5e4, 1e6])
def test_gram_norms_in_float64_pay_for_their_rounding(offset):
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 64, 32, generator=generator).double() + offset
        g = torch.randn(1, 64, 16, generator=generator).double()
        g -= g.mean(dim=1, keepdim=True)
        assert clipped(Factored(LinearKernel(16, 32), x, g, "gram")) <= 1 + 1e-9


@pytest.mark.parametrize("method", ["gram", "product"])
def test_norms_in_float64_pay_for_their_rounding_and_hardly_more(method):
    """Against 80-bit numbers, from no cancellation to the point where an example is no longer certified."""
    vouched = 0
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 50, 12, generator=generator).double() + 10.0 ** (seed / 40)
        g = torch.randn(1, 50, 9, generator=generator).double()
        g -= g.mean(dim=1, keepdim=True)
        held = Factored(LinearKernel(9, 12), x, g, method)
        bound = held.squared_norms().sqrt().numpy().astype(np.longdouble)[0]
        if np.isinf(bound):
            continue
        vouched += 1
        wide = [t[0].numpy().astype(np.longdouble) for t in (x, g)]
        exact = np.sqrt((np.einsum("tp,td->dp", *wide) ** 2).sum())
        term = np.sqrt((held.weighted_sum(torch.ones(1).double()).numpy().astype(np.longdouble) ** 2).sum())
        assert max(exact, term) <= bound <= exact * (1 + forms.GRAM_TOLERANCE + 2 * forms.tolerance(x.dtype))
    assert 50 < vouched < (150 if method == "gram" else 201)


def net():
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(inplace=True), nn.Conv2d(6, 8, 3, stride=2)),
        *(nn.Flatten(2), nn.Linear(9, 7), nn.LayerNorm(7), nn.GELU(), nn.Flatten(), nn.Linear(56, 5)),
    )


@pytest.mark.parametrize("method", ["keep grouped", "drop unfold", "gram"])
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16", "autocast"])
@pytest.mark.parametrize(("scale", "offset"), [(1e-12, 0.0), (1e6, 0.0), (1.0, 1000.0)])
def test_one_example_of_a_network_never_exceeds_the_bound(monkeypatch, method, precision, scale, offset):
    torch.manual_seed(0)

    def chosen(self, site, kernel, x, g, *, derived=False):
        if site.startswith("linear "):
            return {"gram": "gram", "keep": "keep product", "drop": "drop product"}[method.split()[0]]
        return method

    monkeypatch.setattr("sfumato.gradients.tuner.Tuner.method", chosen)
    dtype = torch.float32 if precision == "autocast" else getattr(torch, precision)
    model = net().to(dtype)
    x = ((torch.randn(1, 3, 8, 8) + offset) * scale).to(dtype)
    for bound in (1e-4, 1.0):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
            total = ClippedGradient(model, lambda o, t: 1e3 * F.cross_entropy(o, t), max_norm=bound)(
                x, torch.tensor([1])
            )
        norm = torch.stack([value.double().norm() for value in total.gradients.values()]).norm()
        assert norm <= bound * (1 + 1e-6)
        own = _devices.has_device_forms(x.device) and precision != "float32"
        assert norm >= min(bound, float(total.norms)) * (1 - (0.05 if own else 2e-4))
