"""The similarity of two embeddings."""

import pytest
import torch

from sfumato._checks import SfumatoError
from sfumato.evaluation import similarity, verify
from sfumato.evaluation.similarity import STEPS, blocks, normalise, quantise


def test_it_is_one_less_a_quarter_of_the_squared_distance_of_unit_vectors():
    first, second = torch.randn(2, 50, 8, dtype=torch.float64)
    distance = (normalise(first) - normalise(second)).norm(dim=1)
    torch.testing.assert_close(similarity(first, second).double(), 1 - distance**2 / 4, atol=1e-7, rtol=0)


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
