"""`ClippedGradient`: exact on whole models, and all properties that its callers rely on."""

import copy

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient, grid


class StandardisedConv(nn.Conv2d):
    """Convolution with a standardised weight (Qiao et al. 2019) and a learned gain."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, x):
        deviation, mean = torch.std_mean(self.weight, (1, 2, 3), keepdim=True, unbiased=False)
        weight = (self.weight - mean) / (deviation + 1e-5) * self.gain
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class WideBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, inputs), nn.GroupNorm(2, outputs)
        self.conv1 = StandardisedConv(inputs, outputs, 3, stride, 1)
        self.conv2 = StandardisedConv(outputs, outputs, 3, 1, 1)
        self.skip = StandardisedConv(inputs, outputs, 1, stride, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        y = F.relu(self.norm1(x), inplace=True)
        return self.skip(y) + self.scale * self.conv2(F.relu(self.norm2(self.conv1(y))))


def lenet():
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 5, padding=2), nn.ReLU(inplace=True), nn.AvgPool2d(2)),
        *(nn.Conv2d(3, 4, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 5)),
    )


def wide_net():
    return nn.Sequential(
        StandardisedConv(1, 4, 3), WideBlock(4, 6, 2), WideBlock(6, 6, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 5),
    )  # fmt: skip


class Tied(nn.Module):
    """One parameter in two modules, one module used twice, and one weight used by itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(14, 14), nn.Linear(14, 14), nn.Linear(14, 5)
        self.second.weight = self.first.weight
        self.again = self.first

    def forward(self, x):
        x = self.again(self.second(self.first(x.flatten(1, 2)).tanh()).tanh()).tanh()
        return self.last(x.mean(1)) + self.last.weight.sum() * 0.1


MODELS = {"lenet": lenet, "wide": wide_net, "tied": Tied}


@pytest.mark.parametrize(("views", "dtype"), [(1, torch.float32), (3, torch.float64)])
@pytest.mark.parametrize("name", MODELS)
def test_models_are_exact(compare, name, views, dtype):
    model = MODELS[name]().to(dtype)
    x = torch.randn(4, *([views] if views > 1 else []), 1, 14, 14, dtype=dtype)
    gradient = compare(model, x, torch.arange(4), views=views)
    assert gradient.unused_parameters == ()


@pytest.mark.parametrize("adjacency", ["add-or-remove", "zero-out"])
def test_removing_one_example_moves_the_sum_by_at_most_the_sensitivity(adjacency):
    model, x, y = lenet(), 100 * torch.randn(6, 1, 14, 14), torch.arange(6) % 5
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.7)
    one, other = gradient(x, y).gradients, gradient(x[1:], y[1:]).gradients
    moved = torch.stack([(one[name] - other[name]).double().norm() for name in one]).norm()
    assert 0.69 < moved <= gradient.sensitivity(adjacency) * (1 + 1e-6)


@pytest.mark.parametrize("alone", [False, True])
def test_the_longest_term_leaves_room_for_rounding_all_parameters_to_the_grid(alone):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 3)).double()
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=1.0)
    example = 100 * torch.randn(1, 30, dtype=torch.float64), torch.tensor([1])
    total = gradient._batches.sum_one_by_one(example, None) if alone else gradient(*example)
    length = float(torch.cat([value.flatten() for value in total.gradients.values()]).norm())
    room = grid.allowance(sum(parameter.numel() for parameter in model.parameters()))
    assert 1 - 1.001 * room < length < 1 - 0.999 * room


def test_replacing_one_example_has_twice_the_sensitivity():
    gradient = ClippedGradient(lenet(), F.cross_entropy, max_norm=0.7)
    assert gradient.sensitivity("replace-one") == 1.4
    with pytest.raises(SfumatoError, match="adjacency must be one of"):
        gradient.sensitivity("user")


def test_the_users_model_comes_back_as_it_was():
    model = nn.Sequential(wide_net(), nn.BatchNorm1d(5).eval(), nn.Dropout(0.3))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    held = [(parameter, parameter._version) for parameter in model.parameters()]
    gradient = ClippedGradient(model, F.cross_entropy)
    gradient.self_check((1, 14, 14))
    gradient(torch.randn(3, 1, 14, 14), torch.arange(3))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]
    for (parameter, version), now in zip(held, model.parameters(), strict=True):
        assert parameter is now
        assert now._version == version
        assert now.requires_grad
        assert torch.equal(now.grad, torch.ones_like(now))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_module_reached_by_two_names_keeps_its_parameters():
    model = Tied()
    weight = model.first.weight
    ClippedGradient(model, F.cross_entropy)(torch.randn(2, 1, 14, 14), torch.arange(2))
    assert model.first.weight is model.again.weight is model.second.weight is weight


