"""The public projection of features: what it keeps."""

import pytest
import torch
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
