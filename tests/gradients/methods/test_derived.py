"""Gradients of functions of parameters: the closed form of functions of rows, its proof, and functions without one."""

from dataclasses import replace

import pytest
import timm.layers
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from sfumato import _devices
from sfumato.gradients import ClippedGradient
from sfumato.gradients.checks import oracle
from sfumato.gradients.checks.without_randomness import WithoutRandomness
from sfumato.gradients.methods import contributions, derived
from sfumato.gradients.methods.contributions import RowFunction
from sfumato.gradients.methods.derived import Forms, Operands
from sfumato.gradients.use import Instantiated
from sfumato.models import create


def standardised(weight, gain=None, epsilon=1e-5):
    deviation, mean = torch.std_mean(weight, (1, 2, 3), keepdim=True, correction=0)
    result = (weight - mean) / (deviation.square() + epsilon).sqrt()
    return result if gain is None else result * gain


def rows_normed(weight, gain):
    return gain * weight / weight.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)


def half_centred(weight, gain):
    """Both directions are partly removed, and they overlap, so all terms of the closed form occur."""
    centred = weight - 0.5 * weight.mean((1, 2, 3), keepdim=True)
    return gain * centred / (weight * centred).sum((1, 2, 3), keepdim=True).sqrt()


# Functions of (weight, gain), and whether they are functions of rows.
FUNCTIONS = {
    "standardised": (lambda w, g: standardised(w), True),
    "standardised with a large epsilon": (lambda w, g: standardised(w, g, epsilon=0.3), True),
    "standardised with a gain": (standardised, True),
    "normed": (rows_normed, True),
    "half centred and normed": (half_centred, True),
    "scaled": (lambda w, g: 0.5 * w * g, True),
    "centred": (lambda w, g: w - w.mean((1, 2, 3), keepdim=True), True),
    "tanh": (lambda w, g: w.tanh(), False),
    "all rows normed": (lambda w, g: w / w.norm(), False),
    "columns normed": (lambda w, g: w / w.norm(dim=0, keepdim=True), False),
    "a gain that adds": (lambda w, g: w + g, False),
    "a squared gain of two rows": (lambda w, g: w * (g * g.flip(0)), False),
    "rows mixed": (lambda w, g: w + 0.1 * w.flip(0), False),
    "one entry doubled": (lambda w, g: w * (1 + torch.eye(w[0].numel())[3].to(w).reshape(w[0].shape)), False),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_a_function_of_rows_is_found_out(name, dtype):
    function, expected = FUNCTIONS[name]
    shared = {"w": torch.randn(6, 4, 3, 3, dtype=dtype), "g": torch.rand(6, 1, 1, 1, dtype=dtype) + 0.5}
    shared = {key: value.requires_grad_() for key, value in shared.items()}
    operand = Operands(shared, {}, Forms()).operand_of(function(*shared.values()))
    assert (operand.form is not None) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_of_different_shapes_are_found_together(dtype, monkeypatch):
    calls, right = [], derived.fit_row_forms
    monkeypatch.setattr(derived, "fit_row_forms", lambda found, forms: calls.append(len(found)) or right(found, forms))
    shapes = {"plain": (6, 4, 3, 3), "gain": (5, 20), "none": (3, 4, 3, 3)}
    shared = {name: torch.randn(shape, dtype=dtype).requires_grad_() for name, shape in shapes.items()}
    shared["m"] = (torch.rand(5, 1, dtype=dtype) + 0.5).requires_grad_()
    functions = {
        "plain": standardised(shared["plain"], 1.0),
        "gain": shared["m"] * F.normalize(shared["gain"], dim=1),
        "none": shared["none"].tanh(),
    }
    operands = Operands(shared, {}, Forms())
    met = {name: operands.operand_of(tensor) for name, tensor in functions.items()}
    assert {name: own.form is not None for name, own in met.items()} == {"plain": True, "gain": True, "none": False}
    # On a CPU those of one width together, on a device also those of others.
    assert calls == ([3] if _devices.has_device_forms(torch.device("cpu")) else [2, 1])
    for name in ("plain", "gain"):
        value = torch.randn(shapes[name], dtype=dtype)
        expected = operands.gradients(functions[name], met[name].names, value)
        found = met[name].form.pull_back(functions[name].detach(), value)
        for key, gradient in expected.items():
            assert torch.allclose(found[key].reshape(gradient.shape), gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, (_, expected) in FUNCTIONS.items() if expected])
