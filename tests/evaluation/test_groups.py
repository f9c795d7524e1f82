"""Figures of groups: those of the group's records alone, with the intervals that they have by themselves."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from sfumato.data import Records
from sfumato.evaluation import accuracy
from sfumato.evaluation.groups import GroupScore, calibration_error, group_scores, smallest_group
from sfumato.report import wilson

LARGE = GroupScore(name="women", records=400, accuracy=(0.9123, 0.88, 0.94), auc=None, calibration_error=None)
SMALL = replace(LARGE, name="men", records=11, accuracy=(0.9, 0.6, 0.98))
TINY = replace(LARGE, name="others", records=2, accuracy=(1.0, 0.34, 1.0))


def part(labels: torch.Tensor, groups: np.ndarray | None) -> Records:
    images = np.zeros((len(labels), 8, 8, 1), np.uint8)
    return Records(images=images, labels=labels.numpy(), subgroups=groups)


def synthetic(count=400, classes=3):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (count,), generator=generator)
    outputs = torch.randn(count, classes, generator=generator) + torch.eye(classes)[labels]
    return outputs, labels, np.where(np.arange(count) % 4 == 0, "b", "a")


def test_a_group_has_the_figures_of_its_own_records():
    outputs, labels, groups = synthetic()
    parts = [part(labels[:100], groups[:100]), part(labels[100:], groups[100:])]
    for name, found in zip("ab", group_scores(outputs, labels, parts), strict=True):
        which = torch.from_numpy(groups == name)
        own, true = outputs[which], labels[which]
        right, count = int((own.argmax(1) == true).sum()), len(true)
        assert found.name == name
        assert found.records == count == {"a": 300, "b": 100}[name]
        assert found.accuracy == pytest.approx((right / count, *wilson(right, count)))
        scores = torch.softmax(own.double(), 1).numpy()
        area = roc_auc_score(true, scores / scores.sum(1, keepdims=True), multi_class="ovr", average="weighted")
        assert found.auc[0] == pytest.approx(area)
        assert found.auc[1] < found.auc[0] < found.auc[2]
        plain = accuracy.calibration(own, true, loss="softmax").error
        value, low, high = found.calibration_error
        assert low <= value <= plain < high, "sampling inflates the observed error, and the value takes that off"


def test_a_perfect_group_may_be_perfect_and_one_of_a_single_class_has_no_area():
    labels = torch.tensor([0, 1, 0, 1, 1])
    outputs = 9.0 * torch.eye(2)[labels]
    perfect, single = group_scores(outputs, labels, [part(labels, np.array([*"aaaab"]))])
    assert perfect.accuracy[2] == 1.0
    assert perfect.auc[0] == 1.0
    assert (single.records, single.auc) == (1, None)
    assert not single.says_something


def test_parts_without_groups_have_no_figures_of_groups():
    labels = torch.tensor([0, 1, 0, 1])
    assert group_scores(torch.eye(2).repeat(2, 1), labels, [part(labels, None)]) == []


@pytest.mark.parametrize("difference", [0.0, 0.02, 0.1])
def test_a_calibration_error_is_neither_hidden_nor_made_up(difference):
    generator, count, sure = np.random.default_rng(0), np.full(10, 40), np.linspace(0.3, 0.8, 10)
    found = []
    for _ in range(200):
        share = generator.binomial(count, sure + difference) / count
        found.append(calibration_error(count * (share - sure), share, count))
    values, lows, highs = np.array(found).T
    assert ((lows <= difference) & (difference <= highs)).mean() >= 0.92
    plain = np.mean([abs(generator.binomial(count, sure + difference) / count - sure).mean() for _ in range(200)])
    assert abs(values.mean() - difference) < plain - difference + 0.005
    if difference:
        assert values.mean() > 0.5 * difference


def test_the_smallest_group_is_named_with_what_is_known_of_it():
    assert "“women”, is large enough to be judged: the 95% interval of its accuracy is 6.0 points" in smallest_group(
        [LARGE]
    )
    assert smallest_group([LARGE, SMALL]) == (
        "The smallest group, “men”, is too small to say anything: its accuracy lies between 60.0% and 98.0%."
    )
    assert smallest_group([LARGE, SMALL, TINY]).endswith("Too small are also: “men”.")
