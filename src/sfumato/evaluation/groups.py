"""Figures of a classifier for groups of records. The figures have no noise and are private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.data import Part
from sfumato.evaluation import accuracy, diagnostic
from sfumato.models.losses import probabilities
from sfumato.report import Estimate, GroupScore, wilson

UNKNOWN = (None, 0.0, 1.0)
CONFIDENCE = 0.95
DRAWS = 4000


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


def calibration_error(
    missed: np.ndarray, right: np.ndarray, wrong: np.ndarray, noise: np.ndarray, total: float
) -> Estimate:
    """Expected calibration error, the mean over records of their bin's |confidence - accuracy|, with its interval.

    Noise and sampling inflate the observed error, a small one more than a large one. The value is the error that would
    be observed at this size on average, if the true difference of each bin is the same fraction of the observed one.
    The half width of the interval is the 95th percentile of the inflation, from Monte Carlo draws. It holds for any
    true error, since |d + e| is within |e| of |d|, and is wider than necessary.

    Args:
        missed: for each bin the sum over its records of 1 if the prediction is right, minus confidence.
        right, wrong: the number of right and of wrong predictions in each bin.
        noise: the variance of the noise in each of `missed`.
        total: the number of records.
    """
    from scipy.optimize import root_scalar

    share = np.clip(right / np.maximum(right + wrong, 1), 0.01, 0.99)
    deviations = np.sqrt(np.maximum(right + wrong, 0) * share * (1 - share) + noise)
    added = (_sizes_of_draws(len(missed)) * deviations).sum(1)
    plain, most = float(np.abs(missed).sum()) / total, float(np.quantile(added, CONFIDENCE)) / total

    def beyond(part: float) -> float:
        return float(_mean_size(part * missed, deviations).sum()) / total - plain

    bracketed = beyond(0.0) < 0 < beyond(1.0)
    part = float(root_scalar(beyond, bracket=(0.0, 1.0)).root if bracketed else beyond(0.0) < 0)
    return Estimate(part * plain, max(0.0, plain - most), min(1.0, plain + most))


@lru_cache(maxsize=4)
def _sizes_of_draws(bins: int) -> np.ndarray:
    """Absolute values of standard normal draws, always the same ones: (DRAWS, bins)."""
    found = np.abs(np.random.default_rng(0).normal(size=(DRAWS, bins)))
    found.flags.writeable = False  # the cached array is shared
    return found


def _mean_size(means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """E|x| of normal variables (folded normal distribution)."""
    from scipy.special import erf

    ratio = means / np.maximum(deviations, np.finfo(float).tiny) / math.sqrt(2)
    return deviations * math.sqrt(2 / math.pi) * np.exp(-(ratio**2)) + means * erf(ratio)
