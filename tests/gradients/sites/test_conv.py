"""Convolution sites against the oracle, over random geometries; and every way against every other."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.gradients.sites import conv
from sfumato.gradients.sites.conv import Geometry, choose_way, per_example_weight_gradients

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (4, 1), (6, 3), (4, 4)])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2)])
def test_all_ways_agree(views, channels, groups, stride, padding, dilation):
    geometry = Geometry(stride=(stride,) * 2, padding=(padding,) * 2, dilation=(dilation,) * 2, groups=groups)
    weight = torch.randn(2 * groups, channels // groups, 3, 2, dtype=torch.float64)
    x = torch.randn(4 * views, channels, 7, 6, dtype=torch.float64)
    g = torch.randn_like(geometry.apply(x, weight, None))
    loop, grouped, unfold = (
        per_example_weight_gradients(x, g, weight, geometry, 4, way) for way in ("loop", "grouped", "unfold")
    )
    torch.testing.assert_close(loop, grouped)
    torch.testing.assert_close(loop, unfold)


def test_patches_in_several_pieces_are_the_same(monkeypatch):
    geometry = Geometry(stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
    weight, x = torch.randn(2, 1, 3, 3, dtype=torch.float64), torch.randn(10, 1, 6, 6, dtype=torch.float64)
    g = torch.randn_like(geometry.apply(x, weight, None))
    whole = per_example_weight_gradients(x, g, weight, geometry, 5, "unfold")
    monkeypatch.setattr(conv, "_PATCH_ELEMENTS", 2 * 2 * 9 * 16)
    torch.testing.assert_close(per_example_weight_gradients(x, g, weight, geometry, 5, "unfold"), whole)


def test_a_large_weight_goes_one_example_at_a_time(compare):
    model = nn.Sequential(nn.Conv2d(160, 160, 3), nn.Flatten(), nn.Linear(160, 3))
    geometry = Geometry(stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
    assert choose_way(model[0].weight, geometry) == "loop"
    compare(model, torch.randn(3, 160, 3, 3), torch.arange(3))


def test_an_image_without_a_batch_axis(compare):
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)

        def forward(self, x):
            return torch.stack([self.conv(image).mean((1, 2)) for image in x])

    gradient = compare(Single().double(), torch.randn(3, 2, 5, 5, dtype=torch.float64), torch.arange(3))
    assert gradient.unused_parameters == ()
