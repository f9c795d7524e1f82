"""Recall of several embeddings of the same images: figures, intervals over classes, and the gain."""

from __future__ import annotations

import numpy as np
import torch

from sfumato.evaluation import recall_at_far
from sfumato.evaluation.compared import _replicates, compared


def images(spread: float, *, classes: int = 20, each: int = 6, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((classes, 8))
    labels = np.repeat(np.arange(classes), each)
    return torch.from_numpy(centres[labels] + spread * generator.standard_normal((len(labels), 8))), labels


def test_figures_are_those_of_recall_and_lie_in_their_intervals():
    near, labels = images(0.3)
    far_off, _ = images(0.9)
    found = compared({"beginning": far_off, "result": near}, labels, far=0.01)
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


def test_a_class_that_is_drawn_twice_counts_as_two_classes():
    vectors, labels = images(0.6, classes=5)
    weights = np.array([[2, 1, 0, 1, 1]])
    copied = np.concatenate([labels, np.full(6, 7)])
    kept = np.isin(copied, (0, 1, 3, 4, 7))
    twice = torch.cat([vectors, vectors[labels == 0]])
    # The copy is no different class of its original: pairs between the two are left out of the reference by hand.
    own = recall_at_far(twice[kept], copied[kept], [0.05]).points[0]
    found = _replicates(vectors, labels, 0.05, weights)[0]
    assert abs(found - own.recall) < 0.35  # the copies' pairs, all of similarity 1, raise its threshold alone
    assert found >= own.recall


def test_what_has_no_direction_has_no_recall():
    vectors, labels = images(0.5)
    flat = torch.zeros_like(vectors)
    found = compared({"beginning": flat, "result": vectors}, labels, far=0.01)
    assert found["beginning"] is None
    assert found["gain"] is None
    assert found["result"][0] > 0
