"""Moved logits are Bayes' rule for the other shares, exactly; shares are those of all classes, and of no other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from sfumato import SfumatoError
from sfumato.models.losses import logit_offsets, logits_of, ordered_shares, parse_shares, probabilities

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
        (["a=0.5", "b=0.5"], ("a", "bb"), "prevalence names 'b', which is not a class; did you mean 'bb'"),
        (["a=0.5", "b=0.5"], ("a", "b", "c"), "prevalence has no share for the class 'c'"),
        (["a=0.5", "b=0.6"], ("a", "b"), "the shares of prevalence sum to 1.1, not to 1"),
        (["a"], ("a", "b"), "prevalence 'a' is not NAME=SHARE"),
    ):
        with pytest.raises(SfumatoError, match=words):
            ordered_shares(parse_shares(given_as, "prevalence"), classes, "prevalence")
