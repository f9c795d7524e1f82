"""Convolution sites against the oracle, over random geometries; and every method against every other."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.gradients import use
from sfumato.gradients.sites.conv import ConvKernel, Geometry
from sfumato.gradients.sites.forms import Factored, Tiled
from sfumato.gradients.use import RowMap

quick = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@st.composite
def convolutions(draw):
    dimensions = draw(st.sampled_from([1, 2, 2, 2, 3]))
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    each = st.tuples(*[st.integers(1, 3)] * dimensions)
    padding = draw(st.one_of(st.just("same"), st.just("valid"), st.tuples(*[st.integers(0, 2)] * dimensions)))
    return dimensions, {
        "in_channels": groups * draw(st.integers(1, 4 if groups == 1 else 2)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel_size": draw(each),
        "stride": 1 if padding == "same" else draw(each),
        "padding": padding,
        "dilation": draw(each),
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "zeros", "replicate", "circular"])),
    }


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@quick
@given(
    chosen=convolutions(),
    examples=st.integers(1, 3),
    views=st.integers(1, 2),
    side=st.integers(4, 7),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_convolution_is_exact(compare, chosen, examples, views, side, dtype):
    dimensions, options = chosen
    assume(
        all(side >= d * (k - 1) + 1 for k, d in zip(options["kernel_size"], _each(options, dimensions), strict=True))
    )
    model = nn.Sequential(
        CONVOLUTIONS[dimensions](**options), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3), nn.Tanh(), nn.Linear(3, 3)
    )
    lead = (examples,) if views == 1 else (examples, views)
    x = torch.randn(*lead, options["in_channels"], *[side] * dimensions)
    model(x[:1] if views == 1 else x[0])
    compare(model.to(dtype), x.to(dtype), torch.arange(examples) % 3, views=views)


def _each(options, dimensions):
    return options["dilation"] if isinstance(options["dilation"], tuple) else (options["dilation"],) * dimensions


def kernels(dimensions=2, channels=4, groups=1, stride=1, padding=0, dilation=1, views=1, dtype=torch.float64):
    """A kernel, and random inputs and output gradients of four examples."""
    many = dimensions * (1,)
    geometry = Geometry(
        stride=tuple(stride * n for n in many),
        padding=tuple(padding * n for n in many),
        dilation=tuple(dilation * n for n in many),
        groups=groups,
    )
    weight = torch.randn(2 * groups, channels // groups, *(3, 2, 1)[:dimensions], dtype=dtype)
    x = torch.randn(4 * views, channels, *(7, 6, 5)[:dimensions], dtype=dtype)
    y = geometry.apply(x, weight, None)
    return ConvKernel(geometry=geometry, shape=tuple(weight.shape), views=views), weight, x, torch.randn_like(y), y


geometries = pytest.mark.parametrize(
    "options",
    [
        {},
        {"channels": 1, "views": 3},
        {"stride": 2, "padding": 1},
        {"padding": 2, "dilation": 2, "views": 2},
        {"channels": 6, "groups": 3, "padding": 1},
        {"channels": 4, "groups": 4, "stride": 2, "views": 2},
        {"dimensions": 1, "padding": 1},
        {"dimensions": 3, "stride": 2, "views": 2},
    ],
    ids=str,
)


def by_definition(weight, kernel, x, g):
    """Each example's gradient by autograd, one at a time."""
    found = []
    for inputs, gradients in zip(x.split(kernel.views), g.split(kernel.views), strict=True):
        leaf = weight.clone().requires_grad_()
        found += torch.autograd.grad(kernel.geometry.apply(inputs, leaf, None), leaf, gradients)
    return torch.stack(found)


@geometries
def test_all_ways_are_the_gradient(options):
    kernel, weight, x, g, y = kernels(**options)
    exact = by_definition(weight, kernel, x, g)
    for method in kernel.methods():
        torch.testing.assert_close(kernel.instantiate(x, g, method), exact)
    torch.testing.assert_close(kernel.total(x, g), exact.sum(0))
    rows = exact.flatten(2)
    torch.testing.assert_close(kernel.input_sums(x, g), rows.sum(2))
    torch.testing.assert_close(kernel.output_dots(y, g, None), (rows * weight.flatten(1)).sum(2))
    bias = torch.randn(len(weight), dtype=x.dtype)
    shifted = y + bias.reshape(-1, *[1] * (y.dim() - 2))
    torch.testing.assert_close(kernel.output_dots(shifted, g, bias), (rows * weight.flatten(1)).sum(2))
    sizes = [t.reshape(4, -1).norm(dim=1) for t in (x, g)]
    assert (kernel.spread() * sizes[0] * sizes[1] >= rows.flatten(1).norm(dim=1)).all()
    if x.dim() == 4 and kernel.geometry.groups == 1:
        torch.testing.assert_close(kernel.squares_by_gram(x, g), rows.square().sum((1, 2)))
        of_patches = products_of_patches(kernel, x)
        torch.testing.assert_close(kernel._gram_of_pixels(x, g).reshape(of_patches.shape), of_patches)


