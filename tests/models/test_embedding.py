"""Models that give embeddings."""

import pytest
import timm
import torch
from safetensors.torch import save_file

from sfumato._checks import SfumatoError
from sfumato.models import create_embedding

COUNTS = [("lenet", 1, 28, 453_632), ("mobilenet-v2", 3, 224, 2_387_840), ("resnet-50", 3, 224, 23_770_304)]


@pytest.mark.parametrize(("name", "channels", "size", "count"), COUNTS)
def test_the_networks_of_the_paper_have_its_numbers_of_parameters(name, channels, size, count):
    with torch.device("meta"):
        model = create_embedding(name, channels=channels, size=size)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert not list(model.buffers())


@pytest.mark.parametrize(("name", "groups", "norms"), [("mobilenet-v2", 2, 52), ("resnet-50", 32, 53)])
def test_every_norm_is_a_group_norm_of_the_paper(name, groups, norms):
    with torch.device("meta"):
        model = create_embedding(name, channels=3, size=32)
    found = [module for module in model.modules() if "Norm" in type(module).__name__]
    assert [module.num_groups for module in found if isinstance(module, torch.nn.GroupNorm)] == [groups] * norms
    assert len(found) == norms


@pytest.mark.parametrize(
    ("name", "channels", "size"), [("lenet", 3, (5, 30)), ("mobilenet-v2", 1, 32), ("timm:resnet10t", 3, 32)]
)
def test_images_in_embeddings_out_that_differ_and_are_not_normalised(name, channels, size):
    model = create_embedding(name, channels=channels, size=size, dimension=24)
    height, width = size if isinstance(size, tuple) else (size, size)
    first, second = model(torch.randn(2, channels, height, width))
    assert first.shape == (24,)
    assert not torch.equal(first, second)
    assert first.norm() > 0
    assert not torch.isclose(first.norm(), second.norm(), rtol=1e-6)


@pytest.mark.parametrize(("head", "kept"), [("new", False), ("pretrained", True)])
def test_public_weights_fit_and_the_last_layer_is_drawn_or_theirs(tmp_path, head, kept):
    path = tmp_path / "weights.safetensors"
    source = create_embedding("lenet", channels=1, size=8, dimension=6)
    save_file(source.state_dict(), path)
    model = create_embedding("lenet", channels=1, size=8, dimension=6, pretrained=str(path), head=head)
    loaded, stored = model.state_dict(), source.state_dict()
    assert torch.equal(loaded["conv2.weight"], stored["conv2.weight"])
    assert torch.equal(loaded["head.weight"], stored["head.weight"]) == kept
    assert loaded["head.weight"].abs().min() > 0


def test_the_weights_of_a_classifier_of_timm_fit_the_resnet_of_the_same_norm(tmp_path):
    path = tmp_path / "resnet50_gn.safetensors"
    stored = timm.create_model("resnet50_gn", num_classes=5).state_dict()
    save_file(stored, path)
    model = create_embedding("resnet-50", channels=3, size=32, pretrained=str(path))
    assert torch.equal(model.state_dict()["layer4.2.bn3.weight"], stored["layer4.2.bn3.weight"])
    assert model.state_dict()["fc.weight"].shape == (128, 2048)


@pytest.mark.parametrize("dimension", [0, 1.5])
def test_a_dimension_that_cannot_be_is_refused(dimension):
    with pytest.raises(SfumatoError, match="dimension must be"):
        create_embedding("lenet", channels=1, size=28, dimension=dimension)