def test_the_sizes_of_a_form_are_those_of_its_map_and_more(name):
    """These norms determine the allowance for rounding: if one were too small, so would be a norm."""
    shared = {"w": torch.randn(6, 4, 3, 3).double(), "g": torch.rand(6, 1, 1, 1).double() * 4 + 0.5}
    shared = {key: value.requires_grad_() for key, value in shared.items()}
    operands = Operands(shared, {}, Forms())
    operand = operands.operand_of(FUNCTIONS[name][0](*shared.values()))
    for row in range(6):
        basis = torch.zeros(36, 6, 36).double()
        basis[:, row] = torch.eye(36)
        found = operands.gradients(operand.tensor, operand.names, basis.reshape(36, 6, 4, 3, 3), batched=True)
        pulled = torch.cat([value.reshape(36, -1) for value in found.values()], dim=1)
        norm = float(torch.linalg.matrix_norm(pulled, 2))
        assert operand.rows.sizes[row] >= 1.4 * norm


class Conv(nn.Conv2d):
    """A convolution whose weight is a function of parameters."""

    def __init__(self, function, inputs, outputs, **options):
        super().__init__(inputs, outputs, 3, **options)
        self.function, self.gain = function, nn.Parameter(torch.rand(outputs, 1, 1, 1) + 0.5)

    def forward(self, x):
        return self._conv_forward(x, self.function(self.weight, self.gain) + 0 * self.gain, self.bias)


def net(function, **options):
    first, second = Conv(function, 2, 6, **options), Conv(function, 6, 8, padding=1)
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.Tanh(), nn.Flatten(), nn.Linear(8 * 36, 3))


@pytest.mark.parametrize("method", ["keep grouped", "drop unfold", "gram"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_exact_in_every_way(compare, monkeypatch, name, method):
    monkeypatch.setattr("sfumato.gradients.tuner.Tuner.method", lambda *a, **k: method)
    compare(net(FUNCTIONS[name][0]), torch.randn(3, 2, 8, 8), torch.arange(3))
    compare(net(FUNCTIONS[name][0]).double(), torch.randn(3, 2, 2, 8, 8).double(), torch.arange(3), views=2)


class Activated(nn.Module):
    """A convolution whose outputs are written to, or not, before it runs backward."""

    def __init__(self, activation):
        super().__init__()
        self.conv, self.activation = Conv(standardised, 2, 6), activation
        self.last = nn.Linear(6 * 36, 3)

    def forward(self, x):
        return self.last(self.activation(self.conv(x)).flatten(1))


@pytest.mark.parametrize("activation", [torch.sigmoid, torch.sigmoid_, lambda y: F.silu(y, inplace=True)])
@pytest.mark.parametrize("views", [1, 2])
def test_outputs_that_were_written_to_are_not_taken_for_the_convolution_s(compare, monkeypatch, activation, views):
    monkeypatch.setattr("sfumato.gradients.tuner.Tuner.method", lambda *a, **k: "gram")
    monkeypatch.setattr("sfumato.gradients.tuner.Tuner.known_method", lambda *a, **k: "gram")
    x = torch.randn(3, *([views] if views > 1 else []), 2, 8, 8).double()
    compare(Activated(activation).double(), x, torch.arange(3), views=views)


def test_an_offset_in_the_input_is_taken_away_exactly(compare, monkeypatch):
    """Standardisation removes gradients along equal entries, so the rest is small relative to the terms that cancel."""
    for method in ("keep grouped", "gram"):
        monkeypatch.setattr("sfumato.gradients.tuner.Tuner.method", lambda *a, method=method, **k: method)
        model = net(standardised).double()
        compare(model, torch.randn(3, 2, 8, 8).double() + 1000, torch.arange(3), tolerance=1e-8)


@pytest.mark.parametrize("change", ["scales", "own", "gains"])
def test_a_wrong_form_gives_a_wrong_norm(compare, monkeypatch, change):
    right = contributions.bounds

    def wrong(parts, **options):
        for part in parts:
            form = part.operand.form
            numbers = replace(form.numbers, **{change: 1.05 * getattr(form.numbers, change)})
            part.operand.set_form(replace(form, numbers=numbers), None)
        return right(parts, **options)

    monkeypatch.setattr(contributions, "bounds", wrong)
    with pytest.raises(AssertionError):
        compare(net(standardised).double(), torch.randn(3, 2, 8, 8).double(), torch.arange(3))


@pytest.mark.parametrize("name", ["standardised with a gain", "normed", "half centred and normed"])
@pytest.mark.parametrize(("dtype", "wrong"), [(torch.float64, 0.9e-11), (torch.float32, 0.9e-5)])
def test_a_norm_has_room_for_numbers_that_are_slightly_wrong(name, dtype, wrong):
    """Without that room the norm would be within 2e-14 or 6e-6 of the exact one."""
    weight, gain = torch.randn(6, 4, 3, 3, dtype=dtype), torch.rand(6, 1, 1, 1, dtype=dtype) + 0.5
    shared = {"w": weight.requires_grad_(), "g": gain.requires_grad_()}
    operands, values = Operands(shared, {}, Forms()), torch.randn(5, 6, 4, 3, 3, dtype=dtype)
    operand = operands.operand_of(FUNCTIONS[name][0](weight, gain))
    assert operand.form is not None
    found = RowFunction(operand, Instantiated(values), operands).squared_norms().sqrt()
    leaves = [t.detach().double().requires_grad_() for t in (weight, gain)]
    outputs = FUNCTIONS[name][0](*leaves)
    for norm, value in zip(found, values.double(), strict=True):
        exact = torch.autograd.grad(outputs, leaves, value, retain_graph=True)
        assert norm >= (1 + wrong) * sum(t.square().sum() for t in exact).sqrt()


def test_the_numbers_of_a_form_follow_the_parameters(compare):
    model = net(standardised).double()
    x, y = torch.randn(3, 2, 8, 8).double(), torch.arange(3)
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1)
    for change in (lambda p: p.data.mul_(2), lambda p: p.data.add_(0.1 * torch.randn_like(p)), lambda p: None):
        change(model[0].weight)
        exact = ClippedGradient(copy_of(model), F.cross_entropy, max_norm=0.1)(x, y).norms
        torch.testing.assert_close(gradient(x, y).norms, exact, rtol=1e-10, atol=0)


def copy_of(model):
    other = net(standardised).double()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("name", ["StdConv2d", "StdConv2dSame", "ScaledStdConv2d", "ScaledStdConv2dSame"])
def test_timm_s_standardised_convolutions_have_a_form(compare, monkeypatch, name):
    monkeypatch.setattr(Operands, "pull_back", None)  # only the closed form remains
    layer = getattr(timm.layers, name)(3, 8, 3, padding=1)
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(8 * 36, 3)).double()
    compare(model, torch.randn(3, 3, 6, 6).double(), torch.arange(3))


