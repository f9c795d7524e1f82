"""Outputs of each example by itself: vectorised if nothing mixes examples, otherwise one at a time."""

import pytest
import torch
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.gradients import is_batch_independent, per_example_outputs, unchanged_outputs
from sfumato.models import create

IMAGES = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


LOUD = IMAGES.flatten(1).amax(1).sort().values[3].item()


class Centred(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)).flatten(1)


class Largest(nn.Module):
    def forward(self, x):
        return (x / x.amax()).flatten(1)


class Branching(nn.Module):
    """Branches on a value, which vmap cannot run."""

    def forward(self, x):
        return x.flatten(1) * (100 if x.amax() > LOUD else 1)


class Counting(nn.Module):
    """Stores something of every example for the next one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3 * 16 * 16))

    def forward(self, x):
        self.seen += x.flatten(1).mean(0)
        return x.flatten(1) + self.seen


@pytest.mark.parametrize("model", [Centred(), Largest(), Branching()], ids=lambda model: type(model).__name__)
def test_no_example_moves_another_ones_row(model):
    whole = per_example_outputs(model, IMAGES)
    assert torch.equal(per_example_outputs(model, IMAGES[1:]), whole[1:])
    for index, image in enumerate(IMAGES):
        torch.testing.assert_close(model(image.unsqueeze(0))[0], whole[index])
    assert not torch.allclose(model(IMAGES), whole), "the model does mix its batch"


@pytest.mark.parametrize("name", ["wrn-10-1", "timm:vit_tiny_patch16_224", "timm:test_nfnet"])
def test_ordinary_models_give_what_they_give(name):
    model = create(name, classes=4, channels=3, size=16 if "timm" not in name else 32).eval()
    images = IMAGES if "timm" not in name else torch.randn(3, 3, 32, 32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = per_example_outputs(model, images)
    assert not found.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(found, model(images), atol=1e-4, rtol=1e-4)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_what_keeps_or_mixes_is_refused():
    with pytest.raises(SfumatoError, match="leaves a new or changed value in 'seen'"):
        per_example_outputs(Counting(), IMAGES)
    with pytest.raises(SfumatoError, match="normalises by the private batch"):
        per_example_outputs(nn.BatchNorm2d(3, track_running_stats=False).eval(), IMAGES)
    with pytest.raises(SfumatoError, match="normalises by the private batch"):
        per_example_outputs(nn.BatchNorm2d(3), IMAGES)


class AlwaysDropout(nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x.flatten(1), 0.5, training=True)


def test_randomness_are_the_same_for_every_row():
    torch.manual_seed(3)
    outputs = per_example_outputs(AlwaysDropout(), IMAGES)
    after = torch.rand(1)
    assert torch.equal(per_example_outputs(AlwaysDropout(), IMAGES[2:]), outputs[2:])
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), after), "the caller's randomness are not touched"


SEEN: list[torch.Tensor] = []


class Global(nn.Module):
    """Stores something where no check looks, and uses it later."""

    def forward(self, x):
        if len(SEEN) > 3:
            x = x + 1
        SEEN.append(x.detach().mean())
        return x.flatten(1)


def test_a_pass_after_which_a_made_up_example_looks_otherwise_is_refused():
    SEEN.clear()

    def passed():
        with unchanged_outputs(Global(), torch.zeros(1, 3, 16, 16)):
            for image in IMAGES:
                per_example_outputs(Global(), image.unsqueeze(0))

    with pytest.raises(SfumatoError, match="have changed during the pass over the records"):
        passed()
    with unchanged_outputs(nn.Flatten(), torch.zeros(1, 3, 16, 16)):
        per_example_outputs(nn.Flatten(), IMAGES)


class Glaring(nn.Module):
    """Adds the excess over 6 of the brightest pixel of the batch to every image: zero for ordinary noise."""

    def forward(self, x):
        return x.flatten(1) + (x.amax() - 6).clamp_min(0)


@pytest.mark.parametrize("model", [Glaring(), Centred(), nn.Flatten()], ids=lambda model: type(model).__name__)
def test_too_few_examples_show_nothing(model):
    for count in (1, 2, 3):
        assert not is_batch_independent(model, IMAGES[:count])
    assert is_batch_independent(model, IMAGES[:4]) is isinstance(model, nn.Flatten)
