"""Figures of groups: those of the group's records alone, with the intervals that they have by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from sfumato.data import Records
from sfumato.evaluation import accuracy
from sfumato.evaluation.groups import group_scores, scores_of_parts
from sfumato.report import wilson


def synthetic(count=400, classes=3):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (count,), generator=generator)
    outputs = torch.randn(count, classes, generator=generator) + torch.eye(classes)[labels]
    return outputs, labels, np.where(np.arange(count) % 4 == 0, "b", "a")


def test_a_group_has_the_figures_of_its_own_records():
    outputs, labels, groups = synthetic()
    for name, found in zip("ab", group_scores(outputs, labels, groups, ("a", "b")), strict=True):
        which = torch.from_numpy(groups == name)
        own, true = outputs[which], labels[which]
        right, count = int((own.argmax(1) == true).sum()), len(true)
        assert found.name == name
        assert found.records[0] == count == {"a": 300, "b": 100}[name]
        assert found.accuracy == pytest.approx((right / count, *wilson(right, count)))
        scores = torch.softmax(own.double(), 1).numpy()
        area = roc_auc_score(true, scores / scores.sum(1, keepdims=True), multi_class="ovr", average="weighted")
        assert found.auc[0] == pytest.approx(area)
        assert found.auc[1] < found.auc[0] < found.auc[2]
        plain = accuracy.calibration(own, true, loss="softmax").error
        value, low, high = found.calibration_error
        assert low <= value <= plain < high, "sampling inflates the observed error, and the value takes that off"


def test_an_empty_group_is_unknown_and_a_perfect_one_may_be_perfect():
    labels = torch.tensor([0, 1, 0, 1])
    outputs = 9.0 * torch.eye(2)[labels]
    perfect, empty = group_scores(outputs, labels, np.array(["a"] * 4), ("a", "b"))
    assert perfect.accuracy[2] == 1.0
    assert perfect.auc[0] == 1.0
    assert empty.records == (0, 0, 0)
    assert empty.accuracy == empty.auc == empty.calibration_error == (None, 0.0, 1.0)
    assert not empty.says_something


def test_parts_without_groups_have_no_figures_of_groups():
    part = Records(images=np.zeros((4, 8, 8, 1), np.uint8), labels=np.array([0, 1, 0, 1]))
    assert scores_of_parts(torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1]), [part], (), loss="softmax") == []
