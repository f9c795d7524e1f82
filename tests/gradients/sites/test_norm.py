"""Norm sites against the oracle and against torch's own kernels, over random shapes, offsets, layouts and types."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.gradients import ClippedGradient
from sfumato.gradients.sites.layer_norm import RowNormSite
from sfumato.gradients.sites.norm import ChannelNormSite

quick = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = ("group", "instance", "batch", "layer", "rms")


def channel_norm(kind, channels, groups, places, affine):
    """A norm over channels, then positions."""
    if kind == "group":
        return nn.GroupNorm(groups, channels, affine=affine)
    dimensions = min(len(places), 3)
    if kind == "instance":
        return (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dimensions - 1](channels, affine=affine)
    norm = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions](channels, affine=affine).eval()
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


class Model(nn.Module):
    """A trained layer, a norm whose weights are not one and zero, and a readout that no norm leaves constant."""

    def __init__(self, norm, width):
        super().__init__()
        self.first = nn.Parameter(torch.rand(()) + 0.5)
        self.norm = norm
        self.last = nn.Linear(width, 3)
        for parameter in norm.parameters():
            nn.init.normal_(parameter, 0.5)

    def forward(self, x):
        x = self.norm(x + self.first * x.sin())
        return self.last(x.tanh().flatten(1))


def freeze(model, seed):
    """Some parameters frozen, but not all."""
    generator = torch.Generator().manual_seed(seed)
    parameters = list(model.parameters())
    for parameter in parameters[:-1]:
        parameter.requires_grad_(bool(torch.rand((), generator=generator) < 0.7))


@quick
@given(
    kind=st.sampled_from(("group", "instance", "batch")),
    examples=st.integers(1, 4),
    views=st.integers(1, 3),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    places=st.lists(st.integers(1, 3), max_size=3),
    affine=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 99),
)
def test_norms_over_channels(compare, kind, examples, views, groups, per_group, places, affine, dtype, seed):
    if kind == "instance":
        places = [4, *places[:2]]
    elif kind == "group" and per_group == 1:
        places = [2, *places[:2]]
    torch.manual_seed(seed)
    shape = (groups * per_group, *places)
    norm = channel_norm(kind, groups * per_group, groups, places, affine)
    model = Model(norm, torch.Size(shape).numel()).to(dtype)
    freeze(model, seed)
    lead = (examples,) if views == 1 else (examples, views)
    compare(model, torch.randn(*lead, *shape, dtype=dtype), torch.arange(examples) % 3, views=views)


@quick
@given(
    kind=st.sampled_from(("layer", "rms")),
    examples=st.integers(1, 4),
    views=st.integers(1, 3),
    places=st.lists(st.integers(1, 4), max_size=2),
    row=st.lists(st.integers(2, 4), min_size=1, max_size=2),
    affine=st.booleans(),
    epsilon=st.sampled_from([1e-5, 0.3]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 99),
)
def test_norms_over_rows(compare, kind, examples, views, places, row, affine, epsilon, dtype, seed):
    torch.manual_seed(seed)
    make = nn.LayerNorm if kind == "layer" else nn.RMSNorm
    norm = make(row, eps=epsilon, elementwise_affine=affine)
    model = Model(norm, torch.Size((*places, *row)).numel()).to(dtype)
    freeze(model, seed)
    lead = (examples,) if views == 1 else (examples, views)
    compare(model, torch.randn(*lead, *places, *row, dtype=dtype), torch.arange(examples) % 3, views=views)


def test_rows_without_a_batch_and_the_library_s_own_epsilon(compare):
    class Unbatched(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.rms = nn.LayerNorm(4), nn.RMSNorm(4)

        def forward(self, x):
            return torch.stack([self.rms(1e-8 * self.layer(row)) for row in x.unbind()])

    compare(Unbatched().double(), torch.randn(3, 4).double(), torch.arange(3))


class WithGain(nn.Module):
    """A norm whose weight is a function of a parameter."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(6))

    def forward(self, x):
        x = F.group_norm(x, 2, self.gain.exp(), self.gain.sin()).tanh()
        return F.layer_norm(x, (4,), self.gain[:4] ** 2, self.gain[2:]).tanh().mean(2)


def test_a_weight_that_is_a_function_of_parameters(compare):
    compare(WithGain().double(), torch.randn(3, 6, 4).double(), torch.arange(3))


class Strided(nn.Module):
    """Norms of inputs, with weights and before outputs that do not lie in memory as they are read."""

    def __init__(self):
        super().__init__()
        self.gains = nn.Parameter(torch.randn(6, 2))

    def forward(self, x):
        gain, shift = self.gains.unbind(1)
        x = F.group_norm(x.transpose(1, 2), 2, gain, shift)
        x = F.layer_norm(x.transpose(1, 2), (6,), shift, gain)
        x = F.rms_norm(x.flip(1), (6,), shift)
        x = F.instance_norm(x.transpose(1, 2), weight=shift, bias=gain)
        return F.group_norm(x.transpose(1, 2)[:, :, ::2].permute(0, 2, 1), 3, gain[::2], shift[::2]).sum(2)


