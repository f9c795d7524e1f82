"""Figures of a classifier for groups of records. The figures have no noise and are private."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.data import Part
from sfumato.evaluation import accuracy, diagnostic
from sfumato.models.losses import probabilities
from sfumato.report import GroupScore, wilson
from sfumato.runs.figures.noisy_figures import Estimate, calibration_error

UNKNOWN = (None, 0.0, 1.0)


def group_scores(
    outputs: Tensor, labels: Tensor, groups: np.ndarray, names: Sequence[str], *, loss: str = "softmax"
) -> list[GroupScore]:
    """The figures of each group, with 95% intervals.

    Accuracy has Wilson's interval (Wilson 1927), the mean area under the ROC curves, weighted by the records of each
    class, that of DeLong et al. 1988, and the calibration error that of `calibration_error`.

    Args:
        outputs: logits (N, classes).
        labels: the classes, int64 (N,).
        groups: the group of each record, text (N,).
        names: the groups in the order of the result.
        loss: the loss, which determines how logits become probabilities.
    """
    return [
        _score(name, outputs[torch.from_numpy(groups == name)], labels[torch.from_numpy(groups == name)], loss)
        for name in names
    ]


def scores_of_parts(
    outputs: Tensor, labels: Tensor, parts: Sequence[Part], names: Sequence[str], *, loss: str
) -> list[GroupScore]:
    """`group_scores` of the records of some parts, one after the other; empty if these have no groups."""
    known = [part.subgroups for part in parts if part.subgroups is not None]
    return group_scores(outputs, labels, np.concatenate(known), names, loss=loss) if known else []


def _score(name: str, outputs: Tensor, labels: Tensor, loss: str) -> GroupScore:
    count, right = len(labels), int((outputs.argmax(1) == labels).sum())
    scores, one_hot = probabilities(outputs.double(), loss), F.one_hot(labels, outputs.shape[1]).bool()
    area = diagnostic.weighted_auc(scores.numpy(), one_hot.numpy()) if count else None
    return GroupScore(
        name=name,
        records=(count, count, count),
        accuracy=(right / count, *wilson(right, count)) if count else UNKNOWN,
        auc=UNKNOWN if area is None else (area.value, area.low, area.high),
        calibration_error=_calibration(outputs, labels, loss),
    )


def _calibration(outputs: Tensor, labels: Tensor, loss: str) -> Estimate:
    """The expected calibration error over the bins of `accuracy.calibration`."""
    found = accuracy.calibration(outputs, labels, loss=loss)
    if found is None:
        return Estimate(*UNKNOWN)
    count, sure, share = (np.array([band[place] for band in found.bands]) for place in (2, 3, 4))
    right = count * share
    return calibration_error(count * (share - sure), right, count - right, np.zeros(len(count)), float(count.sum()))
