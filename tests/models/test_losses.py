"""The loss of several labels against its formula, written out; and no loss that takes another one's labels.

Losses of pairs and triplets against the slow truth.

Moved logits are Bayes' rule for the other shares, exactly; shares are those of all classes, and of no other.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from sfumato import SfumatoError
from sfumato.models.description import NAMES_OF_LOSSES
from sfumato.models.losses import (
    LOSSES,
    PAIRED,
    logit_offsets,
    logits_of,
    ordered_shares,
    parse_shares,
    probabilities,
)


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


@pytest.mark.parametrize("name", PAIRED)
@pytest.mark.parametrize("labels", [[0], [0, 0], [0, 1]])
def test_gradients_are_finite_in_batches_with_nothing_to_compare(name, labels):
    embeddings = torch.randn(len(labels), 3, requires_grad=True)
    PAIRED[name](embeddings, torch.tensor(labels)).backward()
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
