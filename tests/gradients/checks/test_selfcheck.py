"""The self-check accepts correct gradients and refuses planted errors."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato import ClippedGradient, SfumatoError, _devices
from sfumato.gradients.checks import selfcheck
from sfumato.gradients.checks.selfcheck import _Answer, _repeats
from sfumato.gradients.sites.conv import ConvSite
from sfumato.gradients.sites.linear import OuterProduct
from sfumato.gradients.use import Instantiated
from sfumato.models.losses import LOSSES


def net():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout(0.5), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))


@pytest.mark.parametrize("views", [1, 2])
def test_a_right_gradient_passes_with_dropout(views):
    gradient = ClippedGradient(net(), F.cross_entropy, views=views)
    state = torch.get_rng_state()
    gradient.self_check((1, 8, 8))
    assert gradient.unused_parameters == ()
    gradient.self_check((1, 8, 8), targets=torch.tensor([2]))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wrong_bias_is_refused_by_name(monkeypatch):
    def backward(self, *arguments):
        gradient = original(self, *arguments)
        operand, use = self.uses[-1]
        self.uses[-1] = (operand, Instantiated(use.instantiate() * 1.01))
        return gradient

    original = ConvSite.backward
    monkeypatch.setattr(ConvSite, "backward", backward)
    with pytest.raises(SfumatoError, match=r"parameter '0\.bias' differs from the plain computation"):
        ClippedGradient(net(), F.cross_entropy).self_check((1, 8, 8))


class Unsteady:
    """Adds in a different order each time: float32 differs by parts in a hundred, float64 negligibly."""

    def __init__(self, *, by: float, in_float64: float):
        self.by, self.in_float64, self.calls = by, in_float64, 0

    def answer(self, dtype):
        self.calls += 1
        by = self.in_float64 if dtype == torch.float64 else self.by
        return _Answer({"weight": torch.ones(3) + by * (self.calls % 2)}, torch.ones(1))


def test_a_norm_that_is_too_small_is_refused(monkeypatch):
    right = OuterProduct.squared_norms
    monkeypatch.setattr(OuterProduct, "squared_norms", lambda self: 0.98 * right(self))
    with pytest.raises(SfumatoError, match=r"differs from the plain computation|gradient norm"):
        ClippedGradient(net(), F.cross_entropy, max_norm=1e-3).self_check((1, 8, 8))


def test_on_a_device_two_computations_may_round_otherwise(monkeypatch):
    monkeypatch.setattr(_devices, "_warned", set())
    device = torch.device("cuda")
    rounding = Unsteady(by=1e-2, in_float64=1e-12)
    with pytest.warns(RuntimeWarning, match="the gradient of this model is not deterministic on this device"):
        assert _repeats(rounding.answer, device)
    assert not _repeats(rounding.answer, torch.device("cpu"))
    assert not _repeats(Unsteady(by=1e-2, in_float64=1e-2).answer, device), "it has random numbers of its own"


def test_norms_whose_squares_vanish_are_no_difference():
    def vanishing(outputs, targets):
        return 1e-160 * F.cross_entropy(outputs, targets) + (outputs.detach() * 0).sum()

    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 3)).double()
    ClippedGradient(model, vanishing).self_check((1, 3, 3))


@pytest.mark.parametrize(("own", "right"), [(2e-12, True), (1e-4, False)])
def test_a_norm_beside_nothing_is_rounding_as_far_as_the_other_norms_say(own, right):
    def answer(small):
        return selfcheck._Answer({"weight": torch.ones(2).double()}, torch.tensor([30.0, small, 20.0, 1e8]).double())

    exact = answer(0.0)
    with (
        contextlib.nullcontext() if right else pytest.raises(SfumatoError, match="gradient norm of synthetic example 1")
    ):
        selfcheck._compare_answers(answer(own), exact, exact, 1e-6, whole=2**0.5)


def test_unusual_outputs_need_targets():
    gradient = ClippedGradient(nn.Linear(4, 3), lambda o, t: (o - t).square().mean())
    gradient.self_check((4,), targets=torch.randn(5, 3))
    deep = ClippedGradient(nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3))), F.mse_loss)
    with pytest.raises(SfumatoError, match="give targets="):
        deep.self_check((4,))
    with pytest.raises(SfumatoError, match="example_shape"):
        gradient.self_check("4")
    with pytest.raises(SfumatoError, match="synthetic example"):
        gradient.self_check((5,))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers_is_switched_off(kind):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.last = kind(3, 4, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.last(self.layers(x)[0][:, -1])

    ClippedGradient(Words(), F.cross_entropy).self_check((5, 3))


def test_an_example_that_is_left_out_is_refused():
    gradient = ClippedGradient(net(), F.cross_entropy)
    left_out = lambda x, y: gradient(x, y, None, x.flatten(1).mean(1) < 100)  # noqa: E731 - the one with an offset
    with pytest.raises(SfumatoError, match="differs from the plain computation"):
        gradient.self_check((1, 8, 8), gradient=left_out)


def test_gradients_may_cancel():
    """Of two classes, on equal inputs, as integers all are: each pair of clipped gradients adds up to zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(8, 2))
    ClippedGradient(model, F.cross_entropy).self_check(torch.ones(2, dtype=torch.int64), targets=torch.tensor([0, 1]))


class Coarse(nn.Linear):
    """Enables autocast in its forward pass."""

    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(inputs).to(inputs.dtype)


@pytest.mark.parametrize("views", [1, 2])
def test_it_is_named_with_the_option_that_is_there(views):
    with pytest.raises(SfumatoError, match=r"computes in bfloat16 in its forward pass.*precision=bfloat16"):
        ClippedGradient(Coarse(20, 3), F.cross_entropy, views=views).self_check((20,))


def test_a_self_check_under_autocast_is_named():
    gradient = ClippedGradient(nn.Linear(20, 3), F.cross_entropy)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(SfumatoError, match="call it outside"):
        gradient.self_check((20,))
    gradient.self_check((20,))
    with torch.autocast("cpu", torch.bfloat16):
        assert gradient(torch.randn(4, 20), torch.arange(4) % 3).norms.dtype == torch.float64


def test_labels_that_are_surely_right_pass_the_check():
    """True of synthetic examples of a huge scale, for some initial weights; the rest of their gradient is rounding."""
    for seed in range(6):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
        gradient = ClippedGradient(model, LOSSES["multilabel"], max_norm=1.0)
        gradient.self_check((1, 6, 6), targets=torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]))