@pytest.mark.parametrize(("views", "dtype"), [(1, torch.float32), (3, torch.float64)])
def test_the_network_that_de_et_al_released_is_exact_by_the_closed_form(compare, monkeypatch, views, dtype):
    """Learned gains, filters below the least squared sum, projections with norms of their own, uneven padding."""
    monkeypatch.setattr(Operands, "pull_back", None)
    model = create("wrn-10-2,form=de2022", classes=3, channels=3, size=(8, 7)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        model.blocks[0].conv1.weight[3] *= 1e-4
    x = torch.randn(4, *([views] if views > 1 else []), 3, 8, 7, dtype=dtype)
    tolerance = 1e-8 if dtype == torch.float64 else 1e-4
    gradient = compare(model, x, torch.arange(4) % 3, views=views, tolerance=tolerance)
    assert {name for name in gradient.zeros() if name.endswith(".gain")} == {
        f"{name}.gain" for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)
    }


def test_torch_s_parametrizations_are_exact(compare, monkeypatch):
    x, y = torch.randn(3, 12).double(), torch.arange(3)
    for function in (parametrizations.orthogonal, parametrizations.spectral_norm):
        model = nn.Sequential(function(nn.Linear(12, 10)), nn.Tanh(), nn.Linear(10, 3)).double()
        if function is parametrizations.spectral_norm:
            model[0].parametrizations.weight.eval()
        compare(model, x, y)
    monkeypatch.setattr(Operands, "pull_back", None)
    compare(nn.Sequential(parametrizations.weight_norm(nn.Linear(12, 10)), nn.Tanh(), nn.Linear(10, 3)).double(), x, y)


class UsedBeside(nn.Module):
    """A function of rows of a weight and a gain, and one or both of them used in another way too."""

    def __init__(self, beside):
        super().__init__()
        self.conv, self.last, self.beside = Conv(standardised, 2, 6), nn.Linear(6 * 36, 3), beside

    def forward(self, x):
        y = self.conv(x)
        if "gain" in self.beside:
            y = F.group_norm(y, 2, self.conv.gain.flatten())
        if "weight" in self.beside:
            y = y + F.conv2d(x, self.conv.weight)
        return self.last(y.tanh().flatten(1))


@pytest.mark.parametrize("beside", [["gain"], ["weight"], ["gain", "weight"]])
def test_a_part_of_a_function_that_is_used_beside_it_is_added_up_once(compare, beside):
    x, y = torch.randn(3, 2, 8, 8).double(), torch.arange(3)
    assert compare(UsedBeside(beside).double(), x, y).unused_parameters == ()
    compare(UsedBeside(beside).double(), torch.randn(3, 2, 2, 8, 8).double(), y, views=2)