def products_of_patches(kernel, x):
    """(b, K*T, K*T): inner products of all patches of an example."""
    patches = kernel._patches(x.double()).unflatten(0, (-1, kernel.views)).transpose(1, 2).flatten(2)
    return patches.transpose(1, 2) @ patches


@geometries
def test_every_form_has_the_same_norm_and_sum(options):
    kernel, weight, x, g, y = kernels(**options)
    exact = by_definition(weight, kernel, x, g)
    factors, scales = torch.tensor([0.5, 0.0, 1.0, 0.25]).double(), torch.rand(len(weight)).double() + 0.5
    forms = [Tiled(kernel, x, g, method, None) for method in kernel.methods()]
    forms += [Factored(kernel, x, g, method) for method in kernel.methods()]
    if x.dim() == 4 and kernel.geometry.groups == 1:
        forms += [Factored(kernel, x, g, "gram"), Factored(kernel, x, g, "gram", y=y)]
    for form in forms:
        torch.testing.assert_close(form.squared_norms(), exact.flatten(1).square().sum(1))
        torch.testing.assert_close(form.weighted_sum(factors), torch.einsum("b...,b->...", exact, factors))
        torch.testing.assert_close(form.instantiate(), exact)
        found = form.row_statistics(RowMap(weight, scales, scales))
        rows = exact.flatten(2)
        torch.testing.assert_close(found.squares, ((rows * scales[:, None]) ** 2).sum((1, 2)))
        torch.testing.assert_close(found.dots, (rows * weight.flatten(1)).sum(2))
        torch.testing.assert_close(found.sums, rows.sum(2))
        assert form.bytes() > 0


def test_tiles_change_nothing(monkeypatch):
    kernel, weight, x, g, _ = kernels(views=2)
    exact = by_definition(weight, kernel, x, g)
    monkeypatch.setattr(use, "TILE", 30)
    for form in (
        Tiled(kernel, x, g, "unfold", None),
        Factored(kernel, x, g, "grouped"),
        Factored(kernel, x, g, "gram"),
    ):
        torch.testing.assert_close(form.squared_norms(), exact.flatten(1).square().sum(1))
        torch.testing.assert_close(form.weighted_sum(torch.ones(4).double()), exact.sum(0))
        torch.testing.assert_close(form.instantiate(), exact)


@pytest.mark.parametrize("method", ["keep", "grouped", "gram"])
def test_rounding_counts_by_the_row_it_is_in(method):
    """A row without a gradient adds nothing, however large its scale; other rows add according to their own scale."""
    kernel, weight, x, g, _ = kernels()
    g = g.clone()
    g[:, 1:] = 0
    ones, sizes = torch.ones(len(weight)).double(), torch.full((len(weight),), 1e6).double()

    def counted(first):
        sizes[0] = first
        form = Tiled(kernel, x, g, "loop", None) if method == "keep" else Factored(kernel, x, g, method)
        return form.row_statistics(RowMap(weight, ones, sizes)).rounding

    assert (counted(1.0) > 0).all()
    torch.testing.assert_close(counted(3.0), 3 * counted(1.0))


@st.composite
def transposed(draw):
    dimensions, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2]))
    stride, dilation, kernel = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return dimensions, {
        "in_channels": groups * draw(st.integers(1, 3)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel_size": kernel,
        "stride": stride,
        "dilation": dilation,
        "padding": draw(st.integers(0, dilation * (kernel - 1) // 2)),
        "output_padding": draw(st.integers(0, max(stride, dilation) - 1)),
        "groups": groups,
        "bias": draw(st.booleans()),
    }


@quick
@given(
    chosen=transposed(),
    examples=st.integers(1, 3),
    views=st.integers(1, 2),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_transposed_convolution_is_exact(compare, chosen, examples, views, dtype):
    dimensions, options = chosen
    kind = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[dimensions]
    model = nn.Sequential(kind(**options), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))
    lead = (examples,) if views == 1 else (examples, views)
    x = torch.randn(*lead, options["in_channels"], *[4] * dimensions)
    model(x[:1] if views == 1 else x[0])
    gradient = compare(model.to(dtype), x.to(dtype), torch.arange(examples) % 3, views=views)
    assert any(site.startswith("conv transposed") for site in gradient.methods)


def test_an_image_without_a_batch_axis(compare):
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)

        def forward(self, x):
            return torch.stack([self.conv(image).mean((1, 2)) for image in x])

    gradient = compare(Single().double(), torch.randn(3, 2, 5, 5, dtype=torch.float64), torch.arange(3))
    assert gradient.unused_parameters == ()


@quick
@given(
    images=st.integers(1, 3),
    channels=st.integers(1, 3),
    sides=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_patches_are_those_of_unfold(images, channels, sides, kernel, stride, padding, dilation):
    assume(all(n + 2 * p > d * (k - 1) for n, p, d, k in zip(sides, padding, dilation, kernel, strict=True)))
    geometry = Geometry(stride=stride, padding=padding, dilation=dilation, groups=1)
    x = torch.randn(images, channels, *sides)
    found = ConvKernel(geometry=geometry, shape=(2, channels, *kernel), views=1)._patches(x)
    assert torch.equal(found, torch.nn.functional.unfold(x, kernel, dilation, padding, stride))
