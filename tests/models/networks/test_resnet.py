import torch
import torch.nn.functional as F
from torch import nn

from sfumato.models import create


def normalised(model):
    return [name for name, module in model.named_modules() if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d))]


def test_resnet_18_has_the_known_size_and_twenty_normalisations():
    model = create("resnet-18", classes=10, channels=3, size=32)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
    assert len([module for module in model.modules() if isinstance(module, nn.Conv2d)]) == len(normalised(model)) == 20


def test_augmented_and_mod_differ_by_one_normalisation_each():
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