def test_hard_examples_are_pulled_back_by_themselves(monkeypatch):
    """If nearly all of a gradient is removed, the closed form is a difference of large terms."""
    calls = []
    right = RowFunction.keep_hard
    monkeypatch.setattr(RowFunction, "keep_hard", lambda self, rows: calls.append(rows) or right(self, rows))
    model = nn.Sequential(Conv(standardised, 2, 4), nn.Flatten(), nn.Linear(4 * 36, 3))
    x = torch.randn(4, 2, 8, 8)
    x[1] = 1000 + 1e-4 * x[1]
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=1e-3)
    total = gradient(x, torch.arange(4) % 3)
    assert [rows.tolist() for rows in calls] == [[1]]
    exact = ClippedGradient(model, F.cross_entropy, max_norm=1e-3)(x[[0, 2, 3]], torch.tensor([0, 2, 0]))
    torch.testing.assert_close(total.norms[[0, 2, 3]], exact.norms, rtol=1e-5, atol=0)


def test_too_short_rows_and_integers_have_no_form():
    weight = torch.randn(5, 2, requires_grad=True)
    assert Operands({"w": weight}, {}, Forms()).operand_of(2 * weight).form is None
    assert derived._moved_leaf(weight[:3]) is None


def test_probes_don_t_heed_modes_around_the_model(compare):
    x, y = torch.randn(3, 2, 8, 8).double(), torch.arange(3)
    models = [net(FUNCTIONS[name][0]).double() for name in ("standardised", "tanh")]
    with WithoutRandomness():
        for model in models:
            compare(model, x, y)


@pytest.mark.parametrize("scale", [1e-19, 3e-20, 1e-20, 5e-21])
@pytest.mark.parametrize("method", ["gram", "keep product", "outer product"])
def test_rows_whose_squares_float32_cannot_hold(monkeypatch, scale, method):
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(1, 16))

        def rows(self):
            return self.w / self.w.norm(dim=1, keepdim=True)

        def forward(self, x):
            return 1e10 * F.linear(1e10 * x, scale * self.rows())

    monkeypatch.setattr("sfumato.gradients.tuner.Tuner.method", lambda *a, **k: method)
    model, positions = Tiny(), 1 if method == "outer product" else 3
    x = model.rows().detach() + 0.025 * torch.randn(1, positions, 16)

    def loss(outputs, _):
        return outputs.mean()

    _, norms, _ = oracle.clipped_sum(model.double(), loss, x.double(), torch.zeros(1), max_norm=1.0)
    model.float()
    bound = 0.3 * float(norms[0])
    found = ClippedGradient(model, loss, max_norm=bound)(x, torch.zeros(1))
    assert found.gradients["w"].double().norm() <= bound * (1 + 1e-6)
    assert found.norms[0] >= norms[0] * (1 - 1e-5)


def test_gradients_of_coarse_products_are_hard_later(monkeypatch, forms_of_devices):
    """With positive inputs, standardisation removes most of the gradient of its rows."""
    monkeypatch.setattr("sfumato.gradients.batch_runner.BatchRunner._asynchronous", lambda self, batch: True)
    model = nn.Sequential(timm.layers.ScaledStdConv2d(8, 16, 3, padding=0), nn.Flatten(), nn.Linear(576, 3))
    x, y = torch.randn(6, 8, 8, 8) + 10, torch.arange(6) % 3
    found = {}
    for tolerance in (contributions._COARSE, 5e-5):
        monkeypatch.setattr(contributions, "_COARSE", tolerance)
        with torch.autocast("cpu", torch.bfloat16):
            total = ClippedGradient(model, F.cross_entropy)(x, y)
        found[tolerance] = total.__dict__["_incomplete"], total.norms
    (lacking, coarse), (again, exact) = found.values()
    assert not lacking
    assert again
    assert (coarse >= exact * (1 - 1e-7)).all()
    assert (coarse <= exact * 1.001).all()


def test_coarse_products_make_no_kept_example_hard(monkeypatch, forms_of_devices):
    """Even if products may be TF32, kept gradients are summed number by number, so nothing is computed twice."""
    monkeypatch.setattr("sfumato.gradients.use.unit_roundoff", lambda like, **given: 2.0**-11)
    monkeypatch.setattr("sfumato.gradients.batch_runner.BatchRunner._asynchronous", lambda self, batch: True)
    model = create("wrn-10-1", classes=3, channels=3, size=(8, 8))
    gradient = ClippedGradient(model, F.cross_entropy)
    x, y = torch.randn(4, 3, 8, 8), torch.arange(4) % 3
    gradient(x, y)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    monkeypatch.setattr(
        "sfumato.gradients.batch_runner.BatchRunner._completion", lambda *given: lambda: pytest.fail("again")
    )
    assert gradient(x, y).norms.isfinite().all()
    assert {method for site, method in gradient.methods.items() if site.startswith("conv")} == {"keep shifted"}
