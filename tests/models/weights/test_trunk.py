"""The trunk: what a model computes before its classifier, where nothing else is trained."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient
from sfumato.models import create, select_trainable, trunk_of


@pytest.mark.parametrize(
    ("name", "size"), [("wrn-10-1", 16), ("timm:resnet10t", 32), ("timm:vit_tiny_patch16_224", 32)]
)
def test_the_classifier_on_the_features_is_the_model(name, size):
    model = create(name, classes=7, channels=3, size=size)
    model.train()
    select_trainable(model, ["classifier"])
    modes = {path: module.training for path, module in model.named_modules()}
    trunk = trunk_of(model, (3, size, size))
    assert trunk is not None
    images = torch.randn(4, 3, size, size)
    features = trunk(images)
    assert features.shape == (4, trunk.width)
    assert not features.requires_grad
    assert {path: module.training for path, module in model.named_modules()} == modes
    assert torch.equal(model.get_submodule(trunk.head)(features), model.eval()(images))
    torch.testing.assert_close(trunk(images[:1]), features[:1], atol=1e-5, rtol=1e-5)


def test_the_clipped_gradient_on_features_is_that_of_the_whole_model():
    model = create("wrn-10-1", classes=3, channels=1, size=16)
    select_trainable(model, ["classifier"])
    trunk = trunk_of(model, (1, 16, 16))
    images, targets = torch.randn(5, 1, 16, 16), torch.arange(5) % 3
    whole = ClippedGradient(model, functional.cross_entropy, max_norm=0.1)(images, targets)
    part = ClippedGradient(model.head, functional.cross_entropy, max_norm=0.1)(trunk(images), targets)
    assert set(whole.gradients) == {"head.weight", "head.bias"}
    for name, value in part.gradients.items():
        torch.testing.assert_close(whole.gradients[f"head.{name}"], value, atol=1e-5, rtol=1e-4)


class Rescaled(nn.Module):
    """Something happens after the head."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        return 2 * self.head(images.flatten(1))


def test_there_is_none_where_more_is_trained_or_something_follows_the_classifier():
    model = create("wrn-10-1", classes=3, channels=1, size=16)
    assert trunk_of(model, (1, 16, 16)) is None
    select_trainable(model, ["classifier", "norm"])
    assert trunk_of(model, (1, 16, 16)) is None
    assert trunk_of(Rescaled(), (1, 8, 8)) is None
    assert trunk_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), (1, 8, 8)) is None


class Around(nn.Module):
    """A head that is no plain end of the model."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.head = nn.Linear(64, 64 if kind == "tied" else 4)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if kind == "tied":
            self.mix = nn.Linear(64, 64, bias=False)
            self.mix.weight = self.head.weight

    def forward(self, images):
        features = images.flatten(1)
        if self.kind == "tied":
            return self.head(torch.relu(self.mix(features)))
        if self.kind == "functional":
            return functional.linear(features, self.head.weight, self.head.bias)
        if self.kind == "twice":
            return self.head(features) + self.head(features.flip(1))
        return {"negated": lambda x: -x, "bounded": torch.tanh}[self.kind](self.head(features))


@pytest.mark.parametrize("kind", ["tied", "functional", "twice", "negated", "bounded"])
def test_a_head_of_zeros_hides_nothing(kind):
    model = Around(kind)
    select_trainable(model, ["classifier"])
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert trunk_of(model, (1, 8, 8)) is None
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


class Wrapped(nn.Module):
    """A body with something before the head, or behind it, that gentle trials in evaluation mode do not show."""

    def __init__(self, before=None, after=None):
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, 3)
        self.before, self.after = before or nn.Identity(), after or nn.Identity()

    def forward(self, images):
        return self.after(self.head(self.before(self.body(images.flatten(1)).relu())))


class AlwaysDropout(nn.Module):
    def forward(self, x):
        return functional.dropout(x, 0.5, training=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [(nn.Dropout(0.5), None), (AlwaysDropout(), None), (None, nn.Hardtanh(-300, 300))],
    ids=["dropout", "dropout in every mode", "a limit on large logits"],
)
def test_there_is_none_where_randomness_are_thrown_or_large_logits_are_changed(before, after):
    plain = Wrapped()
    select_trainable(plain, ["classifier"])
    assert trunk_of(plain, (1, 8, 8)) is not None
    model = Wrapped(before, after)
    select_trainable(model, ["classifier"])
    assert trunk_of(model, (1, 8, 8)) is None
