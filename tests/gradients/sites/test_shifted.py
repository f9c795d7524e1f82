"""Gradients of convolutions by shifted views equal those of a kernel call for each example."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from sfumato.gradients.sites import shifted
from sfumato.gradients.sites.conv import ConvKernel, Geometry
from tests.gradients.conftest import compare


@st.composite
def cases(draw):
    """A geometry, the weight's shape, the sides of the inputs, examples and views."""
    dimensions = draw(st.integers(1, 3))
    each = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(dimensions))  # noqa: E731
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    geometry = Geometry(stride=each(1, 3), padding=each(0, 2), dilation=each(1, 2), groups=groups)
    shape = (groups * draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 5])), *each(1, 4))
    return geometry, shape, each(1, 9), draw(st.integers(1, 3)), draw(st.integers(1, 3))


@given(cases(), st.booleans())
def test_gradients_are_those_of_a_call_for_each_example(case, last):
    geometry, shape, sides, examples, views = case
    reach = [(size - 1) * gap + 1 for size, gap in zip(shape[2:], geometry.dilation, strict=True)]
    assume(all(side + 2 * pad >= most for side, pad, most in zip(sides, geometry.padding, reach, strict=True)))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples * views, geometry.groups * shape[1], *sides, generator=generator, dtype=torch.float64)
    y = geometry.apply(x, torch.ones(shape, dtype=torch.float64), None)
    g = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    if last and len(sides) == 2:
        x, g = (t.contiguous(memory_format=torch.channels_last) for t in (x, g))
    found = shifted.instantiate(x, g, geometry, shape, views)
    expected = ConvKernel(geometry=geometry, shape=shape, views=views).instantiate(x, g, "loop")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 6])
def test_bfloat16_is_multiplied_as_it_is_and_added_up_in_float32(groups):
    geometry = Geometry(stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=groups)
    shape = (6, 6 // groups, 3, 3)
    x, g = (torch.randn(4, 6, 9, 9).bfloat16() for _ in range(2))
    found = shifted.instantiate(x, g, geometry, shape, 2)
    expected = ConvKernel(geometry=geometry, shape=shape, views=2).instantiate(x.double(), g.double(), "loop")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_no_gradient_is_copied_on_its_way_to_norm_and_sum():
    """The input channels are last in memory, and sums keep this order."""
    geometry = Geometry(stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
    found = shifted.instantiate(torch.randn(2, 8, 5, 5), torch.randn(2, 3, 5, 5), geometry, (3, 8, 3, 3), 1)
    assert found.permute(0, 1, 3, 4, 2).is_contiguous()


@pytest.mark.parametrize("views", [1, 2])
def test_networks_are_exact(views, forms_of_devices):
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 6, 1), nn.Tanh()),
        *(nn.ConvTranspose2d(6, 5, 3, stride=2), nn.Flatten(2), nn.LazyLinear(4), nn.Flatten(), nn.LazyLinear(3)),
    )
    x = torch.randn(3, *([views] if views > 1 else []), 3, 8, 8)
    model(x.flatten(0, -4))
    gradient = compare(model.double(), x.double(), torch.arange(3) % 3, views=views)
    assert {"keep shifted"} == {method for site, method in gradient.methods.items() if site.startswith("conv")}
