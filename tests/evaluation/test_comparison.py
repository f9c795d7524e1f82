"""Recall of several embeddings of the same images: figures, intervals over classes, and the gain."""

from __future__ import annotations

import numpy as np
import torch

from sfumato.evaluation import recall_at_far
from sfumato.evaluation.comparison import _replicates, compare_recall


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
