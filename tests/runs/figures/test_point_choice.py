"""An operating point follows from noisy counts alone, and counts are read by it as labels would be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import SfumatoError
from sfumato.evaluation.accuracy import calibration
from sfumato.models.shares import logit_offsets
from sfumato.privacy import NoisyTable
from sfumato.privacy.noisy_table import COARSE, FINE
from sfumato.runs.figures import point_choice
from sfumato.runs.figures.noisy_figures import NoisyFigures
from sfumato.runs.figures.operating import OperatingPoint, thresholds
from sfumato.training.parts.published import count_cells

CLASSES = ("normal", "pneumonia")


def table(epsilon=50.0, edges=FINE) -> NoisyTable:
    return NoisyTable(epsilon=epsilon, classes=2, predictions=True, edges=edges, temperature=False)


def records(shares=(0.38, 0.62), trained=(0.26, 0.74), count=4000, seed=0, apart=1.6):
    """Logits (N, 2) that are right for the trained shares, and labels that are drawn with others."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(count) < shares[1]).astype(int)
    seen = generator.normal(apart * (labels - 0.5))  # log density ratio of both classes: apart times it
    odds = apart * seen + np.log(trained[1] / trained[0])
    return torch.tensor(np.stack([np.zeros(count), odds], 1)), torch.tensor(labels)


def figures(outputs, labels, *, of: NoisyTable | None = None) -> NoisyFigures:
    """What is released of such records where the noise is nothing."""
    of = of or table()
    counts = count_cells(of, outputs, labels, loss="softmax")[0]
    return NoisyFigures(table=of, counts=counts, classes=CLASSES, temperature=1.0)


def test_by_rule_the_shares_of_the_table_are_expected():
    outputs, labels = records()
    found = point_choice.choose_operating_point(figures(outputs, labels))
    assert found is not None
    own, other = logit_offsets((0.26, 0.74), (0.38, 0.62), loss="softmax")
    right = own - other
    assert found == OperatingPoint(positive="pneumonia", threshold=0.6, rule="shares")
    best = min(thresholds(FINE), key=lambda one: abs(np.log(one / (1 - one)) - right))
    assert found.threshold == best  # Bayes' rule, as near as the bins are
    named = (outputs + torch.tensor(found.offsets(CLASSES))).argmax(1)
    assert (named == labels).double().mean() > (outputs.argmax(1) == labels).double().mean()


def test_where_shares_are_the_same_nothing_is_moved():
    moved = [
        point_choice.choose_operating_point(figures(*records(shares=(0.26, 0.74), count=800, seed=seed)))
        for seed in range(40)
    ]
    assert moved == [None] * 40
    few = [point_choice.choose_operating_point(figures(*records(count=40, seed=seed))) for seed in range(40)]
    assert few.count(None) > 30, "forty records show nothing for certain"


@pytest.mark.parametrize("epsilon", [0.02, 0.1])
def test_noise_alone_moves_nothing(epsilon):
    generator, kept = np.random.default_rng(0), np.exp(-epsilon)
    exact = figures(*records(shares=(0.26, 0.74), count=1000))
    for _ in range(30):
        noise = generator.geometric(1 - kept, exact.counts.shape) - generator.geometric(1 - kept, exact.counts.shape)
        noisy = NoisyFigures(table=table(epsilon), counts=exact.counts + noise, classes=CLASSES, temperature=1.0)
        assert point_choice.choose_operating_point(noisy) is None