@pytest.mark.parametrize("views", [1, 2])
def test_tensors_with_strides(compare, views):
    x = torch.randn(*((3,) if views == 1 else (3, views)), 4, 6).double()
    compare(Strided().double(), x, torch.arange(3), views=views, loss=lambda o, t: o.square().sum(1).sin().mean())


class StridedFrozen(nn.Module):
    """A batch norm at stored statistics after a map, with weights and statistics that have strides, or copies."""

    def __init__(self, copied):
        super().__init__()
        self.first, self.gains = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 2))
        self.register_buffer("statistics", torch.rand(6, 2) + 0.5)
        self.copied = copied

    def forward(self, x):
        numbers = (*self.statistics.unbind(1), *self.gains.unbind(1))
        if self.copied:
            numbers = tuple(number.clone() for number in numbers)
        return F.batch_norm(self.first(x).flatten(0, 1), *numbers).unflatten(0, (len(x), -1)).sin().sum(1)


def test_a_frozen_norm_with_strides(compare, there):
    """Not against the oracle: torch's own backward reads such weights and statistics at wrong places (2.15, CPU)."""
    copied, strided = StridedFrozen(copied=True).double(), StridedFrozen(copied=False).double()
    strided.load_state_dict(copied.state_dict())
    x, y = torch.randn(3, 4, 6).double(), torch.arange(3)
    expected = compare(copied, x, y)(x, y)
    strided, x, y = there(strided, x, y)
    found = ClippedGradient(strided, F.cross_entropy, max_norm=0.1)(x, y)
    torch.testing.assert_close(found.norms, expected.norms)
    torch.testing.assert_close(found.gradients, expected.gradients)


def test_statistics_at_stored_values_of_an_instance_norm(compare):
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True).eval()
    norm.running_mean.normal_()
    compare(Model(norm, 36).double(), torch.randn(3, 4, 3, 3).double(), torch.arange(3))


# Each site by itself, against torch's own backward of one example at a time.


def run_site(site, inputs, gradients, examples):
    """Outputs, input gradients, and per-example gradients by role."""
    site.examples, site.views = examples, inputs.shape[0] // examples
    site.roles = {role: role for role in site.operands}
    outputs, saved = site.forward(inputs)
    of_inputs = site.backward(saved, gradients, True)
    return outputs, of_inputs, {role: use.instantiate() for role, use in site.uses}


def stored_statistics(weight):
    """Numbers that every type holds exactly."""
    steps = torch.arange(len(weight)).to(weight.detach())
    return steps / 4 - 1, steps / 8 + 0.5


def make_site(kind, weight, bias, shape):
    if kind in ("layer", "rms"):
        return RowNormSite(weight, None if kind == "rms" else bias, shape[-1:], 1e-5, centred=kind == "layer")
    stored = stored_statistics(weight)
    groups = {"group": 2, "instance": shape[0], "batch": shape[0]}[kind]
    return ChannelNormSite(weight, bias, 1e-5, groups, stored if kind == "batch" else None)


