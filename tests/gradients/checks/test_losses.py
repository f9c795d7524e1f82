"""Losses that cannot be computed for one example alone, and models from other libraries."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, SfumatoError

WEIGHT = torch.tensor([1.0, 2.0, 50.0])


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(weight=WEIGHT), nn.NLLLoss(weight=WEIGHT), partial(functional.cross_entropy, weight=WEIGHT)],
)
def test_class_weights_that_a_mean_divides_out_are_refused(loss):
    with pytest.raises(SfumatoError, match=r"divides out again.*class_prevalence"):
        ClippedGradient(nn.Linear(4, 3), loss)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("at", [{"weight": WEIGHT}, WEIGHT])
def test_they_are_refused_within_a_loss_of_ones_own_too(at, views):
    def loss(outputs, targets):
        positional, named = ((), at) if isinstance(at, dict) else ((at,), {})
        return functional.cross_entropy(outputs, targets, *positional, **named) + 0.1 * outputs.square().mean()

    with pytest.raises(SfumatoError, match="divides out again"):
        ClippedGradient(nn.Linear(4, 3), loss, views=views).self_check((4,))


def test_weights_among_the_pixels_of_one_mask_are_none_that_divide_out():
    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets, weight=WEIGHT)

    masks = (torch.arange(36) % 3).reshape(1, 6, 6)
    ClippedGradient(nn.Conv2d(1, 3, 3, padding=1), loss).self_check((1, 6, 6), targets=masks)


def test_class_weights_that_stay_are_taken():
    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets, weight=WEIGHT, reduction="none").mean()

    model, inputs = nn.Linear(4, 3), torch.randn(3, 4)
    plain, weighted = (ClippedGradient(model, one, max_norm=1e3) for one in (functional.cross_entropy, loss))
    weighted.self_check((4,))
    norms = [gradient(inputs, torch.arange(3)).norms for gradient in (plain, weighted)]
    torch.testing.assert_close(norms[1], norms[0] * WEIGHT, rtol=1e-4, atol=0)
    ClippedGradient(model, nn.CrossEntropyLoss(weight=WEIGHT, reduction="sum"))


CONSTANT = {
    "relative to the batch": lambda outputs, targets: (outputs - outputs.mean(0)).square().mean(),
    "pairs": lambda outputs, targets: torch.pdist(outputs).sum() + 0 * outputs.sum(),
    "none at all": lambda outputs, targets: torch.zeros(()) + 0 * outputs.sum(),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_a_loss_that_is_constant_on_one_example_is_refused_before_any_step(name):
    with pytest.raises(SfumatoError, match="constant on one example"):
        ClippedGradient(nn.Linear(4, 3), CONSTANT[name]).self_check((4,))


def test_views_of_one_example_may_be_compared_and_flat_places_are_no_constant_loss():
    ClippedGradient(nn.Linear(4, 3), CONSTANT["relative to the batch"], views=2).self_check((4,))
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    ClippedGradient(model, lambda outputs, targets: functional.relu(outputs - 5).mean()).self_check((4,))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # as some versions of torch import its compiler
def test_a_compiled_model_is_taken_by_what_it_wraps():
    model = nn.Linear(4, 3)
    gradient = ClippedGradient(torch.compile(model), functional.cross_entropy)
    gradient.self_check((4,))
    assert list(gradient.zeros()) == ["weight", "bias"]
    inputs, targets = torch.randn(5, 4), torch.arange(5) % 3
    own = ClippedGradient(model, functional.cross_entropy)(inputs, targets).gradients
    torch.testing.assert_close(gradient(inputs, targets).gradients, own)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # as some versions of torch import its compiler
def test_a_module_inside_that_was_compiled_by_itself_is_named():
    inside = nn.Sequential(torch.compile(nn.Linear(4, 4)), nn.Linear(4, 3))
    in_place = nn.Linear(4, 3)
    in_place.compile()
    for model, name in ((inside, "'0'"), (in_place, "''")):
        with pytest.raises(SfumatoError, match=f"module {name} of the model was compiled"):
            ClippedGradient(model, functional.cross_entropy)


SUMS = {
    "module": nn.CrossEntropyLoss(reduction="sum"),
    "partial": partial(functional.cross_entropy, reduction="sum"),
    "function": lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="sum"),
    "of one's own": lambda outputs, targets: -outputs.log_softmax(-1).gather(1, targets[:, None]).sum(),
}


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_refused_by_its_name_and_with_what_to_give(name, views):
    with pytest.raises(SfumatoError, match=r"is a sum over its first axis \(reduction='sum'\).*reduction='mean'"):
        ClippedGradient(nn.Linear(4, 3), SUMS[name], views=views).self_check((4,))


@pytest.mark.parametrize("views", [1, 2])
def test_a_sum_that_is_divided_again_is_a_mean(views):
    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="sum") / len(outputs)

    ClippedGradient(nn.Linear(4, 3), loss, views=views).self_check((4,))
