"""Prototypes and cosines against numpy."""

from __future__ import annotations

import numpy as np
import torch

from sfumato.embedding.clients.prototypes import cosine_logits, prototypes

GENERATOR = np.random.default_rng(3)


def test_a_prototype_is_the_mean_direction_of_its_class():
    embeddings, targets = GENERATOR.normal(size=(20, 5)) * 10.0 ** GENERATOR.normal(size=(20, 1)), np.arange(20) % 3
    found = prototypes(torch.from_numpy(embeddings), torch.from_numpy(targets), 4).numpy()
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    for one in range(3):
        mean = unit[targets == one].mean(0)
        np.testing.assert_allclose(found[one], mean / np.linalg.norm(mean), rtol=1e-12)
    assert (found[3] == 0).all(), "a class without records has no direction"


def test_logits_are_cosines_over_the_temperature():
    embeddings, head = GENERATOR.normal(size=(6, 5)), 3 * GENERATOR.normal(size=(4, 5))
    found = cosine_logits(torch.from_numpy(embeddings), torch.from_numpy(head), 0.125).numpy()
    lengths = np.outer(np.linalg.norm(embeddings, axis=1), np.linalg.norm(head, axis=1))
    np.testing.assert_allclose(found, 8 * (embeddings @ head.T) / lengths, rtol=1e-12)
