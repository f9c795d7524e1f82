"""What a recording can't see is compared before each use, or never recorded."""

from __future__ import annotations

import functools
import itertools
from random import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.gradients import ClippedGradient
from sfumato.gradients.checks import memory


def recordings(gradient: ClippedGradient) -> int:
    return sum(kind.recording is not None for kind in gradient._batches._replays._kinds.values())


class Model(nn.Module):
    """Two layers and what a test puts between them."""

    def __init__(self, thing=None):
        super().__init__()
        self.first, self.last, self.thing = nn.Linear(48, 8), nn.Linear(8, 4), thing

    def forward(self, images):
        return self.last(self.between(self.first(images.flatten(1).to(self.first.weight.dtype))))

    def between(self, hidden):
        return torch.tanh(hidden)


class Called(Model):
    def between(self, hidden):
        return self.thing(hidden)


class InOrder(Model):
    def between(self, hidden):
        for layer in self.thing.values():
            hidden = layer(hidden)
        return hidden


class Chosen(Model):
    def __init__(self):
        super().__init__(nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]))
        self.current = self.thing[0]

    def between(self, hidden):
        return self.current(hidden) + 0 * sum(layer(hidden) for layer in self.thing)


class OfNumber(Model):
    def between(self, hidden):
        return hidden * float(self.thing)


class OfLength(Model):
    def between(self, hidden):
        return hidden * len(self.thing)


class OfType(Model):
    def between(self, hidden):
        return hidden.to(self.thing).to(hidden.dtype)


class Settings:
    temperature = 1.0


class OfSettings(Model):
    def between(self, hidden):
        return hidden / Settings.temperature


class OfSettingsHeld(Model):
    def between(self, hidden):
        return hidden / self.thing.temperature


class WithScale(nn.Linear):
    scale = 1.0


class OfChild(Model):
    def between(self, hidden):
        return self.thing(hidden) * self.thing.scale


def times(number):
    def multiplied(hidden):
        return hidden * number

    return multiplied


class OfFunctions(Model):
    def between(self, hidden):
        return self.thing[1](self.thing[0](hidden))


def _reorder(model, _):
    model.thing["a"] = model.thing.pop("a")


def _other(value):
    return lambda model, _: setattr(model, "thing", value)


CHANGES = {
    "a layer without numbers": (lambda: Called(nn.Tanh()), _other(nn.Sigmoid())),
    "an order": (lambda: InOrder(nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})), _reorder),
    "another name for a layer": (Chosen, lambda model, _: setattr(model, "current", model.thing[1])),
    "a number of numpy": (lambda: OfNumber(np.float32(1)), _other(np.float32(2))),
    "a range": (lambda: OfLength(range(1)), _other(range(2))),
    "bytes": (lambda: OfLength(b"a"), _other(b"ab")),
    "a list of nothing": (lambda: OfLength([None]), _other([None, None])),
    "a type": (lambda: OfType(torch.float32), _other(torch.bfloat16)),
    "a number of a class": (OfSettings, lambda _, patch: patch.setattr(Settings, "temperature", 2.0)),
    "of a held thing": (
        lambda: OfSettingsHeld(Settings()),
        lambda _, patch: patch.setattr(Settings, "temperature", 2.0),
    ),
    "of a child": (lambda: OfChild(WithScale(8, 8)), lambda _, patch: patch.setattr(WithScale, "scale", 2.0)),
    "one of two closures": (
        lambda: OfFunctions([times(1.0), times(2.0)]),
        lambda model, _: setattr(model.thing[0].__closure__[0], "cell_contents", 3.0),
    ),
    "a library's code": (
        lambda: Called(nn.Tanh()),
        lambda _, patch: patch.setattr(nn.Tanh, "forward", nn.ReLU6().forward),
    ),
    "a model's precision": (Model, lambda model, _: model.double()),
    "a shape": (
        Model,
        lambda model, _: (
            setattr(model.last.weight, "data", torch.randn(6, 8)) or setattr(model.last.bias, "data", torch.randn(6))
        ),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_seen(change, monkeypatch, no_more):
    make, move = CHANGES[change]
    model = make()
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1)
    inputs, targets = torch.randn(6, 3, 4, 4), torch.arange(6) % 4
    before = gradient(inputs, targets)
    assert recordings(gradient), gradient._batches._replays.refusals()
    no_more()
    move(model, monkeypatch)
    after = gradient(inputs, targets)
    assert not torch.equal(after.norms, before.norms)
    with monkeypatch.context() as patch:
        patch.setattr(gradient._batches._replays, "run", lambda *_: None)
        assert torch.equal(after.norms, gradient(inputs, targets).norms)


STATE = {"scale": 2.0}


def wrapped(function):
    @functools.wraps(function)
    def inner(*given):
        return function(*given)

    return inner


class Wrapped(Model):
    @wrapped
    def forward(self, images):
        return self.last(self.between(self.first(images.flatten(1))))

    def between(self, hidden):
        return hidden * STATE["scale"]


class ByCall(Model):
    def __call__(self, *given):
        return super().__call__(*given) * STATE["scale"]


class ByChance(Model):
    def between(self, hidden):
        return hidden * random()


class ByGlobals(Model):
    def between(self, hidden):
        return hidden * globals()["STATE"]["scale"]


class ByImport(Model):
    def between(self, hidden):
        import time

        return hidden * (time.time() % 10)


class ByCount(Model):
    def between(self, hidden):
        return hidden * next(self.thing)


class Helper:
    def scaled(self, hidden):
        return hidden * STATE["scale"]


class ByHelper(Model):
    def between(self, hidden):
        return self.thing.scaled(hidden)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Wrapped, "refers to a dict"),
        (ByCall, "refers to a dict"),
        (lambda: ByHelper(Helper()), "refers to a dict"),
        (ByChance, "a function of random"),
        (ByGlobals, "calls globals"),
        (ByImport, "refers to the module time"),
        (lambda: ByCount(itertools.count(1)), "holds a count"),
    ],
)
def test_what_cannot_be_judged_is_not_recorded(make, reason):
    gradient = ClippedGradient(make(), F.cross_entropy, max_norm=0.1)
    gradient(torch.randn(6, 3, 4, 4), torch.arange(6) % 4)
    assert not recordings(gradient)
    assert reason in "; ".join(gradient._batches._replays.refusals().values())


def test_layers_beside_each_other_have_sums_of_their_own(monkeypatch):
    """Their gradients are the same numbers; in one memory the second piece would be added to it twice."""

    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other, self.last = nn.Linear(48, 8), nn.Linear(48, 8), nn.Linear(8, 4)

        def forward(self, images):
            return self.last(self.one(images.flatten(1)) + self.other(images.flatten(1)))

    monkeypatch.setattr(memory, "NEAR", 1)
    monkeypatch.setattr(memory, "LEAST_IMAGES", 2)
    gradient = ClippedGradient(Beside(), F.cross_entropy, max_norm=0.1)
    inputs, targets = torch.randn(1, 3, 4, 4).expand(6, -1, -1, -1).contiguous(), torch.zeros(6, dtype=torch.int64)
    gradient(inputs, targets)
    assert recordings(gradient)
    found = gradient(inputs, targets).gradients
    assert sum(value.double().square().sum() for value in found.values()).sqrt() <= 6 * 0.1 * (1 + 1e-5)
