"""Convolutional networks of the papers: their sizes, their layers, and what they compute."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato import SfumatoError
from sfumato.models import create
from sfumato.models.networks.resnets import WideResNet
from sfumato.models.norms import Norms


def names_of(model, *types):
    return [name for name, module in model.named_modules() if isinstance(module, types)]


def test_lenet5_without_options_has_neither_other_names_nor_other_beginnings():
    torch.manual_seed(3)
    model = create("lenet5", classes=10, channels=1, size=28)
    torch.manual_seed(3)
    layers = [nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5), nn.Linear(400, 120), nn.Linear(120, 84)]
    assert list(model.state_dict()) == [
        f"{layer}.{kind}" for layer in ("conv1", "conv2", "hidden1", "hidden2", "head") for kind in ("weight", "bias")
    ]
    own = [model.conv1, model.conv2, model.hidden1, model.hidden2]
    assert all(torch.equal(one.weight, other.weight) for one, other in zip(own, layers, strict=True))
    assert not model.head.weight.any()
    images = torch.randn(2, 1, 28, 28)
    features = F.avg_pool2d(layers[0](images).tanh(), 2)
    features = F.avg_pool2d(layers[1](features).tanh(), 2).flatten(1)
    with torch.no_grad():
        model.head.weight.normal_()
    expected = model.head(layers[3](layers[2](features).tanh()).tanh())
    assert torch.equal(model(images), expected)


def test_norms_stand_after_all_layers_but_the_last_and_in_the_augmented_form_there_too():
    for name, norms in (("lenet-300-100", 2), ("lenet5", 4)):
        model = create(f"{name},norm=layer", classes=10, channels=1, size=28)
        augmented = create(f"{name},norm=layer,norm_last=1", classes=10, channels=1, size=28)
        assert len(names_of(model, nn.LayerNorm, nn.GroupNorm)) == norms
        assert names_of(augmented, nn.LayerNorm, nn.GroupNorm)[-1] == "norm_of_logits"
        assert augmented.head.weight.any()
        logits = augmented(torch.randn(3, 1, 28, 28))
        torch.testing.assert_close(logits.mean(1), torch.zeros(3), atol=1e-5, rtol=0)


def test_it_has_the_size_of_the_one_of_abadi_et_al():
    model = create("tf-tutorial", classes=10, channels=3, size=32)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters() if name.endswith("weight")}
    assert shapes == {
        "conv1.weight": (64, 3, 5, 5),
        "conv2.weight": (64, 64, 5, 5),
        "hidden1.weight": (384, 64 * 6 * 6),
        "hidden2.weight": (384, 384),
        "head.weight": (10, 384),
    }


def test_it_sees_the_middle_24_x_24_alone():
    model, images = create("tf-tutorial,norm=layer", classes=10, channels=3, size=32), torch.randn(2, 3, 32, 32)
    logits, frame = model(images), torch.full((32, 32), True)
    frame[4:28, 4:28] = False
    images[:, :, frame] = 100
    assert torch.equal(model(images), logits)
    images[0, 0, 4, 27] += 1
    assert not torch.equal(model(images)[0], logits[0])


@pytest.mark.parametrize("size", [24, 20, (30, 16)])
def test_smaller_images_stay_whole(size):
    height, width = size if isinstance(size, tuple) else (size, size)
    model = create("tf-tutorial", classes=10, channels=1, size=size)
    assert model(torch.randn(2, 1, height, width)).shape == (2, 10)


def normalised(model):
    return [name for name, module in model.named_modules() if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d))]


def test_augmented_and_mod_of_resnet_18_differ_by_one_normalisation_each():
    plain, augmented, mod = (
        normalised(create(f"resnet-18{option}", classes=10, channels=3, size=8))
        for option in ("", ",norm_last=1", ",mod=1")
    )
    assert set(augmented) - set(plain) == {"norm_of_logits"}
    assert set(plain) - set(mod) == {"blocks.7.norm2"}


def test_a_block_is_what_it_says():
    torch.manual_seed(0)
    model, x = create("resnet-18,norm=layer", classes=10, channels=3, size=8), torch.randn(2, 64, 8, 8)
    block = model.blocks[2]
    inner = F.relu(F.group_norm(F.conv2d(x, block.conv1.weight, stride=2, padding=1), 1))
    inner = F.group_norm(F.conv2d(inner, block.conv2.weight, padding=1), 1)
    shortcut = F.group_norm(F.conv2d(x, block.projection[0].weight, stride=2), 1)
    torch.testing.assert_close(block(x), F.relu(inner + shortcut))


def kinds(model, *types):
    return [module for module in model.modules() if isinstance(module, types)]


@pytest.mark.parametrize("switch", [{"norm_last": "0"}, {"mod": "1"}, {"norm_last": 2}, {"norm_last": 1, "mod": 1}])
def test_a_switch_of_normalisation_is_a_number_and_one_alone(switch):
    with pytest.raises(SfumatoError, match="norm_last adds the last normalisation and mod removes it"):
        Norms("layer", **{name.removeprefix("norm_"): value for name, value in switch.items()})


@pytest.mark.parametrize("option", [{"standardise": "False"}, {"standardise": 0}, {"groups": "4"}])
def test_options_of_a_wide_resnet_are_no_texts(option):
    """As a text, False would switch standardisation on."""
    with pytest.raises(SfumatoError, match=f"{next(iter(option))} must be"):
        WideResNet(depth=10, width=1, classes=2, channels=1, **option)


@pytest.mark.parametrize(("name", "norms"), [("vgg,norm=batch", 9), ("vgg16", 13)])
def test_augmented_and_mod_differ_by_one_normalisation_each(name, norms):
    counted = {
        option: kinds(create(name + option, classes=10, channels=3, size=32), nn.BatchNorm2d, nn.BatchNorm1d)
        for option in ("", ",norm_last=1", ",mod=1", ",mod=0,norm_last=0")
    }
    assert [len(found) for found in counted.values()] == [norms, norms + 1, norms - 1, norms]
    assert counted[",norm_last=1"][-1].num_features == 10
    assert counted[",mod=1"][-1].num_features == (256 if name.startswith("vgg,") else 512)
