"""Clipped sums that are replayed have the bits of those that are not, and what a recording can't know ends it."""

from __future__ import annotations

import functools
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato import models
from sfumato.gradients import ClippedGradient
from sfumato.gradients.replay import recording, replays


def images(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, 8, 8), torch.arange(count) % 4


def replaying(gradient: ClippedGradient) -> bool:
    return any(kind.recording is not None for kind in gradient._batches._replays._kinds.values())


def refusals(gradient: ClippedGradient) -> str:
    return "; ".join(gradient._batches._replays.refusals().values())


def same_as_before(gradient: ClippedGradient, *batch: torch.Tensor, **options: torch.Tensor) -> None:
    """A replayed call and the ordinary one have the same bits."""
    found = gradient(*batch, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient._batches._replays, "run", lambda *_: None)
        expected = gradient(*batch, **options)
    for one, other in zip((found.norms, found.losses), (expected.norms, expected.losses), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    for name, value in expected.gradients.items():
        assert torch.equal(found.gradients[name], value), name


class Net(nn.Module):
    """Weight standardisation, group norm, a parameter that is used by itself, and what a test needs to change."""

    scale = 1.0

    def __init__(self, standardised=False):
        super().__init__()
        self.standardised = standardised
        self.conv, self.gain = nn.Conv2d(3, 16, 3, padding=1), nn.Parameter(torch.ones(16, 1, 1))
        self.norm, self.head = nn.GroupNorm(4, 16), nn.Linear(16, 4)
        self.register_buffer("shift", torch.zeros(16, 1, 1))
        self.numbers, self.factor = [1.0, 2.0], 1.0

    def forward(self, images):
        weight = self.conv.weight
        if self.standardised:
            weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        hidden = F.conv2d(images, weight, self.conv.bias, padding=1)
        hidden = self.norm(hidden) * self.gain + self.shift
        return self.head(hidden.relu().mean((2, 3))) * self.factor * self.numbers[0] * self.scaled()

    def scaled(self):
        return self.scale * SETTINGS


SETTINGS = 1.0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("views", [1, 3])
def test_replays_have_the_same_bits_while_weights_and_examples_change(views, weighted, monkeypatch):
    monkeypatch.setattr(replays, "_MANY", 0)  # what is made of weights is kept for the next call
    model = Net(standardised=True)
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1, views=views)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        inputs, targets = torch.randn(6, *([3] if views > 1 else []), 3, 8, 8), torch.arange(6) % 4
        options = {"weights": torch.tensor([1.0, 0.5, 0.0, 1.0, 1.0, 0.25])} if weighted else {}
        same_as_before(gradient, inputs, targets, **options)
        assert replaying(gradient), refusals(gradient)
        for name, value in gradient(inputs, targets, **options).gradients.items():
            model.get_parameter(name).grad = value
        optimizer.step()
    assert not any(kind.failures for kind in gradient._batches._replays._kinds.values())


_SLOW = ("resnet-18,norm=group", "timm:vit_tiny_patch16_224", "wrn-10-1")


@pytest.mark.parametrize("name", ["lenet5", *(pytest.param(name, marks=pytest.mark.slow) for name in _SLOW)])
def test_models_of_the_registry_are_replayed(name):
    size = 224 if name.startswith("timm") else 16
    model = models.create(name, classes=4, channels=3, size=size)
    inputs, targets = torch.randn(2, 3, size, size), torch.tensor([0, 3])
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1)
    gradient(inputs, targets)
    assert replaying(gradient), refusals(gradient)
    same_as_before(gradient, inputs + 0.1, targets)


def test_unusual_examples_are_computed_in_the_ordinary_way():
    gradient = ClippedGradient(Net(standardised=True), F.cross_entropy, max_norm=0.1)
    inputs, targets = images()
    gradient(inputs, targets)
    for number in (float("nan"), float("inf"), 1e30, 1e-42, 0.0):
        odd = inputs.clone()
        odd[2] = number
        same_as_before(gradient, odd, targets)
    assert replaying(gradient)


def test_a_kind_of_call_whose_recording_fails_again_and_again_is_no_longer_replayed():
    gradient = ClippedGradient(Net(), F.cross_entropy, max_norm=0.1)
    inputs, targets = images()
    gradient(inputs, targets)
    inputs[0] = float("nan")
    for _ in range(replays._MOST_FAILURES):
        assert replaying(gradient)
        gradient(inputs, targets)
    assert not replaying(gradient)
    assert "in many ways" in refusals(gradient)


def _set(model, name, value):
    setattr(model, name, value)


def _move(model, _):
    model.conv.weight.data.mul_(1.5)  # which torch counts as no write


def _other_forward(self, images):
    return self.head(images.mean((2, 3)).repeat(1, 16)[:, :16])


CHANGES = {
    "an attribute": lambda model, patch: _set(model, "factor", 2.0),
    "an item of a list": lambda model, patch: model.numbers.__setitem__(0, 3.0),
    "a new parameter": lambda model, patch: _set(model, "gain", nn.Parameter(torch.full((16, 1, 1), 2.0))),
    "a new buffer": lambda model, patch: _set(model, "shift", torch.ones(16, 1, 1)),
    "a buffer in place": lambda model, patch: model.shift.fill_(2.0),
    "a weight by .data": _move,
    "a number of the class": lambda model, patch: patch.setattr(Net, "scale", 2.0),
    "a number of the module": lambda model, patch: patch.setitem(globals(), "SETTINGS", 2.0),
    "other code": lambda model, patch: patch.setattr(Net, "forward", _other_forward),
    "a frozen parameter": lambda model, patch: model.head.bias.requires_grad_(False),
    "a hook": lambda model, patch: model.norm.register_forward_hook(lambda module, inputs, outputs: 2 * outputs),
}