def plain(kind, x, weight, bias, shape):
    if kind == "layer":
        return F.layer_norm(x, shape[-1:], weight, bias)
    if kind == "rms":
        return F.rms_norm(x, shape[-1:], weight, 1e-5)
    if kind == "batch":
        mean, variance = stored_statistics(weight)
        x = torch.cat([x, x])  # torch's own backward is wrong for a batch of one with a strided output gradient
        return F.batch_norm(x, mean, variance, weight, bias)[: len(x) // 2]
    return F.group_norm(x, {"group": 2, "instance": shape[0]}[kind], weight, bias)


def by_example(kind, x, g, weight, bias, shape, views):
    """Outputs, input gradients, and gradients of weight and bias for each example, by autograd."""
    found = []
    for one, gradient in zip(x.split(views), g.split(views), strict=True):
        leaves = [t.detach().clone().requires_grad_() for t in (one, weight, bias)]
        outputs = plain(kind, *leaves, shape)
        wanted = leaves[:2] if kind == "rms" else leaves
        found.append([outputs.detach(), *torch.autograd.grad(outputs, wanted, gradient)])
    first, second, *rest = zip(*found, strict=True)
    return torch.cat(first), torch.cat(second), dict(zip(("weight", "bias"), map(torch.stack, rest), strict=False))


def problem(kind, examples=3, views=2, shape=(6, 4, 5), offset=0.0, dtype=torch.float64):
    x = torch.randn(examples * views, *shape, dtype=torch.float64) + offset
    g = torch.randn(examples * views, *shape, dtype=torch.float64)
    size = shape[-1] if kind in ("layer", "rms") else shape[0]
    weight, bias = (torch.randn(size, dtype=torch.float64) for _ in range(2))
    return [t.to(dtype) for t in (x, g, weight.requires_grad_(), bias.requires_grad_())]


def as_leaves(weight, bias):
    return weight.detach().requires_grad_(), bias.detach().requires_grad_()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", KINDS)
def test_sites_equal_autograd(kind, layout):
    x, g, weight, bias = problem(kind)
    x, g = x.contiguous(memory_format=layout), g.transpose(-1, -2).contiguous().transpose(-1, -2)
    shape = x.shape[1:]
    outputs, of_inputs, found = run_site(make_site(kind, *as_leaves(weight, bias), shape), x, g, 3)
    expected_outputs, expected_inputs, expected = by_example(kind, x, g, weight, bias, shape, 2)
    torch.testing.assert_close(outputs, expected_outputs)
    torch.testing.assert_close(of_inputs, expected_inputs)
    assert found.keys() == expected.keys()
    for role, values in expected.items():
        torch.testing.assert_close(found[role], values)


@pytest.mark.parametrize("rows", [1, 3000])
def test_long_examples_of_layer_norms_equal_short_ones(rows):
    """Both ways of summing over rows: a call for each example, and tiles of several."""
    x, g, weight, bias = problem("layer", examples=3, views=1, shape=(rows, 16))
    _, _, found = run_site(make_site("layer", *as_leaves(weight, bias), x.shape[1:]), x, g, 3)
    *_, expected = by_example("layer", x, g, weight, bias, x.shape[1:], 1)
    for role, values in expected.items():
        torch.testing.assert_close(found[role], values)


def test_tiles_of_layer_norms_cover_every_example():
    x, g, weight, bias = problem("layer", examples=40, views=1, shape=(256, 64))
    _, _, found = run_site(make_site("layer", *as_leaves(weight, bias), x.shape[1:]), x, g, 40)
    expected = (g * (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()).sum(1)
    torch.testing.assert_close(found["weight"], expected)
    torch.testing.assert_close(found["bias"], g.sum(1))


def test_more_groups_than_a_kernel_can_launch_are_split(monkeypatch):
    monkeypatch.setattr("sfumato.gradients.sites.norm._MOST_GROUPS", 5)
    x, g, weight, bias = problem("group")
    _, of_inputs, found = run_site(make_site("group", *as_leaves(weight, bias), x.shape[1:]), x, g, 3)
    _, expected_inputs, expected = by_example("group", x, g, weight, bias, x.shape[1:], 2)
    torch.testing.assert_close(of_inputs, expected_inputs)
    torch.testing.assert_close(found["weight"], expected["weight"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [1000.0, -30000.0])
def test_large_offsets_are_no_worse_than_in_torch_s_kernels(kind, offset):
    x, g, weight, bias = problem(kind, offset=offset, dtype=torch.float32, shape=(6, 16, 16))
    shape = x.shape[1:]
    _, of_inputs, found = run_site(make_site(kind, *as_leaves(weight, bias), shape), x, g, 3)
    _, plain_inputs, theirs = by_example(kind, x, g, weight, bias, shape, 2)
    _, exact_inputs, exact = by_example(kind, *(t.double() for t in (x, g, weight, bias)), shape, 2)
    pairs = [(of_inputs, plain_inputs, exact_inputs), *((found[role], theirs[role], exact[role]) for role in exact)]
    for ours, plain_values, truth in pairs:
        error, plain_error = ((t.double() - truth).norm() / truth.norm() for t in (ours, plain_values))
        assert error <= 4 * plain_error + 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(kind, dtype):
    x, g, weight, bias = problem(kind, dtype=dtype, shape=(6, 16, 16), offset=3.0)
    outputs, of_inputs, found = run_site(make_site(kind, *as_leaves(weight, bias), x.shape[1:]), x, g, 3)
    assert outputs.dtype == of_inputs.dtype == dtype
    *_, expected = by_example(kind, *(t.double() for t in (x, g, weight, bias)), x.shape[1:], 2)
    for role, values in expected.items():
        assert found[role].dtype == torch.float32
        torch.testing.assert_close(found[role].double(), values, rtol=1e-4, atol=1e-4)


def test_norms_are_tapped_and_not_expanded(compare):
    """Parameters that are used by norms alone have no gradient but that of their sites."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3))
    gradient = compare(model.double(), torch.randn(3, 2, 4, 4).double(), torch.arange(3))
    assert not gradient._batches.latest.expanded
