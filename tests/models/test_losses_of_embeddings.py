"""Losses of pairs and triplets against the slow truth."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.models.losses import MARGIN, PAIRED, SHARPNESS, binary, triplet, triplet_hard


def synthetic(labels: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    embeddings = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return embeddings.requires_grad_(), torch.tensor(labels)


def distance(embeddings: torch.Tensor, one: int, other: int) -> float:
    unit = embeddings.detach() / embeddings.detach().norm(dim=1, keepdim=True)
    return float((unit[one] - unit[other]).square().sum())


BATCHES = st.lists(st.integers(0, 3), min_size=1, max_size=9)


@settings(max_examples=20)
@given(labels=BATCHES, seed=st.integers(0, 99))
def test_binary_is_the_mean_over_pairs(labels, seed):
    embeddings, targets = synthetic(labels, seed)
    losses = []
    for one, other in itertools.combinations(range(len(labels)), 2):
        logit = SHARPNESS * (0.5 - distance(embeddings, one, other) / 2)
        losses.append(math.log1p(math.exp(-logit if labels[one] == labels[other] else logit)))
    expected = sum(losses) / len(losses) if losses else 0.0
    assert binary(embeddings, targets).item() == pytest.approx(expected, abs=1e-9)


@settings(max_examples=20)
@given(labels=BATCHES, seed=st.integers(0, 99))
def test_triplets_are_all_those_of_a_batch_or_the_hardest_of_each_record(labels, seed):
    embeddings, targets = synthetic(labels, seed)
    short, hardest = [], []
    for anchor in range(len(labels)):
        same = [
            distance(embeddings, anchor, other)
            for other in range(len(labels))
            if other != anchor and labels[other] == labels[anchor]
        ]
        others = [
            distance(embeddings, anchor, other) for other in range(len(labels)) if labels[other] != labels[anchor]
        ]
        short += [near - far + MARGIN for near in same for far in others if near - far + MARGIN > 0]
        if same and others:
            hardest.append(max(0.0, max(same) - min(others) + MARGIN))
    assert triplet(embeddings, targets).item() == pytest.approx(sum(short) / max(1, len(short)), abs=1e-9)
    assert triplet_hard(embeddings, targets).item() == pytest.approx(sum(hardest) / max(1, len(hardest)), abs=1e-9)


@pytest.mark.parametrize("name", PAIRED)
@pytest.mark.parametrize("labels", [[0], [0, 0], [0, 1]])
def test_gradients_are_finite_in_batches_with_nothing_to_compare(name, labels):
    embeddings, targets = synthetic(labels, 0)
    PAIRED[name](embeddings, targets).backward()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()
