"""The public projection of features: what it keeps.

Models that give embeddings.
"""

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from sfumato import SfumatoError
from sfumato.evaluation import similarity
from sfumato.models import create_embedding, embedding_of_features, trunk_of
from sfumato.models.projection import projection, synthetic_images

SHAPE = (1, 12, 12)


@pytest.fixture(scope="module")
def trunk():
    model = create_embedding("scattering", channels=1, size=12, dimension=4)
    found = trunk_of(model.eval(), SHAPE)
    assert found is not None
    return found


def test_rows_are_orthogonal_and_keep_squares_in_the_mean(trunk):
    rows = projection(trunk, shape=SHAPE, dimension=40, principal=8).double()
    gram, width = rows @ rows.T, trunk.width
    lengths = torch.cat([torch.ones(8), torch.full((32,), (width - 8) / 32)]).double()
    torch.testing.assert_close(gram, torch.diag(lengths), rtol=1e-4, atol=1e-4)
    assert abs(float((rows**2).sum()) - width) < 1e-2


def test_it_is_the_same_for_everybody_and_draws_nothing_from_torchs_generator(trunk):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = projection(trunk, shape=SHAPE, dimension=20, principal=8)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(one, projection(trunk, shape=SHAPE, dimension=20, principal=8))


def test_from_as_many_numbers_as_there_are_features_on_similarities_are_exact(trunk):
    rows = projection(trunk, shape=SHAPE, dimension=trunk.width + 7, principal=8)
    features = torch.randn(6, trunk.width, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close((features @ rows.T) @ (features @ rows.T).T, features @ features.T, rtol=1e-4, atol=1e-3)


def test_an_embedding_begins_with_about_the_features_own_similarity():
    network = create_embedding("scattering", channels=1, size=32, dimension=512)
    model = embedding_of_features(network, shape=(1, 32, 32), dimension=512)
    images = torch.cat(list(synthetic_images(40, channels=1, size=(32, 32), seed=9)))
    with torch.no_grad():
        features, embeddings = network.features(images), model(images)
        exact, found = similarity(features[:20], features[20:]), similarity(embeddings[:20], embeddings[20:])
    assert float((exact - found).abs().max()) < 0.05


def test_a_model_without_features_of_its_own_is_refused():
    with pytest.raises(SfumatoError, match="not a linear layer on per-image features"):
        embedding_of_features(nn.Sequential(nn.Flatten(), nn.Linear(144, 8)), shape=SHAPE, dimension=8)
    network = create_embedding("lenet", channels=1, size=12, dimension=8)
    with pytest.raises(SfumatoError, match="has 9 outputs"):
        embedding_of_features(network, shape=SHAPE, dimension=9)


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
