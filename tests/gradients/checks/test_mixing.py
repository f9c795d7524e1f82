"""Models that compute over the batch in a layer of any name are refused before any step."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, SfumatoError


class HandMade(nn.Module):
    """A custom batch norm."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, inputs):
        axes = (0, *range(2, inputs.dim()))
        mean, variance = inputs.mean(axes, keepdim=True), inputs.var(axes, unbiased=False, keepdim=True)
        shape = [1, -1, *[1] * (inputs.dim() - 2)]
        return (inputs - mean) / torch.sqrt(variance + 1e-5) * self.weight.view(shape) + self.bias.view(shape)


class Inside(nn.Module):
    """A batch norm written into a model's forward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs):
        hidden = self.first(inputs)
        return self.last(functional.relu(hidden - hidden.mean(0)))


class Words(nn.Module):
    """Token ids, whose synthetic examples are all equal."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.embedding, self.norm, self.last = nn.Embedding(10, 6), norm, nn.Linear(6, 3)

    def forward(self, words):
        weights = torch.arange(words.shape[1]).to(self.last.weight)
        return self.last(self.norm((self.embedding(words) * weights.unsqueeze(1)).mean(1)))


def dense(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), norm, nn.ReLU(), nn.Linear(8, 3))


def pixels(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3))


MIXING = {
    "dense": (lambda: dense(HandMade(8)), (4,), r"module '1' \(HandMade\)"),
    "pixels": (lambda: pixels(HandMade(8)), (1, 6, 6), r"module '1' \(HandMade\)"),
    "inside": (Inside, (4,), r"the model \(Inside\)"),
    "words": (lambda: Words(HandMade(6)), torch.arange(5), r"module 'norm' \(HandMade\)"),
    "deeper": (lambda: nn.Sequential(nn.Identity(), dense(HandMade(8))), (4,), r"module '1\.1' \(HandMade\)"),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_batch_norm_of_ones_own_is_refused_by_its_name(name):
    make, shape, place = MIXING[name]
    before = {name: value.clone() for name, value in make().state_dict().items()}
    model = make()
    model.load_state_dict(before)
    with pytest.raises(SfumatoError, match=place + " gives an example other outputs in a batch than alone"):
        ClippedGradient(model, functional.cross_entropy, views=2).self_check(shape)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_it_is_refused_in_bfloat16_and_with_dropout():
    model = nn.Sequential(nn.Dropout(0.5), dense(HandMade(8))).to(torch.bfloat16)
    with pytest.raises(SfumatoError, match="in a batch than alone"):
        ClippedGradient(model, functional.cross_entropy).self_check((4,))


class Branching(nn.Module):
    """Branches on an example's values; for a batch it would be one branch for all."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.last(inputs) if inputs.sum() > 0 else self.last(-inputs)


APART = {
    "layer norm": (lambda: dense(nn.LayerNorm(8)), (4,)),
    "group norm": (lambda: pixels(nn.GroupNorm(2, 8)), (1, 6, 6)),
    "frozen batch norm": (lambda: pixels(nn.BatchNorm2d(8).eval()), (1, 6, 6)),
    "dropout": (lambda: dense(nn.Dropout(0.5)), (4,)),
    "words": (lambda: Words(nn.LayerNorm(6)), torch.arange(5)),
    "branching": (Branching, (4,)),
    "recurrent": (lambda: nn.Sequential(nn.LSTM(4, 3, batch_first=True), Last()), (5, 4)),
    "attention": (lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten()), (3, 4)),
}


class Last(nn.Module):
    def forward(self, outputs):
        return outputs[0][:, -1]


@pytest.mark.parametrize("name", APART)
def test_models_that_keep_examples_apart_are_taken(name):
    make, shape = APART[name]
    ClippedGradient(make(), functional.cross_entropy, views=2).self_check(shape)
