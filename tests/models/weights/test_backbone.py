"""Backbones: networks without their classifier, built again from their architecture alone.

Whitening by the second moment of public features: the law of the map, and the backbone that applies it.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torchvision import models as torchvision_models

from sfumato import open_source, pretrain
from sfumato._checks import SfumatoError
from sfumato.models import Architecture, build_backbone, create, load_backbone, whitened
from sfumato.models.backbone import shrinkage, whitening

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
        ("nowhere", {}, "nor a finished run; write timm:nowhere or torchvision:nowhere for a network"),
        ("torchvision:resnet18", {"resolution": 0}, "resolution must be at least 1"),
        (
            "torchvision:resnet18",
            {"resolution": 400, "resize": 384},
            "resize must be at least 400, got 384; give at least the resolution, or a smaller resolution",
        ),
        ("torchvision:resnet18", {"weights": "none.safetensors"}, "none.safetensors does not exist"),
    ],
)
def test_refusals_say_what_to_do(name, options, words):
    with pytest.raises(SfumatoError, match=words):
        load_backbone(name, **options)


def test_a_network_that_gives_no_vectors_is_refused():
    with pytest.raises(SfumatoError, match="does not map images of 3 x 2 x 2 to one vector each"):
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


@given(images=st.integers(1, 200), width=st.integers(1, 12), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 2**32 - 1))
def test_public_features_get_the_identity_as_their_shrunken_second_moment(images, width, scale, seed):
    """A ((1 - rho) M + rho tr(M) / D I) A is the identity, for any number of images."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(width, width, generator=generator, dtype=torch.float64)
    features = scale * torch.randn(images, width, generator=generator, dtype=torch.float64) @ mixed
    moment = features.T @ features / images
    map_, half = (whitening(moment, images=images, power=power).double() for power in (1, 0.5))
    rho = shrinkage(images, width)
    shrunken = (1 - rho) * moment + rho * moment.trace() / width * torch.eye(width)
    torch.testing.assert_close(map_ @ shrunken @ map_, torch.eye(width, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(map_, map_.T)
    torch.testing.assert_close(half @ half / map_.norm(), map_ / map_.norm(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("value", "words"), [(0.0, "all zero"), (float("nan"), "not finite"), (float("inf"), "not finite")]
)
def test_features_without_a_second_moment_are_refused(value, words):
    with pytest.raises(SfumatoError, match=words):
        whitening(torch.full((3, 3), value), images=10)


@pytest.mark.parametrize("name", ["wrn-10-1", "timm:resnet10t"])
def test_the_map_is_a_part_of_the_backbone_and_of_its_weights(name):
    plain = build_backbone(Architecture(name=name, size=16))
    images = torch.randn(4, 3, 16, 16)
    features = plain(images)
    moment = features.T.double() @ features.double() / 4
    white = whitened(plain, moment, images=4, by="0" * 64)
    torch.testing.assert_close(white(images), features @ whitening(moment, images=4))
    again = build_backbone(Architecture(**white.architecture.to_dict()))
    again.load_state_dict(white.state_dict())
    torch.testing.assert_close(again(images), white(images))
    torch.testing.assert_close(plain(images), features)
    assert "whitened_by" not in plain.architecture.to_dict()
