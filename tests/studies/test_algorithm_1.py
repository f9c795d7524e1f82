"""The printed algorithm of Davody et al. 2020: how far one example moves its sums, and that it promises nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from sfumato import ClippedGradient, PrivacyPlan, SfumatoError, open_source
from sfumato.models import create, replace_norms
from studies import algorithm_1 as printed

PLAN = PrivacyPlan.calibrate(examples=64, batch_size=16, steps=3, noise_multiplier=1.0, delta=1e-5)


@pytest.fixture(scope="module")
def digits():
    source = open_source("digits", owner_key=bytes(32), public=True)
    images = functional.pad(torch.from_numpy(source.train.images[:80]).permute(0, 3, 1, 2) / 127.5 - 1, (2, 2, 2, 2))
    return images, torch.from_numpy(source.train.labels[:80])


def model(norm: str = "batch") -> torch.nn.Module:
    torch.manual_seed(0)
    return create(f"lenet5,norm={norm},norm_last=1", classes=10, channels=1, size=12)


def test_one_white_image_moves_the_sum_by_more_than_the_bound(digits):
    images = torch.cat([torch.ones(1, 1, 12, 12), digits[0][:11]])
    labels, public = digits[1][:12], digits[0][64:68]
    assert printed.largest_move(model(), images, labels, public, max_norm=1.0) > 1.5
    assert printed.largest_move(model("group"), images, labels, public, max_norm=1.0) <= 1 + 1e-5


def test_the_sound_form_moves_by_the_bound_at_most(digits):
    images, labels = digits
    sound = replace_norms(model(), "public-batch", images[64:])
    gradient = ClippedGradient(sound, functional.cross_entropy, max_norm=1.0)
    whole = gradient(images[:16], labels[:16]).gradients
    for place in range(16):
        kept = torch.arange(16) != place
        less = gradient(images[:16][kept], labels[:16][kept]).gradients
        moved = torch.stack([(whole[name] - less[name]).square().sum() for name in whole]).sum().sqrt()
        assert moved <= 1 + 1e-5


def test_it_promises_nothing_and_says_why(digits):
    images, labels = digits
    network = model()
    before = network.conv1.weight.clone()
    run = printed.train(network, images[:64], labels[:64], images[64:], PLAN, learning_rate=0.5, seed=0)
    assert run.statement["epsilon"] is None
    assert run.statement["status"] == "claimed, does not hold"
    assert "moves the gradients of all others" in run.statement["reason"]
    assert run.statement["claimed"] == PLAN.epsilon()
    assert not torch.equal(before, run.module.conv1.weight)
    assert printed.outputs(run.module, images[:3], images[64:]).shape == (3, 10)
    again = model()
    printed.train(again, images[:64], labels[:64], images[64:], PLAN, learning_rate=0.5, seed=0)
    assert torch.equal(again.conv1.weight, run.module.conv1.weight)


def test_a_model_without_batch_norm_is_refused(digits):
    images, labels = digits
    with pytest.raises(SfumatoError, match="the module has no batch norm; give one such as lenet5,norm=batch"):
        printed.train(model("group"), images, labels, images, PLAN, learning_rate=0.5, seed=0)


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12), other=st.floats(0, 1, width=32), c=st.just(3.0)
)
def test_no_value_moves_mean_and_variance_by_more_than_their_sensitivities(values, other, c):
    before = c * np.array(values)
    after = before.copy()
    after[0] = c * other
    of_mean, of_variance = printed.sensitivities(c, len(values))
    assert abs(before.mean() - after.mean()) <= of_mean * (1 + 1e-9)
    assert abs(before.var() - after.var()) <= of_variance * (1 + 1e-9)
