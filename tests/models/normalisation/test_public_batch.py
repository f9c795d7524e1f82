"""Batch norm by public examples: against batch norm itself, run on what it stands for."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato import ClippedGradient, SfumatoError
from sfumato.models import public_norms as public_batch
from sfumato.models import refresh, refreshed_weights, replace_norms
from sfumato.models.norms import OwnPublicNorm

FORMS = ("public-batch", "public-batch-own", "public-batch-joint", "public-batch-through")


class Small(nn.Module):
    """A convolution, a hidden layer and a head, each normalised."""

    def __init__(self, channels: int = 3, side: int = 5, classes: int = 4):
        super().__init__()
        self.conv, self.norm1 = nn.Conv2d(2, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.hidden, self.norm2 = nn.Linear(channels * side * side, 6), nn.BatchNorm1d(6)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.norm1(self.conv(x)))
        return self.head(torch.tanh(self.norm2(self.hidden(features.flatten(1)))))


def shaken(model: nn.Module) -> nn.Module:
    """Gains and shifts that are not those of the beginning."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def made(form: str, public: Tensor, plain: nn.Module) -> nn.Module:
    return replace_norms(copy.deepcopy(plain), form, public)


@pytest.mark.parametrize("form", FORMS)
def test_another_example_of_the_batch_changes_nothing_nor_does_the_mode(form):
    torch.manual_seed(0)
    model = made(form, torch.randn(5, 2, 5, 5), shaken(Small()))
    x = torch.randn(3, 2, 5, 5)
    other = x.clone()
    other[1:] = 100 * torch.randn(2, 2, 5, 5)
    torch.testing.assert_close(model(x)[:1], model(other)[:1], atol=1e-6, rtol=1e-6)
    assert torch.equal(model.train()(x), model.eval()(x))


@pytest.mark.parametrize("form", ["public-batch", "public-batch-own"])
def test_other_weights_bring_other_moments_and_the_same_ones_none(form, monkeypatch):
    torch.manual_seed(0)
    public, x = torch.randn(5, 2, 5, 5), torch.randn(3, 2, 5, 5)
    model = made(form, public, Small())
    stored = {name: value.clone() for name, value in model.state_dict().items()}
    shaken(model)
    stale = {name: value.clone() for name, value in model.state_dict().items()}
    refresh(model)
    expected = model(x)
    other = made(form, public, Small())
    other.load_state_dict(stale)
    torch.testing.assert_close(other(x), expected)
    kept = refreshed_weights(made(form, public, Small()), stale)
    assert not torch.equal(kept["norm1.mean"], stale["norm1.mean"])
    monkeypatch.setattr(public_batch, "store_moments", lambda *_: pytest.fail("the very weights' moments, taken anew"))
    other.load_state_dict(kept)
    torch.testing.assert_close(other(x), expected)
    model.load_state_dict(stored)


def test_a_gradient_through_moments_of_other_weights_is_refused_until_they_are_taken():
    """A Jacobian belongs to weights; a copy has its own."""
    torch.manual_seed(0)
    plain, public, x = shaken(Small()), torch.randn(5, 2, 5, 5), torch.randn(3, 2, 5, 5)
    labels = torch.tensor([0, 1, 2])
    first = made("public-batch-through", public, plain)
    model, weights = copy.deepcopy(first), shaken(copy.deepcopy(plain)).state_dict()
    model.load_state_dict({name: weights.get(name, value) for name, value in model.state_dict().items()})
    assert model.eval()(x).isfinite().all()
    with pytest.raises(SfumatoError, match=r"no Jacobian at these weights; call sfumato\.models\.refresh"):
        model.train()(x)
    refresh(model)
    other = made("public-batch-through", public, copy.deepcopy(plain))
    for one in (model, other):
        one.load_state_dict({name: weights.get(name, value) for name, value in one.state_dict().items()})
        refresh(one)
    found, right = (ClippedGradient(one, functional.cross_entropy)(x, labels).gradients for one in (model, other))
    for name, value in right.items():
        assert torch.equal(found[name], value)
    assert all(layer.moments is None for layer in (model.norm1, model.norm2))
    assert not any("jacobian" in name for name in model.state_dict())


def test_after_a_step_moments_and_jacobian_are_those_of_the_present_weights():
    """Weights that an optimizer moves in place are not loaded, so that nothing but `refresh` can tell."""
    torch.manual_seed(0)
    public, x, labels = torch.randn(5, 2, 5, 5), torch.randn(3, 2, 5, 5), torch.tensor([0, 1, 2])
    model = made("public-batch-through", public, Small())
    shaken(model)
    refresh(model)
    plain = Small()
    plain.load_state_dict(dict(model.named_parameters()), strict=False)
    other = made("public-batch-through", public, plain)
    found, right = (ClippedGradient(one, functional.cross_entropy)(x, labels).gradients for one in (model, other))
    for name, value in right.items():
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("form", ["public-batch", "public-batch-through"])
def test_moments_are_of_the_model_without_dropout(form):
    torch.manual_seed(0)
    public = torch.randn(5, 2, 5, 5)
    body = lambda: nn.Sequential(nn.Dropout(0.9), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 4))  # noqa: E731
    model = made(form, public, body()).train()
    refresh(model)
    assert model.training
    features = model[1](public)
    torch.testing.assert_close(model[2].mean, features.mean((0, 2, 3)))
    if form == "public-batch-through":
        first = model[2].jacobian
        refresh(model)
        assert torch.equal(model[2].jacobian, first)


def test_a_pass_that_fails_leaves_no_derivative_behind():
    model = made("public-batch-through", torch.randn(5, 2, 5, 5), Small()).train()
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 2, 9, 9))
    assert model.norm1.moments is None


def test_parameters_that_are_frozen_later_fit_the_jacobian():
    torch.manual_seed(0)
    model = made("public-batch-through", torch.randn(5, 2, 5, 5), Small())
    model.conv.weight.requires_grad_(False)
    x, labels = torch.randn(3, 2, 5, 5), torch.tensor([0, 1, 2])
    before = ClippedGradient(model, functional.cross_entropy, max_norm=1e6)(x, labels).gradients
    refresh(model)
    after = ClippedGradient(model, functional.cross_entropy, max_norm=1e6)(x, labels).gradients
    assert before.keys() == after.keys() == {name for name, _ in model.named_parameters()} - {"conv.weight"}
    for name, value in after.items():
        assert torch.equal(before[name], value)


def test_a_layer_that_is_run_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.norm(x))

    with pytest.raises(SfumatoError, match=r"'norm' runs 2 times per pass.*such as group"):
        replace_norms(Twice(), "public-batch", torch.randn(3, 2, 4, 4))


def test_a_constant_channel_of_one_example_stays_finite():
    torch.manual_seed(0)
    layer = OwnPublicNorm(2, public=3)
    x = torch.ones(2, 2, 4, 4, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
