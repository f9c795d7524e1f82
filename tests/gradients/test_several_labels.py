"""Clipped sums for targets with several labels each, by every method, against the oracle with an explicit loss."""

from contextlib import suppress

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.gradients.checks import oracle
from sfumato.models.losses import LOSSES

WAYS = ("drop product", "keep product", "gram")


def written_out(outputs: Tensor, labels: Tensor) -> Tensor:
    """- sum_l y_l log p_l + (1 - y_l) log(1 - p_l), the mean over views."""
    chance = 1 / (1 + torch.exp(-outputs.double()))
    each = labels * chance.log() + (1 - labels) * (1 - chance).log()
    return -each.sum(1).mean()


def network(labels: int, seed: int, *, convolution: bool) -> nn.Module:
    torch.manual_seed(seed)
    first = [nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, labels)]
    return nn.Sequential(*(first if convolution else [nn.Flatten(), nn.Linear(36, labels)]))


@settings(max_examples=8)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 2), st.booleans(), st.floats(0.05, 8.0), st.integers(0, 9))
def test_sums_are_those_of_the_loss_written_out(examples, labels, views, convolution, max_norm, seed):
    model = network(labels, seed, convolution=convolution)
    generator = torch.Generator().manual_seed(seed)
    lead = (examples,) if views == 1 else (examples, views)
    inputs = torch.randn(*lead, 1, 6, 6, generator=generator)
    targets = torch.randint(2, (examples, labels), generator=generator)
    expected, norms, losses = oracle.clipped_sum(model, written_out, inputs, targets, max_norm=max_norm, views=views)
    first = ClippedGradient(model, LOSSES["multilabel"], max_norm=max_norm, views=views)
    first.self_check((1, 6, 6), targets=torch.tensor([[0] * labels, [1] * labels, [1] + [0] * (labels - 1)]))
    compared = 0
    for way in (None, *WAYS):
        methods = first.methods if way is None else dict.fromkeys(first.methods, way)
        gradient = ClippedGradient(model, LOSSES["multilabel"], max_norm=max_norm, views=views, methods=methods)
        with suppress(SfumatoError):  # a site without this method
            found = gradient(inputs, targets)
            torch.testing.assert_close(found.norms, norms, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(found.losses.double(), losses, rtol=1e-4, atol=1e-6)
            for name, value in expected.items():
                assert (found.gradients[name].double() - value).norm() <= 1e-4 * max_norm * max(1, examples)
            compared += 1
    assert compared >= 2


def test_labels_that_are_surely_right_pass_the_check():
    """True of synthetic examples of a huge scale, for some initial weights; the rest of their gradient is rounding."""
    for seed in range(6):
        model = network(2, seed, convolution=False)
        gradient = ClippedGradient(model, LOSSES["multilabel"], max_norm=1.0)
        gradient.self_check((1, 6, 6), targets=torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]))
