"""The loss of several labels against its formula, written out; and no loss that takes another one's labels.

Losses of pairs and triplets against the slow truth.

Moved logits are Bayes' rule for the other shares, exactly; shares are those of all classes, and of no other.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sfumato import SfumatoError
from sfumato.models.description import NAMES_OF_LOSSES
from sfumato.models.losses import (
    LOSSES,
    MARGIN,
    PAIRED,
    SHARPNESS,
    binary,
    is_exclusive,
    logit_offsets,
    logits_of,
    ordered_shares,
    parse_shares,
    probabilities,
    triplet,
    triplet_hard,
)

rows = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.tuples(st.floats(-30, 30), st.integers(0, 1)), min_size=width, max_size=width),
        min_size=1,
        max_size=4,
    )
)


@given(rows)
def test_every_label_counts_once_and_by_itself(rows):
    logits = torch.tensor([[score for score, _ in row] for row in rows], dtype=torch.float64)
    labels = torch.tensor([[true for _, true in row] for row in rows])
    expected = sum(math.log1p(math.exp(-score if true else score)) for row in rows for score, true in row) / len(rows)
    assert LOSSES["multilabel"](logits, labels).item() == pytest.approx(expected, abs=1e-9)
    read = probabilities(logits, "multilabel")
    assert torch.allclose(probabilities(logits_of(read, "multilabel"), "multilabel"), read)
    assert [is_exclusive(name) for name in LOSSES] == [True, True, False, True]


@pytest.mark.parametrize("width", [2, 3])
def test_no_loss_takes_labels_of_another_form(width):
    """Three records and three labels would broadcast."""
    logits, places, matrix = torch.randn(3, width), torch.tensor([0, 1, 1]), torch.ones(3, width, dtype=torch.int64)
    with pytest.raises(ValueError, match="size"):
        LOSSES["multilabel"](logits, places)
    for name in ("softmax", "sigmoid"):
        with pytest.raises((ValueError, RuntimeError)):
            LOSSES[name](logits, matrix)


def test_the_names_that_model_files_may_say_are_those_of_the_losses():
    assert set(NAMES_OF_LOSSES) == set(LOSSES)


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), further=st.integers(0, 3), seed=st.integers(0, 99))
def test_next_words_are_averaged_over_a_text_and_padding_does_not_count(lengths, further, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(lengths), 4, 6, generator=generator, dtype=torch.float64)
    words = torch.randint(1, 6, (len(lengths), 4), generator=generator)
    words = words.masked_fill(torch.arange(4) >= torch.tensor(lengths).unsqueeze(1), 0)
    each = [
        torch.nn.functional.cross_entropy(logits[row, :count], words[row, :count]).item() if count else 0.0
        for row, count in enumerate(lengths)
    ]
    found = LOSSES["next-word"](logits, words).item()
    assert found == pytest.approx(sum(each) / len(each), abs=1e-12)
    padded = torch.nn.functional.pad(logits, (0, 0, 0, further)), torch.nn.functional.pad(words, (0, further))
    assert LOSSES["next-word"](*padded).item() == pytest.approx(found, abs=1e-12)
    read = probabilities(logits, "next-word")
    assert torch.allclose(read.sum(-1), torch.ones_like(read.sum(-1)))
    assert torch.allclose(probabilities(logits_of(read, "next-word"), "next-word"), read)


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


MEANS = (-1.0, 0.3, 2.0)
POINTS = np.linspace(-4, 5, 41)


def posterior(shares):
    """P(class | x) of normal classes that have these shares, by Bayes' rule, (points, classes)."""
    joint = np.stack([share * norm.pdf(POINTS, mean) for share, mean in zip(shares, MEANS, strict=False)], 1)
    return joint / joint.sum(1, keepdims=True)


def shares_of(count):
    return st.lists(st.floats(0.01, 1), min_size=count, max_size=count).map(lambda one: tuple(np.array(one) / sum(one)))


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@given(data=st.data(), count=st.sampled_from([2, 3]))
def test_moved_logits_are_the_posterior_of_the_other_shares(loss, data, count):
    trained, used = data.draw(shares_of(count)), data.draw(shares_of(count))
    if loss == "sigmoid" and count > 2:
        return  # of three classes what is not of one is another mixture in another place
    logits = logits_of(torch.tensor(posterior(trained)), loss)
    moved = probabilities(logits + logits.new_tensor(logit_offsets(trained, used, loss=loss)), loss)
    assert moved.numpy() == pytest.approx(posterior(used), abs=1e-9)


@given(data=st.data())
def test_the_formula_is_that_of_saerens(data):
    trained, used = data.draw(shares_of(4)), data.draw(shares_of(4))
    outputs = torch.tensor(data.draw(st.lists(st.floats(-9, 9), min_size=4, max_size=4)), dtype=torch.float64)
    before = outputs.softmax(0).numpy()
    ratio = before * np.array(used) / np.array(trained)  # equation 2.4 of Saerens et al. 2002
    moved = (outputs + outputs.new_tensor(logit_offsets(trained, used, loss="softmax"))).softmax(0)
    assert moved.numpy() == pytest.approx(ratio / ratio.sum(), abs=1e-9)
    assert logit_offsets(trained, trained, loss="softmax") == (0, 0, 0, 0)
    there, back = logit_offsets(trained, used, loss="softmax"), logit_offsets(used, trained, loss="softmax")
    assert there == pytest.approx([-one for one in back])


def test_shares_are_those_of_exactly_these_classes():
    shares = parse_shares(["b=0.25", "a=0.75"], "prevalence")
    assert ordered_shares(shares, ("a", "b"), "prevalence") == (0.75, 0.25)
    for given_as, classes, words in (
        (["a=0.5", "b=0.5"], ("a", "bb"), "prevalence names must be one of a, bb; got 'b'; did you mean bb"),
        (["a=0.5", "b=0.5"], ("a", "b", "c"), "prevalence has no share for the class 'c'"),
        (["a=0.5", "b=0.6"], ("a", "b"), "the shares of prevalence sum to 1.1, not to 1"),
        (["a"], ("a", "b"), "prevalence 'a' is not NAME=SHARE"),
    ):
        with pytest.raises(SfumatoError, match=words):
            ordered_shares(parse_shares(given_as, "prevalence"), classes, "prevalence")
