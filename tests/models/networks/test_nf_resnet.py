"""Normalizer-free networks as De et al. 2022 train them."""

import pytest
import torch
from torch import nn

from sfumato.models import create, registry
from sfumato.models.networks import zoo
from sfumato.models.registry import parse

SMALL = "timm:dm_nfnet_f0,depths=(1,1,1,1),channels=(32,32,32,32),stem_chs=32,group_size=8"


@pytest.mark.parametrize("name", ["nf-resnet-50", "timm:dm_nfnet_f0", "timm:nfnet_f0"])
def test_no_regulariser_and_no_norm_layer(name):
    with torch.device("meta"):
        model = registry.build_untrained(*parse(name), classes=10, channels=3, size=(64, 64))
    kinds = {type(module).__name__ for module in model.modules()}
    assert not [kind for kind in kinds if "Norm" in kind and kind not in ("NormFreeNet", "NormFreeBlock")]
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    assert not any(rates)
    assert not [kind for kind in kinds if "DropPath" in kind]


@pytest.mark.parametrize(("depth", "blocks"), [(50, 16), (200, 66)])
def test_depth_and_gains(depth, blocks):
    with torch.device("meta"):
        model = zoo.create_nf_resnet(depth, classes=10, channels=3)
    gains = [name for name, _ in model.named_parameters() if name.endswith("skipinit_gain")]
    assert len(gains) == blocks


@pytest.mark.parametrize(("name", "start"), [(SMALL, 0.0), (f"{SMALL},skipinit=0.5", 0.5)])
def test_skipinit_is_settable(name, start):
    model = create(name, classes=4, channels=3, size=32)
    gains = [value.item() for path, value in model.named_parameters() if path.endswith("skipinit_gain")]
    assert gains
    assert set(gains) == {start}


def test_weights_start_from_a_gaussian_of_variance_one_over_fan_in():
    stem = create("nf-resnet-50", classes=4, channels=3, size=32).stem.conv.weight
    assert stem.std().item() == pytest.approx((3 * 49) ** -0.5, rel=0.05)
