"""Figures of a classifier for groups of records. The figures have no noise and are private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.data import Part
from sfumato.data.classes import sort_names
from sfumato.evaluation import accuracy, diagnostic
from sfumato.models.losses import probabilities
from sfumato.report import wilson

Interval = tuple[float, float, float]
"""An estimate, and the ends of its 95% interval."""
WIDEST = 0.2
"""The widest interval of an accuracy that says anything: 10 points either way."""
CONFIDENCE = 0.95
DRAWS = 4000


@dataclass(frozen=True, kw_only=True)
class GroupScore:
    """The figures of one group.

    Attributes:
        name: the name of the group.
        records: the number of its records.
        accuracy: the share of correctly classified records.
        auc: the mean over classes of the area under the ROC curve of each class against all others, weighted by the
            records of each class; None if the group has records of one class alone.
        calibration_error: the expected calibration error; None if it cannot be computed.
    """

    name: str
    records: int
    accuracy: Interval
    auc: Interval | None
    calibration_error: Interval | None

    @property
    def says_something(self) -> bool:
        """Whether there are enough records to judge the group."""
        return self.accuracy[2] - self.accuracy[1] <= WIDEST


def group_scores(outputs: Tensor, labels: Tensor, parts: Sequence[Part], *, loss: str = "softmax") -> list[GroupScore]:
    """The figures of each group in some parts, with 95% intervals; empty if the parts have no groups.

    Accuracy has Wilson's interval (Wilson 1927), the area under the ROC curves that of DeLong et al. 1988, and the
    calibration error that of `calibration_error`.

    Args:
        outputs: logits (N, classes) of the records of the parts, one part after the other.
        labels: the classes, int64 (N,).
        loss: the loss, which determines how logits become probabilities.
    """
    subgroups = [part.subgroups for part in parts if part.subgroups is not None]
    if not subgroups:
        return []
    groups = np.concatenate(subgroups)
    rows = {name: torch.from_numpy(groups == name) for name in sort_names(np.unique(groups).tolist())}
    return [_score(name, outputs[places], labels[places], loss) for name, places in rows.items()]


def smallest_group(groups: Sequence[GroupScore]) -> str:
    """A sentence about the smallest group: whether it is too small to say anything; and the others that are."""
    from sfumato.report.sections.numbers import percent

    first, *others = sorted(groups, key=lambda group: group.records)
    _, low, high = first.accuracy
    if first.says_something:
        width = f"the 95% interval of its accuracy is {100 * (high - low):.1f} points wide"
        text = f"The smallest group, “{first.name}”, is large enough to be judged: {width}."
    else:
        between = f"between {percent(low)} and {percent(high)}"
        text = f"The smallest group, “{first.name}”, is too small to say anything: its accuracy lies {between}."
    if few := [f"“{group.name}”" for group in others if not group.says_something]:
        text += f" Too small are also: {', '.join(few)}."
    return text


def _score(name: str, outputs: Tensor, labels: Tensor, loss: str) -> GroupScore:
    count, right = len(labels), int((outputs.argmax(1) == labels).sum())
    scores, one_hot = probabilities(outputs.double(), loss), F.one_hot(labels, outputs.shape[1]).bool()
    area = diagnostic.weighted_auc(scores.numpy(), one_hot.numpy())
    return GroupScore(
        name=name,
        records=count,
        accuracy=(right / count, *wilson(right, count)),
        auc=None if area is None else (area.value, area.low, area.high),
        calibration_error=_calibration(outputs, labels, loss),
    )


def _calibration(outputs: Tensor, labels: Tensor, loss: str) -> Interval | None:
    """The expected calibration error over the bins of `accuracy.calibration`."""
    result = accuracy.calibration(outputs, labels, loss=loss)
    if result is None:
        return None
    count, sure, share = (np.array([band[place] for band in result.bands]) for place in (2, 3, 4))
    return calibration_error(count * (share - sure), share, count)


def calibration_error(missed: np.ndarray, share: np.ndarray, count: np.ndarray) -> Interval:
    """Expected calibration error, the mean over records of their bin's |confidence - accuracy|, with its interval.

    Sampling inflates the observed error, a small one more than a large one. The value is the error that would be
    observed at this size on average, if the true difference of each bin is the same fraction of the observed one. The
    half width of the interval is the 95th percentile of the inflation, from Monte Carlo draws. It holds for any true
    error, since |d + e| is within |e| of |d|, and is wider than necessary.

    Args:
        missed: for each bin the sum over its records of 1 if the prediction is right, minus confidence.
        share: the share of right predictions in each bin.
        count: the number of records in each bin.
    """
    from scipy.optimize import root_scalar

    likely = np.clip(share, 0.01, 0.99)
    deviations, total = np.sqrt(count * likely * (1 - likely)), float(count.sum())
    inflation = (_sizes_of_draws(len(missed)) * deviations).sum(1)
    plain, most = float(np.abs(missed).sum()) / total, float(np.quantile(inflation, CONFIDENCE)) / total

    def beyond(part: float) -> float:
        return float(_mean_size(part * missed, deviations).sum()) / total - plain

    bracketed = beyond(0.0) < 0 < beyond(1.0)
    part = float(root_scalar(beyond, bracket=(0.0, 1.0)).root if bracketed else beyond(0.0) < 0)
    return part * plain, max(0.0, plain - most), min(1.0, plain + most)


@lru_cache(maxsize=4)
def _sizes_of_draws(bins: int) -> np.ndarray:
    """Absolute values of standard normal draws, always the same ones: (DRAWS, bins)."""
    sizes = np.abs(np.random.default_rng(0).normal(size=(DRAWS, bins)))
    sizes.flags.writeable = False  # the cached array is shared
    return sizes


def _mean_size(means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """E|x| of normal variables (folded normal distribution)."""
    from scipy.special import erf

    ratio = means / deviations / math.sqrt(2)
    return deviations * math.sqrt(2 / math.pi) * np.exp(-(ratio**2)) + means * erf(ratio)
