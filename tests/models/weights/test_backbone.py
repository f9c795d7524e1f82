"""Backbones: networks without their classifier, built again from their architecture alone."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torchvision import models as torchvision_models

from sfumato import open_source, pretrain
from sfumato._checks import SfumatoError
from sfumato.models import Architecture, build_backbone, create, load_backbone

NETWORKS = [
    ("torchvision:squeezenet1_0", 64, 512),
    ("timm:test_vit", 64, 64),
    ("timm:resnet10t", 32, 512),
    ("wrn-10-1", 16, 64),
]


@pytest.mark.parametrize(("name", "size", "width"), NETWORKS)
def test_it_gives_one_vector_for_each_image_and_stays_as_it_is(name, size, width):
    backbone = build_backbone(Architecture(name=name, size=size))
    again = build_backbone(backbone.architecture)
    again.load_state_dict(backbone.state_dict())
    images = torch.randn(3, 3, size, size)
    features = backbone(images)
    assert features.shape == (3, width)
    assert backbone.width == width
    assert torch.equal(again.train()(images), features), "training mode is refused"
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    torch.testing.assert_close(backbone(images[1:2]), features[1:2], atol=1e-4, rtol=1e-4)


def test_features_are_what_the_classifier_is_given(tmp_path):
    network = torchvision_models.resnet18().eval()
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    backbone, expects = load_backbone("torchvision:resnet18", weights=tmp_path / "w.safetensors", resolution=64)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(network.fc(backbone(images)), network(images))
    assert (expects.resolution, expects.enlarged, expects.interpolation) == (64, 73, "bilinear")
    file = tmp_path / "w.safetensors"
    _, other = load_backbone("torchvision:resnet18", weights=file, resolution=64, resize=96)
    assert replace(expects, enlarged=96) == other
    assert expects.mean == (0.485, 0.456, 0.406)


def test_a_weights_file_needs_no_classifier_and_nothing_else_may_lack(tmp_path):
    weights = torchvision_models.squeezenet1_0().state_dict()
    bare = {key: value for key, value in weights.items() if not key.startswith("classifier")}
    save_file(bare, tmp_path / "bare.safetensors")
    load_backbone("torchvision:squeezenet1_0", weights=tmp_path / "bare.safetensors", resolution=64)
    first = next(iter(bare))
    save_file({key: value for key, value in bare.items() if key != first}, tmp_path / "less.safetensors")
    with pytest.raises(SfumatoError, match=f"{first} is missing from the file"):
        load_backbone("torchvision:squeezenet1_0", weights=tmp_path / "less.safetensors")


def test_timm_says_what_its_networks_expect(tmp_path):
    import timm

    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "w.safetensors")
    _, expects = load_backbone("timm:test_vit", weights=tmp_path / "w.safetensors")
    assert expects.resolution == 160
    assert expects.enlarged > 160
    assert expects.interpolation == "bicubic"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("torchvision:resnet81", {}, "did you mean resnet18"),
        ("timm:resnet10tt", {}, "timm .* has no model of that name"),
        (
            "timm:resnet10t,num_classes=2,checkpoint_path=w.pth",
            {},
            "cannot be given checkpoint_path=w.pth, num_classes=2",
        ),
        ("nowhere", {}, "nor a finished run; write timm:nowhere for the network, or correct the path"),
        ("runs/a", {"weights": "w.safetensors"}, "nor a finished run; correct the path of the run"),
        ("torchvision:resnet18", {"resolution": 0}, "resolution must be at least 1"),
        (
            "torchvision:resnet18",
            {"resolution": 400, "resize": 384},
            "resize is 384, and the crop of 400 pixels is larger than that; give at least 400, or a smaller resolution",
        ),
        ("torchvision:resnet18", {"weights": "none.safetensors"}, "weights 'none.safetensors' are no file"),
    ],
)
def test_refusals_say_what_to_do(name, options, words):
    with pytest.raises(SfumatoError, match=words):
        load_backbone(name, **options)


def test_a_network_that_gives_no_vectors_is_refused():
    with pytest.raises(SfumatoError, match="fails on images of 3 x 2 x 2"):
        build_backbone(Architecture(name="torchvision:squeezenet1_0", size=2))


def test_a_run_on_a_model_of_timm_is_a_backbone_whatever_its_classes(tmp_path):
    place = tmp_path / "run"
    source = open_source("digits", owner_key=bytes(32), size=32, channels=3)
    pretrain("timm:test_vit", source, directory=place, steps=1, batch_size=64, learning_rate=0.1)
    network = create("timm:test_vit", classes=10, channels=3, size=32, pretrained=str(place), head="pretrained")
    images = torch.randn(2, 3, 32, 32)
    for resolution in (None, 48):
        backbone, expects = load_backbone(str(place), resolution=resolution)
        assert expects.resolution == (resolution or 32)
        side = expects.resolution
        assert backbone(torch.zeros(1, 3, side, side)).shape == (1, 64)
    backbone, _ = load_backbone(str(place))
    with torch.no_grad():
        torch.testing.assert_close(network.eval().head(backbone(images)), network(images))
