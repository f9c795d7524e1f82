"""How a model did at several labels of each image, and the part of a page that says so: plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from sfumato._checks import SfumatoError
from sfumato.report.plots.drawing import rendered
from sfumato.report.sections.numbers import percent


class Between(NamedTuple):
    """A figure and the ends of its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LabelScore:
    """How well one label was told.

    Attributes:
        name: of the label.
        positives, negatives: how many test images have it, and how many do not.
        auc: area under its ROC curve; None where all images have it, or none has.
        sensitivity: the share of the positives that score the threshold or more; None where there are none.
        specificity: the share of the negatives that score less; None where there are none.
    """

    name: str
    positives: int
    negatives: int
    auc: Between | None
    sensitivity: Between | None
    specificity: Between | None


@dataclass(frozen=True, kw_only=True)
class MultilabelEvaluation:
    """How a trained model did on the test split, where none, one or many labels are true of an image.

    Attributes:
        accuracy: the share of right decisions among all, one for each label of each test image, between 0 and 1.
        exact_match: the share of test images all of whose labels were decided rightly.
        loss: the mean over test images of the sum over labels of the binary cross-entropy, in nats.
        threshold: a score of at least this is a yes.
        labels: each by itself.

    The intervals of `accuracy` and `exact_match` are over images: decisions about one image hang together.
    """

    accuracy: Between
    exact_match: Between
    loss: float
    threshold: float
    labels: Sequence[LabelScore]

    @property
    def examples(self) -> int:
        """The number of test images."""
        return self.labels[0].positives + self.labels[0].negatives

    @property
    def baseline(self) -> float:
        """The accuracy of whoever gives the answer that is the more frequent one of each label, whatever the image."""
        return sum(max(one.positives, one.negatives) for one in self.labels) / (len(self.labels) * self.examples)

    @property
    def mean_auc(self) -> float | None:
        """The mean over the labels whose area is known; None where none is."""
        known = [one.auc.value for one in self.labels if one.auc is not None]
        return sum(known) / len(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data that `from_dict` reads back; `accuracy` stands there as of any classifier."""
        return {
            "accuracy": self.accuracy.value,
            "accuracy_interval": list(self.accuracy[1:]),
            "exact_match": list(self.exact_match),
            "mean_auc": self.mean_auc,
            "top5": None,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "threshold": self.threshold,
            "labels": [asdict(one) for one in self.labels],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MultilabelEvaluation:
        """The evaluation that a run has written down."""
        try:
            intervals = ("auc", "sensitivity", "specificity")
            labels = [
                LabelScore(**row | {name: None if row[name] is None else Between(*row[name]) for name in intervals})
                for row in data["labels"]
            ]
            return cls(
                accuracy=Between(data["accuracy"], *data["accuracy_interval"]),
                exact_match=Between(*data["exact_match"]),
                loss=math.nan if data["loss"] is None else data["loss"],
                threshold=data["threshold"],
                labels=labels,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SfumatoError(
                f"the run's evaluation cannot be read ({type(error).__name__}: {error})", "restore it from a copy"
            ) from None

    def headline(self) -> dict[str, Any]:
        """What a page's summary says: the share of right decisions, and what it has to be compared with."""
        value, low, high = self.accuracy
        area = "" if self.mean_auc is None else f"; mean area under the ROC curve {self.mean_auc:.3f}"
        return {
            "name": f"right decisions about {len(self.labels)} labels",
            "value": percent(value),
            "lines": [
                f"95% interval {percent(low)} to {percent(high)}, from {self.examples:,} test images{area}",
                f"always the more frequent answer {percent(self.baseline)}",
            ],
        }


def label_by_label(found: MultilabelEvaluation, *, public_test: bool) -> Markup:
    """The part of a page that has each label's figures."""
    return Markup(rendered("multilabel.html.jinja", found=found, public_test=public_test))
