import pytest
from torch import nn

from sfumato.models import create


def kinds(model, *types):
    return [module for module in model.modules() if isinstance(module, types)]


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def convolutions(*widths):
    return sum(9 * before * width + width for before, width in zip((3, *widths), widths, strict=False))


def test_vgg_is_that_of_table_1():
    model = create("vgg", classes=10, channels=3, size=32)
    assert [layer.out_channels for layer in kinds(model, nn.Conv2d)] == [64, 64, 128, 128, 256, 256, 256, 256]
    assert [layer.out_features for layer in kinds(model, nn.Linear)] == [512, 10]
    assert len(kinds(model, nn.MaxPool2d)) == 3
    expected = convolutions(64, 64, 128, 128, 256, 256, 256, 256) + 257 * 512 + 513 * 10
    assert parameters(model) == expected == 2_462_282


def test_vgg16_has_thirteen_convolutions_and_the_known_size():
    model = create("vgg16", classes=10, channels=3, size=32)
    assert len(kinds(model, nn.Conv2d)) == len(kinds(model, nn.BatchNorm2d)) == 13
    assert parameters(model) == 14_728_266


@pytest.mark.parametrize(("name", "norms"), [("vgg,norm=batch", 9), ("vgg16", 13)])
def test_augmented_and_mod_differ_by_one_normalisation_each(name, norms):
    counted = {
        option: kinds(create(name + option, classes=10, channels=3, size=32), nn.BatchNorm2d, nn.BatchNorm1d)
        for option in ("", ",norm_last=1", ",mod=1", ",mod=0,norm_last=0")
    }
    assert [len(found) for found in counted.values()] == [norms, norms + 1, norms - 1, norms]
    assert counted[",norm_last=1"][-1].num_features == 10
    assert counted[",mod=1"][-1].num_features == (256 if name.startswith("vgg,") else 512)