@pytest.mark.parametrize("edges", [FINE, COARSE])
@settings(max_examples=25)
@given(seed=st.integers(0, 50), place=st.integers(0, 12), positive=st.sampled_from(CLASSES))
def test_counts_are_read_as_labels_are(edges, seed, place, positive):
    outputs, labels = records(count=300, seed=seed)
    known = thresholds(edges)
    point = OperatingPoint(positive=positive, threshold=known[place % len(known)], rule="balanced")
    found = replace(figures(outputs, labels, of=table(edges=edges)), operating=point)
    own = CLASSES.index(positive)
    named = torch.where(outputs.softmax(1)[:, own] >= point.threshold, own, 1 - own)
    moved = outputs + torch.tensor(point.offsets(CLASSES))
    assert (moved.argmax(1) == named).all()
    assert found.accuracy.value == pytest.approx((named == labels).double().mean().item())
    for name, share in found.per_class.items():
        of_class = labels == CLASSES.index(name)
        assert share.value == pytest.approx((named == labels)[of_class].double().mean().item())
    assert found.auc == replace(found, operating=None).auc
    for low, high, count, _ in found.reliability:  # confidence of what is named, once it is moved
        sure = moved.softmax(1).amax(1)
        assert 0.5 - 1e-9 <= low < high <= 1 + 1e-9
        assert ((sure >= low - 1e-9) & (sure <= high + 1e-9)).sum() >= count
    assert sum(one.records for one in found.reliability) == 300


def test_scores_are_to_be_trusted_once_they_are_moved():
    outputs, labels = records(count=40_000)
    before = figures(outputs, labels)
    after = replace(before, operating=point_choice.choose_operating_point(before))
    moved = outputs + torch.tensor(after.operating.offsets(CLASSES))
    assert after.calibration_error.value < 0.75 * before.calibration_error.value
    exact = calibration(moved, labels, loss="softmax")
    assert after.calibration_error.value == pytest.approx(exact.error, abs=0.02)


def test_a_share_that_is_asked_for_is_kept_to_beyond_the_noise():
    outputs, labels = records(count=3000)
    for rule, own in (("pneumonia=0.9", 1), ("normal=0.9", 0)):
        point = point_choice.choose_operating_point(figures(outputs, labels), rule)
        named = (outputs + torch.tensor(point.offsets(CLASSES))).argmax(1)
        assert (named[labels == own] == own).double().mean() >= 0.9
        assert point.positive == CLASSES[own]
        higher = [one for one in thresholds(FINE) if one > point.threshold]
        stricter = replace(figures(outputs, labels), operating=replace(point, threshold=higher[0]))
        assert stricter.per_class[CLASSES[own]].low < 0.9, "a higher threshold would keep to it, too"
    assert point_choice.choose_operating_point(figures(outputs, labels), "pneumonia=0.9999") is None
    assert point_choice.choose_operating_point(figures(outputs, labels), "none") is None


def test_balanced_is_the_largest_mean_of_both_shares():
    outputs, labels = records(count=3000)
    found = point_choice.choose_operating_point(figures(outputs, labels), "balanced")

    def mean(threshold: float) -> float:
        named = (outputs.softmax(1)[:, 1] >= threshold).long()
        return sum(((named == own)[labels == own]).double().mean().item() for own in (0, 1))

    assert mean(found.threshold) == max(map(mean, thresholds(FINE)))
    assert found.threshold > 0.5


def test_shares_are_those_of_the_table():
    outputs, labels = records(count=3000)
    found = point_choice.estimate_shares(figures(outputs, labels))
    assert found["pneumonia"] == pytest.approx(labels.double().mean().item())
    assert sum(found.values()) == pytest.approx(1)
    nothing = replace(figures(outputs, labels), counts=np.zeros((2, 2, len(FINE) - 1), np.int64))
    assert point_choice.estimate_shares(nothing) is None
    assert (
        point_choice.choose_operating_point(nothing) is point_choice.choose_operating_point(nothing, "balanced") is None
    )


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("best", "operating_point must be one of shares, balanced, none"),
        ("pneumonia=2", "operating_point of 'pneumonia' must lie strictly between 0 and 1"),
        ("pneumona=0.9", "did you mean pneumonia"),
        ("pneumonia=much", "operating_point 'pneumonia=much' is not NAME=SHARE"),
    ],
)
def test_a_rule_that_is_none_is_refused(rule, words):
    with pytest.raises(SfumatoError, match=words):
        point_choice.check_rule(rule, CLASSES)


def test_three_classes_have_no_operating_point():
    with pytest.raises(SfumatoError, match="needs two classes and the loss softmax, got 3 classes and softmax"):
        point_choice.refuse_unless_two(("a", "b", "c"), "softmax")
    with pytest.raises(SfumatoError, match="got 2 classes and sigmoid"):
        point_choice.refuse_unless_two(("a", "b"), "sigmoid")
