"""Other normalisation in the place of a model's own: what is swapped, what is kept, and that the engine stays exact."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, SfumatoError
from sfumato.gradients.checks.oracle import clipped_sum
from sfumato.models import KINDS, PUBLIC, create, replace_norms


def model(spelling: str = "lenet5,norm=batch", size: int = 28) -> nn.Module:
    torch.manual_seed(0)
    made = create(spelling, classes=3, channels=1, size=size)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return made


def examples(count: int = 6, size: int = 28) -> torch.Tensor:
    return torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(1))


NARROW = "timm:resnet10t,channels=(16,16,32,32),stem_width=8"
MODELS = [("lenet5,norm=batch,norm_last=1", 16), (NARROW, 48), ("wrn-10-1", 16)]
ON_ALL = ("public-batch", "public-batch-own", "group")
CASES = [(kind, *model) for kind in KINDS for model in (MODELS if kind in ON_ALL else MODELS[:1])]


@pytest.mark.parametrize(("kind", "spelling", "size"), CASES)
def test_every_kind_is_exact_and_keeps_examples_apart(kind, spelling, size):
    made = replace_norms(model(spelling, size), kind, examples(size=size) if kind in PUBLIC else None)
    x, labels = torch.randn(3, 1, size, size), torch.tensor([0, 2, 1])
    found = ClippedGradient(made, functional.cross_entropy, max_norm=0.5)(x, labels).gradients
    slow, *_ = clipped_sum(made, functional.cross_entropy, x, labels, max_norm=0.5)
    for name, value in slow.items():
        torch.testing.assert_close(found[name], value.to(found[name].dtype), atol=3e-5, rtol=1e-3)
    other = x.clone()
    other[1:] = torch.randn(2, 1, size, size)
    made.train()
    torch.testing.assert_close(made(x)[:1], made(other)[:1], atol=1e-5, rtol=1e-4)


def test_activations_inside_timms_layers_stay():
    made = replace_norms(create("timm:efficientnet_b0", classes=3, channels=3, size=32), "none")
    assert not [layer for layer in made.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    assert [layer for layer in made.modules() if isinstance(layer, nn.SiLU)]


@pytest.mark.parametrize(
    ("spelling", "kind", "given", "words"),
    [
        ("lenet5,norm=batch", "batch", False, "normalisation must be one of public-batch"),
        ("lenet5,norm=batch", "public-batch", False, "public-batch takes public examples; give public_data"),
        ("lenet5,norm=batch", "group", True, "group takes no public examples; leave out public_data"),
        ("lenet5", "group", False, "has no normalisation layer.*such as lenet5,norm=batch"),
        ("timm:resnet10t", "public-batch-joint", True, "public-batch-joint costs too much"),
    ],
)
def test_what_cannot_be_is_refused(spelling, kind, given, words):
    with pytest.raises(SfumatoError, match=words):
        replace_norms(model(spelling), kind, examples() if given else None)


def test_a_jacobian_that_is_too_large_is_refused_before_a_layer_is_swapped():
    large = create("lenet-300-100,norm=batch", classes=3, channels=1, size=28)
    with pytest.raises(SfumatoError, match=r"too much for a model of 2\d\d,\d{3} parameters and 800 moments; give"):
        replace_norms(large, "public-batch-through", examples())
    assert isinstance(large.norm1, nn.BatchNorm1d)
