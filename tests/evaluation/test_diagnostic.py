"""Figures of a medical test against plain counting, and their intervals against how often they hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from sfumato import SfumatoError
from sfumato.evaluation.diagnostic import auc, diagnostic, predictive_values, proportion, weighted_auc

scores_of_records = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=40).filter(
    lambda records: len({positive for _, positive in records}) == 2
)


@given(records=scores_of_records, threshold=st.sampled_from([0.2, 0.5, 0.8]), prevalence=st.floats(0.001, 0.9))
def test_figures_are_those_of_plain_counting(records, threshold, prevalence):
    scores = np.array([score / 8 for score, _ in records])
    positive = np.array([positive for _, positive in records])
    found = diagnostic(scores, positive, threshold=threshold, prevalence=prevalence)
    assert found.auc.value == pytest.approx(roc_auc_score(positive, scores))
    true = sum(score >= threshold for score, yes in zip(scores, positive, strict=True) if yes)
    false = sum(score >= threshold for score, yes in zip(scores, positive, strict=True) if not yes)
    sensitivity, specificity = true / positive.sum(), 1 - false / (~positive).sum()
    assert found.sensitivity.value == pytest.approx(sensitivity)
    assert found.specificity.value == pytest.approx(specificity)
    for value, low, high in (
        found.auc,
        found.sensitivity,
        found.specificity,
        found.positive_value,
        found.negative_value,
    ):
        assert 0 <= low <= value + 1e-12
        assert value - 1e-12 <= high <= 1
    tested = sensitivity * prevalence + (1 - specificity) * (1 - prevalence)
    if tested:
        assert found.positive_value.value == pytest.approx(sensitivity * prevalence / tested, abs=1e-9)
    false_rates, true_rates, _ = roc_curve(positive, scores, drop_intermediate=False)
    assert np.allclose(np.array(found.curve), np.stack([false_rates, true_rates], 1))


@pytest.mark.parametrize("shift", [0.5, 2.5])
def test_intervals_hold_the_truth(shift):
    generator, repeats, prevalence = np.random.default_rng(int(10 * shift)), 400, 0.05
    sensitivity, specificity = norm.sf(0.5, loc=shift), norm.cdf(0.5)
    value = predictive_values(sensitivity, specificity, prevalence)
    truth = (norm.cdf(shift / math.sqrt(2)), sensitivity, specificity, *value)
    held = np.zeros(5)
    for _ in range(repeats):
        own, others = generator.normal(shift, 1, 60), generator.normal(0, 1, 90)
        scores, positive = np.concatenate([own, others]), np.arange(150) < 60
        found = diagnostic(scores, positive, threshold=0.5, prevalence=prevalence)
        every = (found.auc, found.sensitivity, found.specificity, found.positive_value, found.negative_value)
        held += [one.low <= right <= one.high for one, right in zip(every, truth, strict=True)]
    assert (held / repeats >= 0.925).all(), held / repeats


def test_a_perfect_test_has_an_interval_all_the_same():
    value, low, high = auc(np.array([0.8, 0.9, 0.95]), np.array([0.1, 0.2, 0.3, 0.4]))
    assert value == high == 1
    assert 0.1 < low < 0.9
    assert proportion(10, 10) == (1.0, pytest.approx(0.6915, abs=1e-4), 1.0)
    assert proportion(0, 10)[0] == 0.0 < proportion(0, 10)[2]


def test_what_cannot_be_is_refused():
    scores, positive = np.array([0.2, 0.7]), np.array([False, True])
    with pytest.raises(SfumatoError, match="2 records are of the class and 0 are not"):
        diagnostic(scores, np.array([True, True]))
    with pytest.raises(SfumatoError, match="diverged"):
        diagnostic(np.array([math.nan, 0.5]), positive)
    for wrong in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(SfumatoError, match="threshold"):
            diagnostic(scores, positive, threshold=wrong)
        with pytest.raises(SfumatoError, match="prevalence"):
            diagnostic(scores, positive, prevalence=wrong)


@given(records=scores_of_records)
def test_the_weighted_area_of_one_class_is_its_area(records):
    scores, positive = np.array([float(score) for score, _ in records]), np.array([own for _, own in records])
    found = weighted_auc(scores[:, None], positive[:, None])
    assert found == pytest.approx(auc(scores[positive], scores[~positive]))
    both = weighted_auc(np.stack([scores, -scores], 1), np.stack([positive, ~positive], 1))
    assert both.value == pytest.approx(found.value), "the area of two classes is that of either"
    assert both.low <= found.low + 1e-9
    assert both.high >= found.high - 1e-9


@given(seed=st.integers(0, 999), classes=st.integers(3, 5))
def test_the_weighted_area_is_that_of_scikit_learn(seed, classes):
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), generator.integers(0, classes, 30)])
    scores = generator.dirichlet(np.ones(classes), len(labels))
    found = weighted_auc(scores, labels[:, None] == np.arange(classes))
    assert found.value == pytest.approx(roc_auc_score(labels, scores, average="weighted", multi_class="ovr"))
    several = generator.random((len(labels), classes)) < 0.3
    several[0], several[1] = True, False
    assert weighted_auc(scores, several).value == pytest.approx(roc_auc_score(several, scores, average="weighted"))


def test_the_weighted_area_leaves_out_classes_without_an_area():
    scores, positive = np.array([[0.9, 0.1], [0.2, 0.3], [0.4, 0.4]]), np.array([[1, 0], [0, 0], [0, 0]], bool)
    assert weighted_auc(scores, positive).value == 1
    assert weighted_auc(scores, positive) == auc(scores[:1, 0], scores[1:, 0])
    assert weighted_auc(scores, np.zeros((3, 2), bool)) is None
    assert weighted_auc(np.where(scores < 0.2, np.nan, scores), positive) is None


def test_the_interval_of_the_weighted_area_holds_the_truth():
    """Two labels whose scores and answers are the same on half of the examples, so their areas are correlated."""
    generator, held, truth, widths = np.random.default_rng(3), 0, norm.cdf(1 / math.sqrt(2)), []
    for _ in range(400):
        positive = generator.random((120, 2)) < (0.4, 0.2)
        scores = generator.normal(size=(120, 2)) + positive
        positive[:60, 1], scores[:60, 1] = positive[:60, 0], scores[:60, 0]
        found = weighted_auc(scores, positive)
        held += found.low <= truth <= found.high
        widths.append(found.high - found.low)
    assert 0.92 <= held / 400 <= 0.98
    assert np.mean(widths) < 0.21
