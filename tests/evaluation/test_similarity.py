"""Similarities, verification of pairs, and nearest neighbours of embeddings."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.evaluation import nearest, recall_at_k, similarity, verify
from sfumato.evaluation.similarity import STEPS, blocks, embed, normalise, quantise


def test_equal_vectors_have_exactly_one_opposite_ones_zero_and_right_angles_a_half():
    vectors = torch.randn(200, 7)
    assert (similarity(vectors, 3 * vectors) == 1).all()
    assert (similarity(vectors, -vectors) == 0).all()
    assert (similarity(vectors, 1e-30 * vectors) == 1).all()
    assert similarity(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 0.1])) == 0.5


def test_a_pair_has_the_same_similarity_in_any_block_and_alone():
    embeddings = torch.randn(70, 128)
    vectors = normalise(embeddings)
    whole = quantise(vectors @ vectors.T)
    assert torch.equal(quantise(vectors[13:31] @ vectors[40:].T), whole[13:31, 40:])
    alone = similarity(embeddings[:35], embeddings[35:]).double() * STEPS
    assert torch.equal(alone, whole[torch.arange(35), torch.arange(35, 70)].double())


def test_two_images_are_the_same_from_the_threshold_on():
    first, second = (
        torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]),
        torch.tensor([[0.0, 2.0], [1.0, 0.1], [-1.0, 0.0]]),
    )
    assert verify(first, second, 0.5).tolist() == [True, True, False]
    assert verify(first, second, 0.500001).tolist() == [False, True, False]
    with pytest.raises(SfumatoError, match="threshold must be a number"):
        verify(first, second, None)


@pytest.mark.parametrize(("images", "within", "side"), [(1, None, 3), (10, 4, 3), (11, 3, 8)])
def test_each_pair_lies_in_one_block(images, within, side):
    seen = torch.zeros(images, images, dtype=torch.int64)
    for rows, columns in blocks(images, within=within, side=side):
        seen[rows, columns] += 1
    group = torch.arange(images) // (within or images)
    wanted = (group[:, None] == group) & torch.ones(images, images, dtype=torch.bool).triu(1)
    assert torch.equal(seen.triu(1), wanted.long())


def sorted_all(queries, gallery, *, themselves):
    found = similarity(queries[:, None], gallery[None])
    if themselves:
        found.fill_diagonal_(-1)
    return found.sort(dim=1, descending=True, stable=True)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 40), st.integers(1, 9), st.booleans(), st.integers(1, 50), st.data())
def test_the_nearest_are_the_first_of_all_sorted(seed, count, asked, ties, side, data):
    generator = torch.Generator().manual_seed(seed)

    def draw(rows):
        if ties:
            return torch.randint(1, 3, (rows, 2), generator=generator).float()
        return torch.randn(rows, 3, generator=generator)

    gallery, queries = draw(count), draw(asked)
    for others, whole in (
        (queries, sorted_all(queries, gallery, themselves=False)),
        (None, sorted_all(gallery, gallery, themselves=True)),
    ):
        k = data.draw(st.integers(1, count - (others is None)))
        places, similarities = nearest(gallery, others, k=k, side=side)
        assert torch.equal(places, whole.indices[:, :k])
        assert torch.equal(similarities, whole.values[:, :k])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 3}, "k must be at most 2, got 3; give at most the number of images to choose from"),
        ({"k": 4, "queries": torch.ones(1, 2)}, "k must be at most 3, got 4"),
        ({"k": 0}, "k must be at least 1"),
        ({"k": 1, "queries": torch.zeros(1, 2)}, "have no direction"),
    ],
)
def test_what_cannot_be_looked_up_is_refused(arguments, words):
    with pytest.raises(SfumatoError, match=words):
        nearest(torch.ones(3, 2), **arguments)


def test_recall_at_k_leaves_out_images_that_are_alone_in_their_class():
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0], [-1.0, 0.0]])
    # From the nearest on, 1 has 2, 0, 3, 4, and 2 has 1, 0, 3, 4; 4 has 3, 2, 1, 0.
    assert recall_at_k(embeddings, ["a", "b", "b", "c", "d"], (1, 2)) == {1: 1.0, 2: 1.0}
    assert recall_at_k(embeddings, [0, 1, 2, 3, 2], (1, 2, 4)) == {1: 0.0, 2: 0.5, 4: 1.0}
    with pytest.raises(SfumatoError, match="no two of 5 images are of one class"):
        recall_at_k(embeddings, range(5), (1,))
    with pytest.raises(SfumatoError, match="labels must be one for each"):
        recall_at_k(embeddings, [0, 0], (1,))


def test_embeddings_are_made_in_evaluation_mode_with_length_one_and_the_model_stays_as_it_is():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Dropout(0.5))
    model[0].eval()
    images = torch.randn(7, 3, 2, 2)
    made = embed(model, images.split(3))
    assert (made.shape, made.dtype) == ((7, 5), torch.float32)
    torch.testing.assert_close(made.norm(dim=1), torch.ones(7))
    torch.testing.assert_close(similarity(made, model[1](images.flatten(1)).detach()), torch.ones(7))
    assert [module.training for module in model] == [False, True, True]
    assert not made.requires_grad