@pytest.mark.parametrize("change", [*CHANGES, "a weight by .data, kept"])
def test_what_a_model_depends_on_may_change_and_is_seen(change, monkeypatch, no_more):
    model = Net(standardised=change.endswith("kept"))
    if change.endswith("kept"):  # what was made of weights is kept for the next call, as it is where that is much
        monkeypatch.setattr(replays, "_MANY", 0)
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1)
    inputs, targets = images()
    for _ in range(2):
        before = gradient(inputs, targets)
    assert replaying(gradient), refusals(gradient)
    no_more()
    with torch.no_grad():
        CHANGES[change.removesuffix(", kept")](model, monkeypatch)
    after = gradient(inputs, targets)
    assert not torch.equal(after.norms, before.norms)
    fresh = ClippedGradient(model, F.cross_entropy, max_norm=0.1, methods=gradient.methods)(inputs, targets)
    assert torch.equal(after.norms, fresh.norms)
    same_as_before(gradient, inputs, targets)


def test_what_has_changed_is_recorded_anew():
    model, (inputs, targets) = Net(), images()
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1)
    for factor in range(1, replays._MOST_TIMES + 2):
        model.factor = float(factor)
        gradient(inputs, targets)
        assert replaying(gradient) == (factor <= replays._MOST_TIMES)
        same_as_before(gradient, inputs, targets)
    assert "keeps changing" in refusals(gradient)


def test_a_loss_is_judged_as_the_model_is():
    temperature = 1.0
    weights = torch.ones(4)

    def loss(outputs, targets):
        return F.cross_entropy(outputs / temperature, targets, weight=weights)

    gradient = ClippedGradient(Net(), loss, max_norm=100.0)
    inputs, targets = images()
    first = gradient(inputs, targets)
    assert replaying(gradient), refusals(gradient)
    weights[1] = 5.0  # a mean weighted by one example's own weight: only its gradient's rounding knows
    same_as_before(gradient, inputs, targets)
    temperature = 4.0
    assert not torch.equal(gradient(inputs, targets).norms, first.norms)
    same_as_before(gradient, inputs, targets)
    partial = ClippedGradient(Net(), functools.partial(F.cross_entropy, label_smoothing=0.1), max_norm=0.1)
    partial(inputs, targets)
    assert replaying(partial), refusals(partial)


STATE = {"scale": 2.0}


class ByChance(Net):
    def scaled(self):
        return random.random()


class ByState(Net):
    def scaled(self):
        return STATE["scale"]


class ByNoise(Net):
    def forward(self, images):
        return super().forward(images + torch.rand_like(images))


class ByValue(Net):
    def scaled(self):
        return self.shift.sum().item() + 1


def _hooked() -> Net:
    model = Net()
    model.norm.register_forward_pre_hook(lambda module, inputs: None)
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (ByChance, "module random"),
        (ByState, "refers to a dict"),
        (ByNoise, "random numbers"),
        (ByValue, "data-dependent"),
        (_hooked, "forward hook"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_that_depend_on_something_else_are_not_recorded(make, reason):
    gradient = ClippedGradient(make(), F.cross_entropy, max_norm=0.1)
    gradient(*images())
    assert not replaying(gradient)
    assert reason in refusals(gradient)


def test_dropout_that_follows_keys_is_not_recorded():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1)
    gradient(*images())
    assert not replaying(gradient)


def test_modes_around_a_call_see_every_operation(monkeypatch):
    gradient = ClippedGradient(Net(), F.cross_entropy, max_norm=0.1)
    inputs, targets = images()
    gradient(inputs, targets)
    expected = gradient(inputs, targets)

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(recording.Recording, "run", None)  # would fail if it were called
    with Watching():
        assert torch.equal(gradient(inputs, targets).norms, expected.norms)
    with pytest.raises(TypeError):
        gradient(inputs, targets)


def test_coarser_matrix_products_have_their_own_allowance_for_rounding(monkeypatch):
    """A recording holds the allowance of its time, so it must not serve for products that round more."""
    gradient = ClippedGradient(Net(standardised=True), F.cross_entropy, max_norm=0.1)
    inputs, targets = images()
    gradient(inputs, targets)
    before, runs = torch.get_float32_matmul_precision(), []
    monkeypatch.setattr(recording.Recording, "run", lambda *_: runs.append(1))
    try:
        torch.set_float32_matmul_precision("medium")
        monkeypatch.setattr(replays, "_WORTH_SECONDS", float("inf"))
        found = gradient(inputs, targets)
        fresh = ClippedGradient(gradient._model, F.cross_entropy, max_norm=0.1, methods=gradient.methods)(
            inputs, targets
        )
    finally:
        torch.set_float32_matmul_precision(before)
    assert not runs
    assert torch.equal(found.norms, fresh.norms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_and_threads_are_other_kinds_of_calls(dtype):
    gradient = ClippedGradient(Net(), F.cross_entropy, max_norm=0.1)
    inputs, targets = images()
    gradient(inputs, targets)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            same_as_before(gradient, inputs, targets)
    finally:
        torch.set_num_threads(before)