def test_frozen_parameters_are_left_out(compare):
    model = wide_net().double()
    frozen = {"0.weight", "1.conv1.bias", "1.norm1.weight", "2.conv2.gain"}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    x, y = torch.randn(3, 1, 14, 14, dtype=torch.float64), torch.arange(3)
    gradient = compare(model, x, y)
    assert frozen.isdisjoint(gradient(x, y).gradients)
    model[0].weight.requires_grad_(True)
    assert "0.weight" in gradient(x, y).gradients


def test_unused_parameters_are_reported_and_zero(compare):
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare, self.cut = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x + self.cut(x).detach())

    model = Partly()
    gradient = ClippedGradient(model, F.cross_entropy)
    with pytest.raises(SfumatoError, match="not known yet"):
        _ = gradient.unused_parameters
    gradient = compare(model, torch.randn(3, 4), torch.arange(3))
    assert gradient.unused_parameters == ("spare.weight", "spare.bias", "cut.weight", "cut.bias")


class Two(nn.Module):
    """An image and a token as inputs, and a loss with a pair of targets."""

    def __init__(self):
        super().__init__()
        self.pixels, self.words = nn.Linear(9, 4), nn.Embedding(5, 4)

    def forward(self, image, word):
        return self.pixels(image.flatten(1)) * self.words(word)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_several_inputs_and_targets(compare, form, views):
    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets["label"]) + (outputs.mean(1) - targets["value"]).square().mean()

    lead = (3,) if views == 1 else (3, views)
    image, word = torch.randn(*lead, 3, 3, dtype=torch.float64), torch.randint(0, 5, lead)
    inputs = (image, word) if form == "tuple" else {"word": word, "image": image}
    targets = {"label": torch.arange(3), "value": torch.randn(3, dtype=torch.float64)}
    gradient = compare(Two().double(), inputs, targets, loss=loss, views=views)
    synthetic = ((3, 3), torch.tensor(1)) if form == "tuple" else {"word": torch.tensor(1), "image": (3, 3)}
    gradient.self_check(synthetic, targets=targets)


@pytest.mark.parametrize("views", [1, 3])
def test_an_empty_batch_gives_zeros(views):
    model = lenet()
    gradient = ClippedGradient(model, F.cross_entropy, views=views)
    x = torch.randn(0, *([views] if views > 1 else []), 1, 14, 14)
    total = gradient(x, torch.zeros(0, dtype=torch.int64))
    assert total.norms.shape == total.losses.shape == (0,)
    for name, parameter in model.named_parameters():
        assert torch.equal(total.gradients[name], torch.zeros_like(parameter))


def test_half_precision_parameters_are_summed_in_float32():
    model = lenet().bfloat16()
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.5)
    total = gradient(torch.randn(5, 1, 14, 14).bfloat16(), torch.arange(5))
    assert all(value.dtype == torch.float32 for value in total.gradients.values())
    one = gradient(torch.randn(1, 1, 14, 14).bfloat16(), torch.tensor([2])).gradients.values()
    assert torch.stack([value.double().norm() for value in one]).norm() <= 0.5 * (1 + 1e-6)
    gradient.self_check((1, 14, 14))


def test_dropout_is_drawn_for_each_view_and_leaves_the_stream_alone_in_discovery():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 3))
    x, y = torch.ones(4, 2, 50), torch.zeros(4, dtype=torch.int64)
    gradient = ClippedGradient(model, F.cross_entropy, views=2)
    torch.manual_seed(5)
    first = gradient(x, y)
    torch.manual_seed(5)
    again = gradient(x, y)
    assert torch.equal(first.norms, again.norms)
    assert first.norms.unique().numel() == 4


def test_the_same_inputs_give_the_same_bits():
    model, x, y = wide_net(), torch.randn(5, 2, 1, 14, 14), torch.arange(5)
    one, other = (ClippedGradient(model, F.cross_entropy, views=2)(x, y) for _ in range(2))
    assert all(torch.equal(value, other.gradients[name]) for name, value in one.gradients.items())


