"""Evaluations of multilabel classifiers and of next-word prediction, as plain data, and their parts of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from sfumato.report.plots.drawing import render
from sfumato.report.sections.numbers import percent


class FigureInterval(NamedTuple):
    """A figure and the ends of its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LabelScore:
    """The figures of one label.

    Attributes:
        name: the name of the label.
        positives, negatives: the number of test images with the label, and without it.
        auc: the area under its ROC curve; None if all images have the label, or none has.
        sensitivity: the share of the positives with a score of at least the threshold; None without positives.
        specificity: the share of the negatives with a score below the threshold; None without negatives.
    """

    name: str
    positives: int
    negatives: int
    auc: FigureInterval | None
    sensitivity: FigureInterval | None
    specificity: FigureInterval | None


@dataclass(frozen=True, kw_only=True)
class MultilabelEvaluation:
    """The results of a multilabel classifier on the test split. An image may have none, one or many of the labels.

    Attributes:
        accuracy: the share of correct decisions, one decision per label and test image, between 0 and 1.
        exact_match: the share of test images with a correct decision on every label.
        loss: the mean over test images of the sum over labels of the binary cross-entropy, in nats.
        threshold: the least score of a positive decision.
        labels: the figures of each label.
        weighted_auc: the mean AUC of the labels, weighted by their test images; None if none has one.

    The intervals of `accuracy` and `exact_match` treat images as the independent units, since the decisions about one
    image are dependent.
    """

    accuracy: FigureInterval
    exact_match: FigureInterval
    loss: float
    threshold: float
    labels: Sequence[LabelScore]
    weighted_auc: FigureInterval | None = None

    @property
    def examples(self) -> int:
        """The number of test images."""
        return self.labels[0].positives + self.labels[0].negatives

    @property
    def baseline(self) -> float:
        """The accuracy of always giving the more frequent answer for each label."""
        return sum(max(one.positives, one.negatives) for one in self.labels) / (len(self.labels) * self.examples)

    @property
    def mean_auc(self) -> float | None:
        """The mean AUC over the labels that have one; None if none has."""
        known = [one.auc.value for one in self.labels if one.auc is not None]
        return sum(known) / len(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data that `from_dict` reads back. Its `accuracy` is a number, as for any classifier."""
        return {
            "accuracy": self.accuracy.value,
            "accuracy_interval": list(self.accuracy[1:]),
            "exact_match": list(self.exact_match),
            "mean_auc": self.mean_auc,
            "weighted_auc": None if self.weighted_auc is None else list(self.weighted_auc),
            "top5": None,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "threshold": self.threshold,
            "labels": [asdict(one) for one in self.labels],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MultilabelEvaluation:
        """The evaluation from a run's file."""
        intervals = ("auc", "sensitivity", "specificity")
        labels = [
            LabelScore(**row | {name: None if row[name] is None else FigureInterval(*row[name]) for name in intervals})
            for row in data["labels"]
        ]
        return cls(
            accuracy=FigureInterval(data["accuracy"], *data["accuracy_interval"]),
            exact_match=FigureInterval(*data["exact_match"]),
            loss=math.nan if data["loss"] is None else data["loss"],
            threshold=data["threshold"],
            labels=labels,
            weighted_auc=None if (area := data.get("weighted_auc")) is None else FigureInterval(*area),
        )

    def headline(self) -> dict[str, Any]:
        """The main figure of a page: the share of correct decisions, and its baseline."""
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


def labels_section(found: MultilabelEvaluation, *, public_test: bool) -> Markup:
    """The part of a page with each label's figures."""
    return Markup(render("multilabel.html.jinja", found=found, public_test=public_test))


@dataclass(frozen=True, kw_only=True)
class WordEvaluation:
    """The results of next-word prediction on the test split.

    Attributes:
        accuracy: the share of correctly predicted words, without padding, unknown words and ends of texts.
        top5: the share of these words that are among the five likeliest.
        loss: the mean cross-entropy over all words, unknown words and ends of texts included, in nats; None if it is
            not finite.
        texts: the number of test texts.
        users: the number of their users; None if unknown.
        words: the number of words that count for `accuracy`.
        all_words: the number of all words, unknown words and ends of texts included.
        accuracy_of_all: the share of correct predictions among all of these.
        majority: the accuracy of always predicting the most frequent word.
        over_steps: the variation over the last steps (`StepSpread`), as plain data; None if no weights were kept.
    """

    accuracy: FigureInterval
    top5: float
    loss: float | None
    texts: int
    users: int | None
    words: int
    all_words: int
    accuracy_of_all: float
    majority: float
    over_steps: Mapping[str, Any] | None = None

    @property
    def tested(self) -> str:
        """The independent units of the interval, in words."""
        return f"{self.texts:,} test texts" if self.users is None else f"the texts of {self.users:,} test users"

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.nan if self.loss is None or self.loss > 700 else math.exp(self.loss)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data that `from_dict` reads back. Its `accuracy` is a number, as for any classifier."""
        names = ("top5", "loss", "texts", "users", "words", "all_words", "accuracy_of_all", "majority")
        return {
            "accuracy": self.accuracy.value,
            "accuracy_interval": list(self.accuracy[1:]),
            **{name: getattr(self, name) for name in names},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WordEvaluation:
        """The evaluation from a run's file."""
        rest = {name: value for name, value in data.items() if name not in ("accuracy", "accuracy_interval")}
        return cls(accuracy=FigureInterval(data["accuracy"], *data["accuracy_interval"]), **rest)

    def headline(self) -> dict[str, Any]:
        """The main figure of a page: the accuracy, and its baseline."""
        value, low, high = self.accuracy
        return {
            "name": "accuracy of the next word",
            "value": percent(value),
            "lines": [
                f"95% interval {percent(low)} to {percent(high)}, from {self.words:,} words in {self.tested}",
                f"always the most frequent word {percent(self.majority)}",
            ],
        }


def words_section(found: WordEvaluation, *, public_test: bool, averages: Mapping[str, str]) -> Markup:
    """The part of a page with the figures of words, and how they vary over the last steps."""
    return Markup(render("words.html.jinja", found=found, public_test=public_test, averages=averages))
