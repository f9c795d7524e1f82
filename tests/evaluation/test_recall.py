"""Recall at a false accept rate, against all pairs in memory; and its comparison, with intervals over classes."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.evaluation import recall, recall_at_far, roc, similarity, verify
from sfumato.evaluation.recall import _replicates, compare_recall


def all_pairs(embeddings, labels, minibatch=None):
    """Similarity and truth of every pair i < j that is compared, the simple way."""
    first, second = np.triu_indices(len(labels), 1)
    if minibatch:
        kept = first // minibatch == second // minibatch
        first, second = first[kept], second[kept]
    labels = np.asarray(labels)
    return similarity(embeddings[first], embeddings[second]).numpy(), labels[first] == labels[second]


def brute(similarities, same, far):
    """The lowest threshold that keeps to the rate: a step of 2^-24 above a similarity that it must not accept."""
    impostors = np.sort(similarities[~same])[::-1]
    allowed = math.floor(Fraction(repr(far)) * len(impostors))
    threshold = float(impostors[allowed]) + 2**-24 if allowed < len(impostors) else 0.0
    return (
        threshold,
        (impostors.astype(float) >= threshold).mean(),
        (similarities[same].astype(float) >= threshold).mean(),
    )


@st.composite
def problems(draw):
    """Embeddings with and without ties, and labels of which two are equal and two are not."""
    count, dimension = draw(st.integers(4, 40)), draw(st.integers(1, 4))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        numbers = generator.integers(1, 4, (count, dimension)) * generator.choice([-1, 1], (count, dimension))
    else:
        numbers = generator.normal(size=(count, dimension)) + draw(st.sampled_from([0, 3]))
    labels = generator.integers(0, draw(st.integers(2, 5)), count)
    labels[:3] = (0, 0, 1)
    return torch.tensor(numbers, dtype=torch.float32), labels


@settings(max_examples=25, deadline=None)
@given(
    problems(),
    st.lists(st.sampled_from([1e-9, 1e-3, 0.01, 0.1, 0.29, 0.3, 0.5, 0.999, 1.0]), min_size=1, max_size=4),
    st.integers(1, 50),
)
def test_thresholds_rates_and_recall_are_those_of_all_pairs(problem, fars, side):
    embeddings, labels = problem
    found = recall_at_far(embeddings, labels, fars, side=side)
    similarities, same = all_pairs(embeddings, labels)
    assert (found.same, found.different) == (same.sum(), (~same).sum())
    assert [point.at_far for point in found.points] == sorted(fars)
    for point in found.points:
        threshold, far, share = brute(similarities, same, point.at_far)
        assert (point.threshold, point.far, point.recall) == (threshold, far, share)
        assert point.far <= point.at_far


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_where_all_embeddings_are_equal_nothing_can_be_told_apart(dtype):
    embeddings = torch.full((30, 3), 0.3, dtype=dtype)
    points = recall_at_far(embeddings, [0, 1, 2] * 10, [0.001, 0.5, 1.0]).points
    assert [(point.far, point.recall) for point in points] == [(0, 0), (0, 0), (1, 1)]
    assert [point.threshold > 1 for point in points] == [True, True, False]
    assert not verify(embeddings[0], embeddings[1], points[0].threshold)


def test_a_rate_is_the_decimal_that_was_written():
    assert recall._allowed(0.29, 100) == 29
    assert recall._allowed(1e-3, 1000) == 1
    assert recall._allowed(1e-3, 999) == 0


def test_a_curve_rises_at_rates_of_equal_distance_on_a_logarithmic_axis():
    embeddings, labels = torch.randn(50, 4), torch.arange(50) % 5
    points = roc(embeddings, labels, lowest=0.01, per_decade=2).points
    assert [point.at_far for point in points] == [0.01, 0.0316228, 0.1, 0.316228, 1.0]
    assert [point.recall for point in points] == sorted(point.recall for point in points)
    assert points[-1].recall == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": [0, 1, 2, 3]}, "no two of 4 images are of one class"),
        ({"labels": [0, 0, 0, 0]}, "no two of 4 images are of different classes"),
        ({"labels": [0, 0, 1]}, r"labels must be one for each of 4 embeddings, got shape \(3,\)"),
        ({"fars": [0.0]}, "far must be positive"),
        ({"minibatch": 0}, "minibatch must be at least 1"),
        ({"embeddings": torch.ones(4)}, r"embeddings must be real numbers \(N, D\), got float32 \(4,\)"),
        ({"embeddings": torch.tensor([[1.0], [0.0], [1.0], [1.0]])}, "1 of 4 .* embedding 1 are all zero"),
        ({"embeddings": torch.tensor([[1.0], [1.0], [math.nan], [math.inf]])}, "2 of 4 .* embedding 2 are not finite"),
    ],
)
def test_what_cannot_be_measured_is_refused(change, words):
    given = {"embeddings": torch.ones(4, 2), "labels": [0, 0, 1, 1], **change}
    with pytest.raises(SfumatoError, match=words):
        recall_at_far(**given)


def images(spread: float, *, classes: int = 20, each: int = 6, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((classes, 8))
    labels = np.repeat(np.arange(classes), each)
    return torch.from_numpy(centres[labels] + spread * generator.standard_normal((len(labels), 8))), labels


def test_figures_are_those_of_recall_and_lie_in_their_intervals():
    near, labels = images(0.3)
    far_off, _ = images(0.9)
    found = compare_recall({"beginning": far_off, "result": near}, labels, far=0.01)
    for name, vectors in (("beginning", far_off), ("result", near)):
        recall, low, high = found[name]
        assert recall == recall_at_far(vectors, labels, [0.01]).points[0].recall
        assert low < recall < high
    gain, low, high = found["gain"]
    assert gain == found["result"][0] - found["beginning"][0]
    assert 0 < low < gain < high
    assert found["images"] == len(labels)


def test_where_each_class_is_drawn_once_a_replicate_is_the_recall():
    vectors, labels = images(0.6)
    once = np.ones((1, 20), np.int64)
    recall = recall_at_far(vectors, labels, [0.02]).points[0].recall
    np.testing.assert_allclose(_replicates(vectors, labels, 0.02, once), [recall])


def test_what_has_no_direction_has_no_recall():
    vectors, labels = images(0.5)
    flat = torch.zeros_like(vectors)
    found = compare_recall({"beginning": flat, "result": vectors}, labels, far=0.01)
    assert found["beginning"] is None
    assert found["gain"] is None
    assert found["result"][0] > 0