class Elsewhere(nn.Module):
    """Uses a parameter through a reference other than its module's attribute, or in another unusual way."""

    def __init__(self, method):
        super().__init__()
        self.linear, self.method = nn.Linear(4, 3), method
        self.references = [self.linear.weight]

    def forward(self, x):
        match self.method:
            case "reference":
                return F.linear(x, self.references[0]) + self.linear.bias
            case "function of reference":
                return F.linear(x, self.references[0] * 2) + self.linear.bias
            case "function of reference and attribute":
                return F.linear(x, self.references[0] + self.linear.weight) + self.linear.bias
            case "checkpoint":
                return torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=False)
            case "nested vmap":
                return torch.vmap(self.linear)(x)
            case "sum of slices":
                return F.linear(x[:, :2], self.linear.weight[:, :2]) + F.linear(x[:, 2:], self.linear.weight[:, 2:])


@pytest.mark.parametrize("method", ["reference", "function of reference", "function of reference and attribute"])
def test_a_parameter_used_behind_its_module_is_refused(method):
    with pytest.raises(SfumatoError, match=r"'linear\.weight' is used by the loss"):
        ClippedGradient(Elsewhere(method), F.cross_entropy)(torch.randn(2, 4), torch.arange(2))


def test_a_parameter_in_the_loss_is_refused():
    model = nn.Linear(4, 3)
    gradient = ClippedGradient(model, lambda o, t: F.cross_entropy(o, t) + model.weight.square().sum())
    with pytest.raises(SfumatoError, match="'weight' is used by the loss"):
        gradient(torch.randn(2, 4), torch.arange(2))


@pytest.mark.filterwarnings("ignore:this model cannot be vectorised")
@pytest.mark.parametrize("method", ["checkpoint", "nested vmap", "sum of slices"])
def test_unusual_uses_are_exact(compare, request, method):
    if method == "nested vmap":
        request.getfixturevalue("a_whole_device")
    compare(Elsewhere(method).double(), torch.randn(3, 4, dtype=torch.float64), torch.arange(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_norm": 0}, "max_norm must be positive"),
        ({"max_norm": float("inf")}, "max_norm must be a finite number"),
        ({"max_norm": float("nan")}, "max_norm must be a finite number"),
        ({"views": 0}, "views must be at least 1"),
        ({"views": 1.0}, "views must be a whole number"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(SfumatoError, match=message):
        ClippedGradient(lenet(), F.cross_entropy, **options)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.ones(2, 4), torch.zeros(3).long(), "targets of shape"),
        (torch.ones(()), torch.zeros(3).long(), "axis of examples"),
        ([], torch.zeros(3).long(), "hold no tensor"),
        ("text", torch.zeros(3).long(), "must be tensors"),
        (torch.ones(2, 5), torch.zeros(2).long(), "fails on one example"),
    ],
)
def test_bad_batches_are_refused(inputs, targets, message):
    with pytest.raises(SfumatoError, match=message):
        ClippedGradient(nn.Linear(4, 3), F.cross_entropy)(inputs, targets)


def test_missing_views_are_refused():
    with pytest.raises(SfumatoError, match="views=2"):
        ClippedGradient(nn.Linear(4, 3), F.cross_entropy, views=2)(torch.ones(3, 4), torch.zeros(3).long())


def test_bad_models_and_losses_are_refused():
    with pytest.raises(SfumatoError, match=r"torch\.nn\.Module"):
        ClippedGradient(lambda x: x, F.cross_entropy)
    with pytest.raises(SfumatoError, match="loss must be a function"):
        ClippedGradient(lenet(), "cross_entropy")
    with pytest.raises(SfumatoError, match="no trainable parameter"):
        ClippedGradient(lenet().requires_grad_(False), F.cross_entropy)
    with pytest.raises(SfumatoError, match="has no shape yet"):
        ClippedGradient(nn.LazyLinear(3), F.cross_entropy)
    per_view = ClippedGradient(nn.Linear(4, 3), lambda o, t: F.cross_entropy(o, t, reduction="none"))
    with pytest.raises(SfumatoError, match="loss must return one floating-point number"):
        per_view(torch.ones(2, 4), torch.zeros(2).long())
    constant = ClippedGradient(nn.Linear(4, 3), lambda o, t: o.detach().mean())
    with pytest.raises(SfumatoError, match="does not depend on any trainable parameter"):
        constant(torch.ones(2, 4), torch.zeros(2).long())
    with pytest.raises(SfumatoError, match="loss has the trainable parameter 'weight'"):
        ClippedGradient(lenet(), nn.Linear(3, 1))


def test_a_bound_that_float32_cannot_keep_is_refused():
    with pytest.raises(SfumatoError, match=r"max_norm must be at least 1e-12, got 1e-26.*multiply the loss"):
        ClippedGradient(nn.Linear(2, 3), F.cross_entropy, max_norm=1e-26)
